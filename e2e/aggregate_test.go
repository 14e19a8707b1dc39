// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

const versionsConfig = `backend: "python"
max_batch_size: 4
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 16 ] } ]
dynamic_batching { max_queue_delay_microseconds: 300 }
instance_group [ { kind: KIND_CPU } ]
`

// multiplier is a model.py that multiplies by a factor. It answers a negative input with an error and throws at one of -1000.
func multiplier(factor string) string {
	return strings.ReplaceAll(`import triton_python_backend_utils as pb
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for r in requests:
            x = pb.get_input_tensor_by_name(r, "INPUT").as_numpy()
            if x.min() <= -1000:
                raise RuntimeError("thrown")
            if x.min() < 0:
                answers.append(pb.InferenceResponse(error=pb.TritonError("negative")))
            else:
                answers.append(pb.InferenceResponse(output_tensors=[pb.Tensor("OUTPUT", (x * FACTOR).astype("float32"))]))
        return answers
`, "FACTOR", factor)
}

// write writes a file of a repository.
func write(t *testing.T, dir, path, content string) {
	t.Helper()
	full := filepath.Join(dir, filepath.FromSlash(path))
	require.NoError(t, os.MkdirAll(filepath.Dir(full), 0o755))
	require.NoError(t, os.WriteFile(full, []byte(content), 0o644))
}

// three serves the model times (versions 1, 2 and 5, which multiply by themselves, of which policy are served) and emulated on three
// partitions.
func three(t *testing.T, policy string) (*rig.Conch, string) {
	t.Helper()
	dir := repository(t, "emulated")
	write(t, dir, "times/config.pbtxt", versionsConfig+policy)
	for _, v := range []string{"1", "2", "5"} {
		write(t, dir, "times/"+v+"/model.py", multiplier(v))
	}
	return serve(t, rig.ConchOptions{Repository: dir, GPUs: 3, Settings: map[string]any{"modelControl": map[string]any{"clients": "files"}}}), dir
}

func times(version string, x float32) *tritonpb.ModelInferRequest {
	r := tensor("times", x)
	r.ModelVersion = version
	return r
}

func stringParameter(s string) *tritonpb.ModelRepositoryParameter {
	return &tritonpb.ModelRepositoryParameter{ParameterChoice: &tritonpb.ModelRepositoryParameter_StringParam{StringParam: s}}
}

// indexed is what the index says of a model: version, state, reason.
func indexed(t *testing.T, client tritonpb.GRPCInferenceServiceClient, model string) (all []string) {
	t.Helper()
	r, err := client.RepositoryIndex(t.Context(), &tritonpb.RepositoryIndexRequest{})
	require.NoError(t, err)
	for _, m := range r.Models {
		if m.Name == model {
			all = append(all, strings.TrimRight(m.Version+" "+m.State+" "+m.Reason, " "))
		}
	}
	return all
}

// Versions are served, counted, described and ready each for itself, on every partition.
func TestVersionsOverPartitions(t *testing.T) {
	t.Parallel()
	c, _ := three(t, "version_policy { specific { versions: [ 1, 5 ] } }\n")
	client := triton(t, c)
	ctx := t.Context()
	require.Equal(t, []string{"1 READY", "5 READY"}, indexed(t, client, "times"))
	for i := range 12 { // more than one for each partition
		for version, factor := range map[string]float32{"": 5, "1": 1, "5": 5} {
			r, err := client.ModelInfer(ctx, times(version, float32(i)))
			require.NoError(t, err)
			require.InDelta(t, float32(i)*factor, firstOutput(r), 0, "version %q", version)
		}
	}
	_, err := client.ModelInfer(ctx, times("2", 1))
	require.Equal(t, codes.NotFound, status.Code(err))
	require.Equal(t, "Request for unknown model: 'times' version 2 is not found", status.Convert(err).Message())
	for path, want := range map[string]int{"": 200, "/versions/1": 200, "/versions/5": 200, "/versions/2": 400} {
		code, body, err := get(t, "http://"+c.HTTP+"/v2/models/times"+path+"/ready")
		require.NoError(t, err)
		require.Equal(t, want, code, "%s: %s", path, body)
	}
	meta, err := client.ModelMetadata(ctx, &tritonpb.ModelMetadataRequest{Name: "times"})
	require.NoError(t, err)
	require.Equal(t, []string{"1", "5"}, meta.Versions)

	// Errors of the model: one in its answer, one thrown; refused ones do not count.
	for _, x := range []float32{-1, -1000} {
		_, err := client.ModelInfer(ctx, times("1", x))
		require.Error(t, err)
	}
	refused := times("1", 1)
	refused.Inputs[0].Name = "NOBODY"
	_, err = client.ModelInfer(ctx, refused)
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	counted := func(version string) *tritonpb.ModelStatistics {
		r, err := client.ModelStatistics(ctx, &tritonpb.ModelStatisticsRequest{Name: "times", Version: version})
		require.NoError(t, err)
		require.Len(t, r.ModelStats, 1)
		return r.ModelStats[0]
	}
	for version, want := range map[string][3]uint64{"1": {13, 1, 13}, "5": {24, 0, 24}} {
		s := counted(version)
		require.Equal(t, want[:2], []uint64{s.InferenceStats.Success.Count, s.InferenceStats.Fail.Count}, "version %s", version)
		require.Equal(t, want[0], s.InferenceStats.ComputeInfer.Count, "every success is charged, version %s", version)
		require.Equal(t, want[2], s.InferenceCount, "without warm-up, version %s", version)
		require.GreaterOrEqual(t, s.InferenceStats.Success.Ns, s.InferenceStats.Queue.Ns, "version %s", version)
	}
	m := scrape(t, c)
	require.EqualValues(t, 13, m.sum("nv_inference_request_success", "model=times", "version=1"))
	require.EqualValues(t, 24, m.sum("nv_inference_request_success", "model=times", "version=5"))
	require.EqualValues(t, 1, m.sum("nv_inference_request_failure", "model=times", "reason=BACKEND"))
	require.Len(t, m.labelled("nv_inference_request_success", "model=times"), 6, "two versions on three partitions")
	require.EqualValues(t, 4, m.sum("conch_requests_total", "model=times", "result=failed"), "what a caller saw fail has failed, refused or not")
	code, config, err := get(t, "http://"+c.HTTP+"/v2/models/times/config")
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, config, `"dynamic_batching":{"preferred_batch_size":[4],"max_queue_delay_microseconds":300,`)
}

// A model is loaded, overridden, spoilt, unloaded and loaded again, and a restart remembers it.
func TestLoadsAreRevisions(t *testing.T) {
	t.Parallel()
	c, dir := three(t, "")
	client := triton(t, c)
	ctx := t.Context()
	load := func(parameters map[string]*tritonpb.ModelRepositoryParameter) error {
		_, err := client.RepositoryModelLoad(ctx, &tritonpb.RepositoryModelLoadRequest{ModelName: "times", Parameters: parameters})
		return err
	}
	answers := func(want float32) {
		t.Helper()
		for range 9 {
			r, err := client.ModelInfer(ctx, times("", 2))
			require.NoError(t, err)
			require.InDelta(t, want, firstOutput(r), 0)
		}
	}
	answers(10)

	// New files, served everywhere once the load has returned; broken ones serve nowhere.
	write(t, dir, "times/5/model.py", multiplier("7"))
	answers(10)
	require.NoError(t, load(nil))
	answers(14)
	write(t, dir, "times/5/model.py", "raise RuntimeError('boom')\n")
	err := load(nil)
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.Contains(t, status.Convert(err).Message(), "load failed for model 'times': version 5 is at UNAVAILABLE state: Internal: RuntimeError: boom")
	answers(14)
	require.Equal(t, []string{"5 READY"}, indexed(t, client, "times"))
	write(t, dir, "times/5/model.py", multiplier("7"))

	// Files in place of the directory, until a plain load.
	const config = `{"backend":"python","max_batch_size":4,"input":[{"name":"INPUT","data_type":"TYPE_FP32","dims":[16]}],
		"output":[{"name":"OUTPUT","data_type":"TYPE_FP32","dims":[16]}],"instance_group":[{"kind":"KIND_CPU"}]}`
	file := &tritonpb.ModelRepositoryParameter{ParameterChoice: &tritonpb.ModelRepositoryParameter_BytesParam{BytesParam: []byte(multiplier("100"))}}
	err = load(map[string]*tritonpb.ModelRepositoryParameter{"file:3/model.py": file})
	require.Equal(t, codes.Internal, status.Code(err), "files need a config")
	require.NoError(t, load(map[string]*tritonpb.ModelRepositoryParameter{"config": stringParameter(config), "file:3/model.py": file}))
	answers(200)
	require.Equal(t, []string{"3 READY"}, ready(indexed(t, client, "times")))

	// It outlives the process.
	kill(t, c.Pid())
	<-c.Exited()
	require.NoError(t, c.Restart(ctx))
	answers(200)
	require.NoError(t, load(nil))
	answers(14)

	// A thrown-out model is answered as such, over a restart too.
	_, err = client.RepositoryModelUnload(ctx, &tritonpb.RepositoryModelUnloadRequest{ModelName: "times"})
	require.NoError(t, err)
	gone := func() {
		t.Helper()
		_, err = client.ModelInfer(ctx, times("", 2))
		require.Equal(t, "Request for unknown model: 'times' has no available versions", status.Convert(err).Message())
		_, err = client.ModelInfer(ctx, times("5", 2))
		require.Equal(t, "Request for unknown model: 'times' version 5 is not at ready state", status.Convert(err).Message())
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.Eventually(t, func() bool {
			all := indexed(t, client, "times")
			return len(all) == 1 && all[0] == "5 UNAVAILABLE unloaded"
		}, 30*time.Second, 20*time.Millisecond)
	}
	gone()
	require.NoError(t, load(nil))
	answers(14)

	revisions, err := admin(t, c).Revisions(ctx)
	require.NoError(t, err)
	var orders []string
	for _, r := range revisions {
		orders = append(orders, r.Author+": "+r.Reason)
	}
	require.Subset(t, orders, []string{"client: load of times", "conch: load of times failed", "client: load of times with files", "client: unload of times"})
}

// ready keeps the versions that are.
func ready(all []string) (some []string) {
	for _, version := range all {
		if strings.HasSuffix(version, " READY") {
			some = append(some, version)
		}
	}
	return some
}

// While a model is loaded again and again, no request of it or of another fails, and every answer is of one of its versions.
func TestReloadUnderLoad(t *testing.T) {
	t.Parallel()
	c, dir := three(t, "")
	client := triton(t, c)
	stop := make(chan struct{})
	var callers sync.WaitGroup
	errs := make(chan error, 4)
	seen := make([]map[float32]int, 4)
	for i := range seen {
		seen[i] = map[float32]int{}
		callers.Go(func() {
			for ended := false; !ended; { // the last request is sent once the last version serves
				select {
				case <-stop:
					ended = true
				default:
				}
				r, err := client.ModelInfer(t.Context(), times("", 1))
				if err != nil {
					errs <- err
					return
				}
				seen[i][firstOutput(r)]++
			}
		})
	}
	other := underLoad(t, c, 100, func() {
		for _, factor := range []int{6, 7, 8} {
			write(t, dir, "times/5/model.py", multiplier(strconv.Itoa(factor)))
			_, err := client.RepositoryModelLoad(t.Context(), &tritonpb.RepositoryModelLoadRequest{ModelName: "times"})
			require.NoError(t, err)
			r, err := client.ModelInfer(t.Context(), times("", 1))
			require.NoError(t, err)
			require.InDelta(t, factor, firstOutput(r), 0, "new files serve once the load has returned")
		}
	})
	close(stop)
	callers.Wait()
	select {
	case err := <-errs:
		require.NoError(t, err, "a request of the model that was loaded again")
	default:
	}
	requireAllAnswered(t, other)
	for _, s := range seen {
		for value := range s {
			require.Contains(t, []float32{5, 6, 7, 8}, value)
		}
		require.NotZero(t, s[8])
	}
}

// Settings and regions are set on all three servers, or on none.
func TestSettingsOverPartitions(t *testing.T) {
	t.Parallel()
	c, _ := three(t, "")
	client := triton(t, c)
	ctx := t.Context()
	connect := func(address string) tritonpb.GRPCInferenceServiceClient {
		conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, conn.Close()) })
		return tritonpb.NewGRPCInferenceServiceClient(conn)
	}
	direct := func() (levels []uint32, regions int) {
		for _, p := range partitions(t, admin(t, c)) {
			partition := connect(p.GRPC)
			r, err := partition.LogSettings(ctx, &tritonpb.LogSettingsRequest{})
			require.NoError(t, err)
			levels = append(levels, r.Settings["log_verbose_level"].GetUint32Param())
			s, err := partition.SystemSharedMemoryStatus(ctx, &tritonpb.SystemSharedMemoryStatusRequest{})
			require.NoError(t, err)
			regions += len(s.Regions)
		}
		return levels, regions
	}
	setting := func(level uint32, format string) error {
		r := &tritonpb.LogSettingsRequest{Settings: map[string]*tritonpb.LogSettingsRequest_SettingValue{
			"log_verbose_level": {ParameterChoice: &tritonpb.LogSettingsRequest_SettingValue_Uint32Param{Uint32Param: level}},
			"log_format":        {ParameterChoice: &tritonpb.LogSettingsRequest_SettingValue_StringParam{StringParam: format}},
		}}
		_, err := client.LogSettings(ctx, r)
		return err
	}
	require.NoError(t, setting(1, "default"))
	levels, _ := direct()
	require.Equal(t, []uint32{1, 1, 1}, levels)
	require.Equal(t, "invalid argument for log_format, got: nonsense", status.Convert(setting(2, "nonsense")).Message())
	levels, _ = direct()
	require.Equal(t, []uint32{1, 1, 1}, levels, "not half of it")
	require.NoError(t, setting(0, "default"))

	region := filepath.Join("/dev/shm", filepath.Base(c.State)+"-"+filepath.Base(filepath.Dir(c.State)))
	require.NoError(t, os.WriteFile(region, make([]byte, 64), 0o600))
	t.Cleanup(func() { require.NoError(t, os.Remove(region)) })
	register := func(size uint64) error {
		_, err := client.SystemSharedMemoryRegister(ctx, &tritonpb.SystemSharedMemoryRegisterRequest{Name: "r", Key: "/" + filepath.Base(region), ByteSize: size})
		return err
	}
	require.Error(t, register(640), "larger than it is")
	_, regions := direct()
	require.Zero(t, regions)
	require.NoError(t, register(64))
	_, regions = direct()
	require.Equal(t, 3, regions)
	all, err := client.SystemSharedMemoryStatus(ctx, &tritonpb.SystemSharedMemoryStatusRequest{})
	require.NoError(t, err)
	require.Len(t, all.Regions, 1)
	_, err = client.SystemSharedMemoryUnregister(ctx, &tritonpb.SystemSharedMemoryUnregisterRequest{})
	require.NoError(t, err)
	_, regions = direct()
	require.Zero(t, regions)
}
