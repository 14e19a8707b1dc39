// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cmd_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/sim/workload"
	"github.com/conch-serving/conch/sidecar/watch"
	"github.com/conch-serving/conch/tritonctl/cmd"
	"github.com/conch-serving/conch/tritonctl/factory"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"tritonctl": func() {
			f := factory.New()
			f.Author = "ada"
			f.Now = func() time.Time { return at(59) }
			f.Open = func(path string) error {
				_, err := fmt.Println("opened", path)
				return err
			}
			os.Exit(cmd.Run(context.Background(), f, os.Args[1:]))
		},
	})
}

// TestScripts runs every script against the real admin server over a small
// made-up world.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			// A unix socket's path is bounded to about 100 bytes, $WORK is longer.
			dir, err := os.MkdirTemp("", "tctl")
			if err != nil {
				return err
			}
			address := "unix://" + filepath.Join(dir, "admin.sock")
			l, err := admin.Listen(address)
			if err != nil {
				return err
			}
			server := &http.Server{Handler: handler(&world{revision: 7, logs: e.WorkDir})}
			done := make(chan struct{})
			go func() {
				defer close(done)
				if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
					t.Error(err)
				}
			}()
			e.Defer(func() {
				_ = server.Close()
				<-done
				_ = os.RemoveAll(dir)
			})
			e.Setenv(factory.AddressVariable, address)
			return nil
		},
	})
}

// handler serves a conch and its stream of state.
func handler(conch admin.API) http.Handler {
	silent := slog.New(slog.DiscardHandler)
	sources := admin.Sources(conch)
	for _, none := range []api.Topic{api.TopicRequests, api.TopicMinutes, api.TopicWaiting} { // they come from the request path
		sources = append(sources, watch.Source{Topic: none, State: func() ([]watch.Object, error) { return nil, nil }})
	}
	return admin.NewHandler(conch, watch.New(watch.Options{Sources: sources, Epoch: "e", Period: 20 * time.Millisecond, Now: time.Now, Logger: silent}), silent)
}

// world is an API with two models on one GPU. A plan that starts a second
// partition is proposed until it is applied.
type world struct {
	admin.API
	revision uint64
	applied  bool
	pin      *api.Pin
	cordon   *api.Cordon
	logs     string // directory of the servers' logs
	mended   bool
	// collected: old revisions are gone.
	collected bool
	// released: the attached servers were given back.
	released bool
}

func at(second int) time.Time { return time.Date(2026, 1, 2, 3, 4, second, 0, time.UTC) }

func (w *world) Version(context.Context) (api.Version, error) {
	return api.Version{Version: "v0.1.0", Commit: "c0ffee", Go: "go1.26", Mode: "control", Driver: "embedded"}, nil
}

func (w *world) Models(context.Context) ([]api.Model, error) {
	return []api.Model{
		{Name: "bert", State: "unplaced", StateReason: "0/1 partitions: 1 memory", SLOSeconds: .05, Batchable: true, Discipline: "adaptive", Partitions: []string{}},
		{Name: "counter", State: "ready", SLOSeconds: .1, PassThroughReason: "sequence batching", Partitions: []string{"gpu0"}, Rate: 3, Goodput: 3},
	}, nil
}

func (w *world) Glance(ctx context.Context) ([]api.Model, error) { return w.Models(ctx) }
func (w *world) Ready(context.Context) (api.Health, error)       { return api.Health{OK: true}, nil }

func (w *world) Model(ctx context.Context, name string) (api.Model, error) {
	models, _ := w.Models(ctx)
	for _, m := range models {
		if m.Name == name {
			m.Conditions = conditions(api.ConditionReady, "")
			m.Profiles = []api.Profile{{GPUType: "A100", Source: "calibrated", Usable: true, Points: []api.ProfilePoint{{Batch: 4, ThreadPercentage: 100, LatencySeconds: .0062, LatencyUpperSeconds: .0064, Observations: 12}}}}
			return m, nil
		}
	}
	return api.Model{}, &api.Error{Code: api.CodeNotFound, Message: `model "` + name + `" is not in the repository; see tritonctl model ls`}
}

// conditions are those of something that is ready, or of which one other condition
// holds for a reason.
func conditions(holds api.ConditionType, message string) []api.Condition {
	all := []api.Condition{
		{Type: api.ConditionReady, Since: at(1)}, {Type: api.ConditionProgressing, Since: at(1)}, {Type: api.ConditionDegraded, Since: at(1)},
	}
	for i := range all {
		if all[i].Type == holds {
			all[i].Holds, all[i].Message = true, message
			if message != "" {
				all[i].Reason, all[i].Attempts, all[i].RetryAt = "failing", 3, at(30)
			}
		}
	}
	return all
}

func (w *world) GPUs(ctx context.Context) ([]api.GPU, error) {
	partitions, err := w.Partitions(ctx)
	return []api.GPU{{ID: "gpu0", Node: "a", Type: "A100", MemoryBytes: 80 << 30, Emulated: true, Cordon: w.cordon, Partitions: partitions[:1]}, {ID: "gpu1", Node: "b", Type: "A100", MemoryBytes: 80 << 30, Emulated: true, Partitions: partitions[1:2]}}, err
}

func (w *world) Partitions(context.Context) ([]api.Partition, error) {
	return []api.Partition{
		{
			ID: "gpu0", GPU: "gpu0", ThreadPercentage: 100, Up: true, GRPC: "127.0.0.1:9001", Models: []string{"counter"}, Serving: []string{"counter"}, BusyShare: .25,
			Started: at(1), Restarts: 2, Log: "/var/lib/conch/servers/gpu0/log", ShareReason: "the GPU is emulated", Conditions: conditions(api.ConditionReady, ""),
		},
		{
			ID: "gpu1", GPU: "gpu1", ThreadPercentage: 40, Up: true, GRPC: "127.0.0.1:9002", Models: []string{"vgg"}, Serving: []string{}, Started: at(1),
			Conditions: conditions(api.ConditionDegraded, "vgg: no module named torch"),
		},
		{ID: "gpu1", Retiring: true, Up: true, Models: []string{}, Serving: []string{"vgg"}, Conditions: []api.Condition{}},
	}, nil
}

func (w *world) Partition(ctx context.Context, id string) (api.Partition, error) {
	all, _ := w.Partitions(ctx)
	for _, p := range all {
		if p.ID == id {
			return p, nil
		}
	}
	return api.Partition{}, &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("not found: the serving plan has no partition %q; tritonctl partition ls shows those there are", id)}
}

func (w *world) Cordon(ctx context.Context, r api.CordonRequest) (api.CordonResult, error) {
	if r.GPU != "gpu0" {
		return api.CordonResult{}, &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("not found: no GPU is called %q; there are gpu0, gpu1", r.GPU)}
	}
	if !r.DryRun {
		w.cordon = &api.Cordon{Drain: r.Drain, Author: r.Author, Reason: r.Reason, Since: at(6)}
	}
	if r.Undo {
		w.cordon = nil
	}
	gpus, err := w.GPUs(ctx)
	out := api.CordonResult{GPU: gpus[0]}
	if r.Drain {
		out.Diff = &api.Diff{FromRevision: w.revision, Text: "- gpu0: 100% of gpu0 (drain, then stop)\n    - counter\n"}
	}
	return out, err
}

func (w *world) Release(_ context.Context, r api.ReleaseRequest) (api.ReleaseResult, error) {
	out := api.ReleaseResult{DryRun: r.DryRun, Mode: "control"}
	if !w.released {
		out.Changes = []api.Released{{Endpoint: "localhost:8001", Model: "resnet", Change: "dynamic_batching as before"}}
	}
	if !r.DryRun && !r.Undo {
		w.released, out.Mode = true, "observe"
	}
	if r.Undo {
		w.released, out.Changes = false, nil
	}
	return out, nil
}

func (w *world) Restart(ctx context.Context, r api.RestartRequest) (api.Partition, error) {
	return w.Partition(ctx, r.Partition)
}

func (w *world) LogFile(ctx context.Context, partition string) (string, error) {
	_, err := w.Partition(ctx, partition)
	return filepath.Join(w.logs, partition+".log"), err
}

func (w *world) OrderModel(ctx context.Context, r api.ModelRequest) (api.Model, error) {
	m, err := w.Model(ctx, r.Model)
	if m.State = api.ModelReady; r.Unload {
		m.State, m.StateReason = api.ModelUnloaded, "unloaded by order; load it to serve it again"
	}
	return m, err
}

func (w *world) GPUAdvice(context.Context) (api.GPUAdvice, error) {
	if w.applied {
		return api.GPUAdvice{Action: api.AdviceUnknown, Reason: "too few requests"}, nil
	}
	first, second := 0, 1
	return api.GPUAdvice{
		Action: api.AdviceRelease, Number: 2, Release: []string{"gpu2", "gpu1"}, Reason: "release 2 (gpu2, gpu1): 2 GPUs idle for 60.0% of the time, with 0.0% bad; gpu2 has no partition",
		IdleShare: .6, Requests: 12_000, Seconds: 5,
		GPUs: []api.GPUIdle{{ID: "gpu0", Rank: &first, IdleShare: .25}, {ID: "gpu1", Rank: &second, IdleShare: .95, Release: true}, {ID: "gpu2", IdleShare: 1, Release: true}},
	}, nil
}

func (w *world) Plan(context.Context) (api.Plan, error) {
	return api.Plan{Revision: w.revision, Policy: "static", AppliedAt: at(1), AppliedBy: "conch", Pin: w.pin, Conditions: conditions(api.ConditionDegraded, "the API server has not answered since 2026-01-02T03:04:05Z"), Plan: []byte(
		`{"snapshot_revision":"3","partitions":[{"id":"gpu0","gpus":["gpu0"],"thread_percentage":100,"instances":[{"model":"counter"}]}],"unplaced":[{"model":"bert","text":"0/1 partitions: 1 memory"}]}`)}, nil
}

// proposed is the plan file of the next plan.
func (w *world) proposed() *api.PlanFile {
	return &api.PlanFile{Kind: api.PlanFileKind, Basis: api.PlanBasis{Plan: w.revision, Models: map[string]api.ModelBasis{"counter": {Revision: "d1", SLOSeconds: .1}}}, Plan: []byte(`{"partitions":[{"id":"gpu1","gpus":["gpu1"],"thread_percentage":100}]}`)}
}

func (w *world) Diff(_ context.Context, r api.DiffRequest) (api.Diff, error) {
	text := "start gpu1: 100% of gpu1\n"
	switch {
	case w.applied:
		return api.Diff{FromRevision: w.revision, Empty: true, Changes: []api.Change{}}, nil
	case r.RollbackLast || r.Rollback == 5:
		text = "~ gpu0: 50% of gpu0 -> 100% of gpu0, rank 0 (there is no room for both: drain and stop the old process, then start this one; requests for counter wait meanwhile)\n"
	case r.Rollback > 0:
		return api.Diff{}, &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("not found: no such plan in the history: %d; tritonctl plan history shows those there are", r.Rollback)}
	case r.File != nil && r.File.Basis.Plan != w.revision:
		return api.Diff{}, &api.Error{Code: api.CodeConflict, Message: fmt.Sprintf("another plan serves by now: the plan in the file is for another state than the present one: plan %d serves and plan %d did when the file was made", w.revision, r.File.Basis.Plan)}
	case r.File != nil && strings.Contains(string(r.File.Plan), "120"):
		return api.Diff{FromRevision: w.revision, Text: text, Violations: []api.Violation{{Code: "share", Subject: "gpu1", Text: "120% of one GPU"}}}, nil
	}
	return api.Diff{FromRevision: w.revision, Text: text, Changes: []api.Change{{Action: "start", Partition: "gpu1"}}, Proposed: w.proposed()}, nil
}

func (w *world) Apply(ctx context.Context, r api.ApplyRequest) (api.ApplyResult, error) {
	if r.IfRevision != 0 && r.IfRevision != w.revision {
		return api.ApplyResult{}, &api.Error{Code: api.CodeConflict, Message: "plan 7 serves, not 6; look at tritonctl plan diff again"}
	}
	if r.Reason == "nonsense" {
		return api.ApplyResult{}, &api.Error{Code: api.CodeRefused, Message: "the plan was refused", Violations: []api.Violation{{Code: "share", Subject: "gpu0", Text: "120% of one GPU"}}}
	}
	if w.pin != nil {
		return api.ApplyResult{}, &api.Error{Code: api.CodeRefused, Message: "refused: plan 8 is pinned by ada; tritonctl plan unpin lets another take its place"}
	}
	d, err := w.Diff(ctx, r.DiffRequest)
	if err != nil {
		return api.ApplyResult{}, err
	}
	w.applied, w.revision = true, w.revision+1
	if r.Pin {
		w.pin = &api.Pin{Author: r.Author, Reason: r.Reason, Since: at(5)}
	}
	p, _ := w.Plan(ctx)
	return api.ApplyResult{Changed: true, Plan: p, Diff: d, Seconds: 1.25}, nil
}

func (w *world) Pin(ctx context.Context, r api.PinRequest) (api.Plan, error) {
	w.pin = &api.Pin{Author: r.Author, Reason: r.Reason, Since: at(5)}
	if r.Unpin {
		w.pin = nil
	}
	return w.Plan(ctx)
}

func (w *world) History(ctx context.Context) ([]api.PlanRecord, error) {
	now, _ := w.Plan(ctx)
	return []api.PlanRecord{
		{Plan: now, Summary: "1 partition started", Repository: "r2", Current: true},
		{Plan: api.Plan{Revision: 5, Policy: "nexus", AppliedAt: at(0), AppliedBy: "conch", Reason: "start", Plan: []byte("{}")}, Summary: "1 partition started", Repository: "r1"},
	}, nil
}

func (w *world) Explain(_ context.Context, model string) (api.Explanation, error) {
	return api.Explanation{Model: model, Text: model + " is not placed: 0/1 partitions: 1 memory\n"}, nil
}

func (w *world) Policies(context.Context, bool) ([]api.Policy, error) {
	return []api.Policy{{Name: "static", Builtin: true, InUse: true, Version: "1", State: "running", Summary: "What conch.yaml says."}}, nil
}

func (w *world) Policy(_ context.Context, name string, describe bool) (api.Policy, error) {
	if name != "static" && !describe {
		return api.Policy{Name: name}, nil // it would have to be started and asked
	}
	return api.Policy{Name: name, Version: "1", Summary: "What conch.yaml says.", Disciplines: []string{"adaptive", "flex"}, Parameters: []api.PolicyParameter{{Name: "discipline", Type: "string", Default: "adaptive", Value: "eager", Documentation: "How requests are dispatched.", Values: []string{"adaptive", "flex"}}}}, nil
}

func (w *world) UsePolicy(_ context.Context, r api.UsePolicyRequest) (api.Policy, error) {
	if r.Name != "static" {
		return api.Policy{}, &api.Error{Code: api.CodeNotFound, Message: `no policy is called "` + r.Name + `"; tritonctl policy ls shows those there are`}
	}
	return api.Policy{Name: r.Name, Version: "1 with discipline=" + r.Parameters["discipline"]}, nil
}

func (w *world) Events(_ context.Context, since uint64) ([]api.Event, error) {
	events := []api.Event{
		{ID: 1, Time: at(1), Kind: "started", Author: "conch", Message: "conch serves"},
		{ID: 2, Time: at(2), Kind: "plan_applied", Author: "ada", Reason: "more load", Message: "plan 7 serves", Seconds: 1.25, Fields: map[string]string{"diff": "+ gpu1: 100% of gpu1, rank 1\n    + counter, batch 8\n"}},
		{ID: 3, Time: at(50), Kind: "degraded", Author: "conch", Message: "model bert: gpu1: no module named torch", Fields: map[string]string{"model": "bert"}},
	}
	return events[min(since, 3):], nil
}

// Measure is counter on a server of 5 ms a batch and 1 ms a row.
func (w *world) Measure(_ context.Context, r api.MeasureRequest) ([]api.Measured, error) {
	if r.Share > .5 {
		return nil, &api.Error{Code: api.CodeInvalid, Message: "the share of a server's time is above 0 and at most .5"}
	}
	return []api.Measured{
		{Model: "bert", GPUType: "A100", Partition: "gpu0", Skipped: "input \"IDS\" has a dimension that varies"},
		{Model: "counter", GPUType: "A100", Partition: "gpu0", Batches: []api.MeasuredBatch{{Rows: 1, Seconds: .006, Repeats: r.Repeats}, {Rows: 16, Seconds: .021, Repeats: r.Repeats}}},
	}, nil
}

// Calibrate measures counter, and micro-models on an A100.
func (w *world) Calibrate(_ context.Context, r api.CalibrateRequest, progress func(api.CalibrateProgress)) (api.Calibrated, error) {
	progress(api.CalibrateProgress{Share: 100, All: 61, What: "conv_64_32_3_1"})
	switch {
	case r.Disturbance > .5:
		return api.Calibrated{}, &api.Error{Code: api.CodeRefused, Message: "calibration refused: a disturbance of 0.9: it is above 0 and at most 0.5"}
	case r.Model != "":
		return api.Calibrated{GPUType: "A100", Shares: []api.CalibratedShare{{ThreadPercentage: 50, Batches: []api.MeasuredBatch{{Rows: 4, Seconds: .009, Repeats: 8}}}}}, nil
	}
	return api.Calibrated{GPUType: "A100", Server: "triton 2.51", Measurements: 180, Median: .06, P90: .2, Bundle: json.RawMessage(`{"version":1}`)}, nil
}

// VerifyMerge finds that any two models are what their merge is.
func (w *world) VerifyMerge(_ context.Context, r api.MergeVerifyRequest, progress func(api.MergeProgress)) (api.MergeVerified, error) {
	progress(api.MergeProgress{Done: 3, All: 16, What: "batch of 2 and 3 rows"})
	return api.MergeVerified{Members: r.Members, Runner: "triton 2.51", Runs: 16, MaxDifference: 1e-7, Bound: r.Bound, SharedBytes: 3 << 20, MergedBytes: 5 << 20, SeparateBytes: 8 << 20}, nil
}

// Snapshot is counter alone, with a measured profile, at rate requests per second.
func (w *world) Snapshot(context.Context) (json.RawMessage, error) {
	return json.RawMessage(`{"revision":"3","models":[{"name":"counter","slo_us":"25000","max_batch_size":32,"batchable":true,"rate":300,"row_rate":300,"burstiness":1}],
"nodes":[{"name":"n","gpus":[{"id":"gpu0","type":"A100"},{"id":"gpu1","type":"A100","index":1}]}],
"profiles":[{"model":"counter","gpu_type":"A100","usable":true,"source":"PROFILE_SOURCE_CALIBRATED","points":[
{"batch":1,"thread_percentage":100,"latency_us":{"value":6000},"latency_upper_us":6000},{"batch":32,"thread_percentage":100,"latency_us":{"value":37000},"latency_upper_us":37000}]}],
"observations":[{"partition":"gpu0","model":"counter","row_rate":180,"mean_batch":4,"busy_share":0.4,"latency_p50_us":9100,"latency_p99_us":9900,"ready":true},{"partition":"gpu1","model":"counter","condition":"killed"}],
"current":{"partitions":[{"id":"gpu0","node":"n","gpus":["gpu0"],"thread_percentage":100,"instances":[{"model":"counter"}]},{"id":"gpu1","node":"n","gpus":["gpu1"],"thread_percentage":100,"instances":[{"model":"counter"}]}]}}`), nil
}

// Record is a request every 4 ms for two seconds, whatever was asked.
func (w *world) Record(_ context.Context, out io.Writer) (api.Recorded, error) {
	t, err := workload.NewWriter(out, workload.Header{Start: at(1), Source: "a test"})
	if err != nil {
		return api.Recorded{}, err
	}
	m, err := t.Model(workload.TraceModel{Name: "counter", SLO: 25 * time.Millisecond})
	if err != nil {
		return api.Recorded{}, err
	}
	for i := range 500 {
		if err := t.Write(workload.Arrival{At: time.Duration(i) * 4 * time.Millisecond, Model: m, Rows: 1, Bytes: 600}); err != nil {
			return api.Recorded{}, err
		}
	}
	return api.Recorded{Requests: 500, Lost: 3}, t.Flush()
}
