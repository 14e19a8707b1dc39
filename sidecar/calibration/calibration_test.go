// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package calibration_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/apply/warmup"
	"github.com/conch-serving/conch/sidecar/calibration"
)

type clock struct{}

func (clock) Now() time.Time { return time.Now() }

func (clock) Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(min(d, 20*time.Millisecond)): // a test waits no full second for a client to go away
		return nil
	}
}

// stage writes a model of 2 ms a batch, on an embedded server of an emulated GPU.
func stage(_ context.Context, model, dir string) (*tritonpb.ModelConfig, error) {
	at := filepath.Join(dir, model)
	if err := os.MkdirAll(filepath.Join(at, "1"), 0o755); err != nil {
		return nil, err
	}
	return &tritonpb.ModelConfig{Name: model, MaxBatchSize: 4, Input: []*tritonpb.ModelInput{{Name: "INPUT", DataType: tritonpb.DataType_TYPE_FP32, Dims: []int64{1}}}},
		os.WriteFile(filepath.Join(at, "config.pbtxt"), []byte(`backend: "python"
max_batch_size: 4
input { name: "INPUT" data_type: TYPE_FP32 dims: 1 }
output { name: "OUTPUT" data_type: TYPE_FP32 dims: 1 }
parameters { key: "conch_emulate_alpha_us" value { string_value: "0" } }
parameters { key: "conch_emulate_beta_us" value { string_value: "2000" } }
`), 0o600)
}

func options(t *testing.T) calibration.Options {
	return calibration.Options{
		Driver: driver.NewEmbedded(driver.EmbeddedOptions{}), Dir: t.TempDir(), Clock: clock{}, Stage: stage,
		Nodes: []*policy.Node{{Name: "n", Gpus: []*policy.GPU{
			{Id: "gpu0", Type: "T4", SharesEnforced: true}, {Id: "gpu1", Type: "T4", SharesEnforced: true}, {Id: "gpu2", Type: "L4"}, {Id: "gpu3", Type: "A100", Emulated: true},
		}}},
		Busy: func(gpu string) float64 { return map[string]float64{"gpu0": .5}[gpu] },
		Used: func(string) bool { return false },
	}
}

func TestOneModelAtEachShare(t *testing.T) {
	o := options(t)
	type calibrated struct {
		model, gpuType string
		share          uint32
	}
	var got []calibrated
	o.Calibrated = func(model, gpuType string, share uint32, batches []warmup.Timed) {
		got = append(got, calibrated{model, gpuType, share})
		require.Len(t, batches, 3)
	}
	looks := 0
	o.Used = func(string) bool { looks++; return looks < 3 }
	c, bundles, err := calibration.New(t.Context(), o)
	require.NoError(t, err)
	require.Empty(t, bundles)
	var reported []string
	shares, err := c.Model(t.Context(), "m", calibration.Order{GPUType: "T4", Shares: []int{100, 50}, Disturbance: .5}, func(p calibration.Progress) { reported = append(reported, p.What) })
	require.NoError(t, err)
	require.Contains(t, reported, "waiting until nobody uses it")
	require.Equal(t, []calibrated{{"m", "T4", 100}, {"m", "T4", 50}}, got)
	require.Len(t, shares, 2)
	for i, rows := range []int{1, 2, 4} {
		require.Equal(t, rows, shares[1].Batches[i].Rows)
		require.GreaterOrEqual(t, shares[1].Batches[i].Duration, 2*time.Millisecond)
	}
	left, err := os.ReadDir(o.Dir)
	require.NoError(t, err)
	require.Empty(t, left, "nothing is left of scratch partitions")
}

func TestAModelInUseIsNotMeasured(t *testing.T) {
	o := options(t)
	o.Used = func(string) bool { return true }
	c, _, err := calibration.New(t.Context(), o)
	require.NoError(t, err)
	_, err = c.Model(t.Context(), "m", calibration.Order{GPUType: "T4", Disturbance: .1, Limit: 50 * time.Millisecond}, func(calibration.Progress) {})
	require.ErrorIs(t, err, calibration.ErrTimeIsUp)
}

func TestOrdersThatAreRefused(t *testing.T) {
	o := options(t)
	o.Nodes[0].Gpus = append(o.Nodes[0].Gpus, &policy.GPU{Id: "gpu4", Type: "H100"})
	o.Cordoned = func(gpu string) bool { return gpu == "gpu4" }
	c, _, err := calibration.New(t.Context(), o)
	require.NoError(t, err)
	for reason, order := range map[string]calibration.Order{
		"above 0 and at most 0.5":                                  {GPUType: "T4", Disturbance: .6},
		`no GPU of type "" is there; there are A100, H100, L4, T4`: {Disturbance: .1},
		"every H100 is cordoned or drained":                        {GPUType: "H100", Disturbance: .1},
		"gpu3 is an emulated A100":                                 {GPUType: "A100", Disturbance: .1},
		"the python backend runs micro-models":                     {GPUType: "T4", Disturbance: .1, Python: true},
		"thread percentages are from 1 to 100":                     {GPUType: "T4", Disturbance: .1, Shares: []int{100, 101}},
		"nothing enforces shares on gpu2":                          {GPUType: "L4", Disturbance: .1, Shares: []int{50}},
	} {
		_, err := c.Device(t.Context(), order, func(calibration.Progress) {})
		require.ErrorIs(t, err, calibration.ErrRefused)
		require.ErrorContains(t, err, reason)
		_, err = c.Model(t.Context(), "m", order, func(calibration.Progress) {})
		require.ErrorContains(t, err, reason)
	}
	o.Driver = nil
	c, _, err = calibration.New(t.Context(), o)
	require.NoError(t, err)
	_, err = c.Device(t.Context(), calibration.Order{GPUType: "T4", Disturbance: .1}, func(calibration.Progress) {})
	require.ErrorContains(t, err, "conch starts no servers here")

	require.NoError(t, os.WriteFile(filepath.Join(o.Dir, "T4.bundle.json"), []byte("{}"), 0o600))
	_, _, err = calibration.New(t.Context(), o)
	require.ErrorContains(t, err, "remove it to calibrate again")
}

// leftover is a scratch server of an earlier conch.
type leftover struct {
	driver.Server
	ends chan error
}

func (l leftover) Kill(context.Context) error { return <-l.ends }

// finding is a driver that finds one.
type finding struct {
	driver.Driver
	leftover
}

func (f finding) Find(context.Context) ([]driver.Server, error) {
	return []driver.Server{f.leftover}, errors.New("a directory is in the way")
}

// TestWhatIsLeftHoldsUpNobody: conch starts and serves while a scratch server of an
// earlier one ends, or does not.
func TestWhatIsLeftHoldsUpNobody(t *testing.T) {
	o := options(t)
	o.Calibrated = func(string, string, uint32, []warmup.Timed) {}
	left := leftover{ends: make(chan error)}
	o.Driver = finding{o.Driver, left}
	c, _, err := calibration.New(t.Context(), o)
	require.NoError(t, err)
	order := calibration.Order{GPUType: "T4", Shares: []int{100}, Disturbance: .5}
	_, err = c.Model(t.Context(), "m", order, func(calibration.Progress) {})
	require.ErrorContains(t, err, "what is left of one ends")
	left.ends <- errors.New("it does not end")
	require.Eventually(t, func() bool {
		_, err = c.Model(t.Context(), "m", order, func(calibration.Progress) {})
		return !errors.Is(err, calibration.ErrRefused)
	}, time.Minute, 10*time.Millisecond)
	require.NoError(t, err)
}

func TestOneOrderAtATime(t *testing.T) {
	o := options(t)
	entered, leave := make(chan struct{}), make(chan struct{})
	var once sync.Once
	o.Used = func(string) bool {
		once.Do(func() {
			close(entered)
			<-leave
		})
		return false
	}
	o.Calibrated = func(string, string, uint32, []warmup.Timed) {}
	c, _, err := calibration.New(t.Context(), o)
	require.NoError(t, err)
	order := calibration.Order{GPUType: "L4", Disturbance: .5}
	done := make(chan error, 1)
	go func() {
		_, err := c.Model(t.Context(), "m", order, func(calibration.Progress) {})
		done <- err
	}()
	<-entered
	_, err = c.Model(t.Context(), "m", order, func(calibration.Progress) {})
	require.ErrorContains(t, err, "another calibration is under way")
	close(leave)
	require.NoError(t, <-done)
}
