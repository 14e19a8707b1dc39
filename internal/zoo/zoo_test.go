// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package zoo_test

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/plugins/policy/grid"
)

func TestPublishedProfiles(t *testing.T) {
	for gpuType, want := range map[string]int{zoo.A100: 37, zoo.GTX1080Ti: 35} {
		profiles, err := zoo.Profiles(gpuType)
		require.NoError(t, err)
		require.Len(t, profiles, want)
		seen := map[string]bool{}
		for i, p := range profiles {
			require.False(t, seen[p.Model], "%s twice", p.Model)
			seen[p.Model] = true
			require.Equal(t, gpuType, p.GPUType)
			require.Positive(t, p.Alpha)
			require.Positive(t, p.Beta)
			// The paper sets SLOs that a batch of some size can meet on an otherwise idle GPU, and lists models by falling beta/alpha.
			require.GreaterOrEqual(t, p.SLO, p.Latency(1), p.Model)
			if i > 0 {
				before := profiles[i-1]
				require.LessOrEqual(t, float64(p.Beta)/float64(p.Alpha), 1.02*float64(before.Beta)/float64(before.Alpha), p.Model)
			}
		}
	}
}

func TestLookup(t *testing.T) {
	p, err := zoo.Lookup(zoo.GTX1080Ti, "ResNet50")
	require.NoError(t, err)
	require.Equal(t, zoo.Profile{Model: "ResNet50", GPUType: zoo.GTX1080Ti, Alpha: 2050 * time.Microsecond, Beta: 5378 * time.Microsecond, SLO: 27 * time.Millisecond}, p)
	require.Equal(t, 5378*time.Microsecond+8*2050*time.Microsecond, p.Latency(8))

	_, err = zoo.Lookup(zoo.A100, "ResNet51")
	require.ErrorContains(t, err, `no model "ResNet51" for GPU type A100; there are BERT, DenseNet121`)
	_, err = zoo.Profiles("H100")
	require.ErrorContains(t, err, `"H100"; there are some for A100, 1080Ti`)
}

func TestTable2(t *testing.T) {
	cases, err := zoo.Cases()
	require.NoError(t, err)
	require.Len(t, cases, 2)
	c := cases[0]
	require.Equal(t, "ResNet50", c.Profile.Model)
	require.Equal(t, 8, c.GPUs)
	require.InDelta(t, 5264, c.Goodput["symphony"], 0)
	require.InDelta(t, 14, c.MedianBatch["symphony"], 0)
	// The analytical columns follow from alpha, beta, SLO and the number of GPUs (section 3.3 of the paper).
	for _, c := range cases {
		n := float64(c.GPUs)
		b := math.Floor((float64(c.Profile.SLO)/(1+1/n) - float64(c.Profile.Beta)) / float64(c.Profile.Alpha))
		require.InDelta(t, c.Staggered.Batch, b, 0, c.Profile.Model)
		require.InDelta(t, c.Staggered.Goodput, n*b/c.Profile.Latency(int(b)).Seconds(), 6, c.Profile.Model)
	}
}

func TestWrite(t *testing.T) {
	p, err := zoo.Lookup(zoo.A100, "DenseNet121")
	require.NoError(t, err)
	root := t.TempDir()
	m := zoo.Model{
		Name: "dense", Profile: p, Stretch: 5, MaxBatchSize: 32, Dims: []int64{3, 4}, Knee: 60, Jitter: .02, L2: .5, Bandwidth: .25, Instances: 2,
		Dynamic: &zoo.DynamicBatching{MaxQueueDelay: 1500 * time.Microsecond, PreferredBatchSizes: []int{4, 8}, QueueTimeout: 70 * time.Millisecond}, TakesTurns: true, ModelPy: []byte("# python\n"),
	}
	require.NoError(t, zoo.Write(root, m))

	py, err := os.ReadFile(filepath.Join(root, "dense", "1", "model.py"))
	require.NoError(t, err)
	require.Equal(t, "# python\n", string(py))
	text, err := os.ReadFile(filepath.Join(root, "dense", "config.pbtxt"))
	require.NoError(t, err)
	config := &tritonpb.ModelConfig{}
	require.NoError(t, prototext.Unmarshal(text, config), string(text))
	require.Equal(t, "dense", config.Name)
	require.Equal(t, int32(32), config.MaxBatchSize)
	require.Equal(t, []int64{3, 4}, config.Input[0].Dims)
	require.Equal(t, int32(2), config.InstanceGroup[0].Count)
	require.Equal(t, uint64(1500), config.GetDynamicBatching().MaxQueueDelayMicroseconds)
	require.Equal(t, []int32{4, 8}, config.GetDynamicBatching().PreferredBatchSize)
	policy := config.GetDynamicBatching().DefaultQueuePolicy
	require.Equal(t, uint64(70_000), policy.DefaultTimeoutMicroseconds)
	require.Equal(t, tritonpb.ModelQueuePolicy_REJECT, policy.TimeoutAction)
	require.Equal(t, uint32(1), config.InstanceGroup[0].RateLimiter.Resources[0].Count)
	got := map[string]string{}
	for k, v := range config.Parameters {
		got[k] = v.StringValue
	}
	require.Equal(t, map[string]string{
		"conch_emulate_alpha_us": "270", "conch_emulate_beta_us": "52730", "conch_emulate_knee": "60", "conch_emulate_jitter": "0.02",
		"conch_emulate_l2": "0.5", "conch_emulate_bandwidth": "0.25", "slo_ms": "105",
	}, got)
}

func TestWriteDefaults(t *testing.T) {
	p, err := zoo.Lookup(zoo.A100, "BERT")
	require.NoError(t, err)
	config, err := zoo.Model{Profile: p, MaxBatchSize: 8}.Config()
	require.NoError(t, err)
	require.NotContains(t, config, "dynamic_batching")
	require.NotContains(t, config, "jitter")
	require.Contains(t, config, "name: \"BERT\"\n")
	require.Contains(t, config, "dims: [ 16 ]")

	require.NoError(t, zoo.Write(t.TempDir(), zoo.Model{Profile: p, MaxBatchSize: 8, Dynamic: &zoo.DynamicBatching{}}))
	require.ErrorContains(t, zoo.Write(t.TempDir(), zoo.Model{Profile: p}), "max batch size 0 must be at least 1")
	require.ErrorContains(t, zoo.Write(t.TempDir(), zoo.Model{Name: "../x", Profile: p, MaxBatchSize: 1}), "no name for a model directory")
}

// TestDeclaredProfiles: the profile file beside a model's configuration says what the model emulates.
func TestDeclaredProfiles(t *testing.T) {
	m := zoo.Model{
		Name: "m", Profile: zoo.Profile{Alpha: time.Millisecond, Beta: 4 * time.Millisecond}, MaxBatchSize: 6, Knee: 50, L2: .4, Mreq: .1, Stretch: 2, Declare: true,
	}
	root := t.TempDir()
	require.NoError(t, zoo.Write(root, m))
	file, err := os.Open(filepath.Join(root, "m", "profile.csv"))
	require.NoError(t, err)
	defer file.Close() //nolint:errcheck // it was only read
	all, err := grid.Read(file)
	require.NoError(t, err)
	require.Len(t, all, 1)
	p := all[0].Policy("m", "any")
	for _, c := range []struct {
		batch, share uint32
		ms, creq, l2 float64
	}{{1, 100, 10, .5, .4}, {4, 100, 16, .5, .4}, {6, 50, 20, .5, .2}, {6, 25, 40, .25, .1}, {3, 75, 14, .5, .3}} {
		us, ok := p.Latency(c.batch, c.share)
		require.True(t, ok)
		require.InDelta(t, 1e3*c.ms, us, 1e-6, "%+v", c)
		creq, _ := p.Creq(c.batch, c.share)
		mreq, _ := p.Mreq(c.batch, c.share)
		load, _ := p.Load(c.batch, c.share)
		require.InDeltaSlice(t, []float64{c.creq, .1, c.l2, .3 * float64(c.share) / 100}, []float64{creq, mreq, load.L2, load.Bandwidth}, 1e-9, "%+v", c)
	}
}

// TestEnsembleConfig: what no step takes is an output of the ensemble, and a step with several steps before it has as many inputs.
func TestEnsembleConfig(t *testing.T) {
	steps := []zoo.Step{{Model: "split"}, {Model: "left", After: []int{0}}, {Model: "right", After: []int{0}}, {Model: "join", After: []int{1, 2}}, {Model: "side", After: []int{0}}}
	text, err := zoo.Model{Name: "e", MaxBatchSize: 8, Steps: steps, Profile: zoo.Profile{SLO: 150 * time.Millisecond}}.Config()
	require.NoError(t, err)
	require.Equal(t, `name: "e"
platform: "ensemble"
max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUTPUT1" data_type: TYPE_FP32 dims: [ 16 ] } ]
ensemble_scheduling {
  step { model_name: "split" model_version: -1 input_map { key: "INPUT" value: "INPUT" } output_map { key: "OUTPUT" value: "step0" } }
  step { model_name: "left" model_version: -1 input_map { key: "INPUT" value: "step0" } output_map { key: "OUTPUT" value: "step1" } }
  step { model_name: "right" model_version: -1 input_map { key: "INPUT" value: "step0" } output_map { key: "OUTPUT" value: "step2" } }
  step { model_name: "join" model_version: -1 input_map { key: "INPUT" value: "step1" } input_map { key: "INPUT1" value: "step2" } output_map { key: "OUTPUT" value: "OUTPUT" } }
  step { model_name: "side" model_version: -1 input_map { key: "INPUT" value: "step0" } output_map { key: "OUTPUT" value: "OUTPUT1" } }
}
parameters { key: "slo_ms" value { string_value: "150" } }
`, text)
	text, err = zoo.Model{Name: "join", MaxBatchSize: 8, Inputs: 2}.Config()
	require.NoError(t, err)
	require.Contains(t, text, `input [ { name: "INPUT1" data_type: TYPE_FP32 dims: [ 16 ] } ]`)
}
