// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/observe"
)

// shown is what the admin API answers of a loop, path by path, as its clients get it.
func (r *rig) shown() []byte {
	handler := admin.NewHandler(admin.Of(r.Control, nil, nil), nil, slog.New(slog.DiscardHandler))
	var all bytes.Buffer
	for _, path := range []string{
		"/v1/ready", "/v1/models", "/v1/models/nobody", "/v1/gpus", "/v1/partitions/gpu1", "/v1/partitions/gpu9",
		"/v1/plan/explain/broken", "/v1/plan/explain/nobody", "/v1/partitions/gpu0/log",
	} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		fmt.Fprintf(&all, "%s %d\n", path, w.Code)
		require.NoError(r.t, json.Indent(&all, w.Body.Bytes(), "", " "))
		all.WriteByte('\n')
	}
	return snapshotRevision.ReplaceAll(all.Bytes(), []byte("snapshot N"))
}

// snapshotRevision counts how often a loop looked, which depends on what it found at once.
var snapshotRevision = regexp.MustCompile(`snapshot \d+`)

// TestWhatOperatorsSeeStaysTheSame: programs read it. UPDATE_GOLDEN=1 writes the files anew.
func TestWhatOperatorsSeeStaysTheSame(t *testing.T) {
	for name, see := range map[string]func(*testing.T) []byte{"own": ownShown, "attached": attachedShown} {
		t.Run(name, func(t *testing.T) {
			var is []byte
			bubble.Test(t, func(t *testing.T) { is = see(t) })
			golden := filepath.Join("testdata", "shown-"+name+".txt")
			if os.Getenv("UPDATE_GOLDEN") != "" {
				require.NoError(t, os.WriteFile(golden, is, 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), string(is))
		})
	}
}

// ownShown is of servers of conch's own: models in every state, one server dead, one GPU cordoned. Nothing is
// learnt: what curves say of it has tests of its own.
func ownShown(t *testing.T) []byte {
	r := newRig(t, "models: {a: {slo: 25ms, late: drop, memory: 1GiB}, never: {load: never}}")
	broken, unloaded := model("broken", "d1", 1), model("unloaded", "d1", 1)
	broken.Problems = []repo.Problem{{Severity: repo.SeverityError, File: "broken/config.pbtxt", Line: 3, Text: "no such field"}}
	unloaded.Unloaded = true
	r.repository.hold(model("a", "d1", 8), model("b", "d1", 0), broken, model("failing", "bad", 4), model("never", "d1", 1), unloaded, model("unplaced", "d1", 1), model("forgotten", "d1", 1))
	r.reconciler.refuse = map[string]string{"failing": "bad"}
	r.policies.set(func(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
		p, err := everywhere(ctx, s)
		for _, part := range p.Partitions {
			part.Instances, part.ThreadPercentage = part.Instances[:3], 60
		}
		p.Partitions[1].Instances, p.Partitions[1].MemoryLimitBytes = p.Partitions[1].Instances[:2], 1<<33
		p.Dispatch = p.Dispatch[:3]
		p.Unplaced = []*policy.Unplaced{{Model: "unplaced", Tried: 2, Text: "0/2 partitions: 2 memory", Refusals: []*policy.Refusal{{Cause: "memory", Count: 2}}},
			{Model: "forgotten", Tried: 2, Text: "0/2 partitions: 2 latency", Refusals: []*policy.Refusal{{Cause: "latency", Count: 2}}}}
		return p, err
	})
	before := r.shown()
	defer r.start()()
	for range 10 {
		now := time.Now()
		r.recorder.Arrived("a", 2, now)
		r.recorder.Busy("gpu0", now, now.Add(5*time.Millisecond))
		r.recorder.Executed(observe.Execution{Model: "a", Partition: "gpu0", GPUType: "T4", ThreadPercentage: 60, Rows: 2, Requests: 1, Shared: true, Start: now, End: now.Add(5 * time.Millisecond)})
		r.recorder.Finished(observe.Outcome{Model: "a", Result: observe.OK, Latency: 6 * time.Millisecond, Rows: 2, Batch: 2, At: now.Add(6 * time.Millisecond)})
		pass(20 * time.Millisecond)
	}
	r.recorder.Finished(observe.Outcome{Model: "a", Result: observe.Late, Latency: 60 * time.Millisecond, Rows: 2, Batch: 2, At: time.Now()})
	_, err := r.Cordon(t.Context(), api.CordonRequest{GPU: "gpu1", Author: "ada", Reason: "it is hot"})
	require.NoError(t, err)
	r.reconciler.setDown("gpu0", true)
	synctest.Wait() // for the plan that follows
	return bytes.Join([][]byte{before, r.shown()}, []byte("----\n"))
}

// attachedShown is of servers that others run.
func attachedShown(t *testing.T) []byte {
	f := newFront(t, "")
	defer f.start()()
	return f.shown()
}

// TestReadinessSaysWhatHasNoPlace: a model that Triton would refuse, and one that the policy has no place for. One that loads on demand, is unloaded or
// is never loaded lacks nothing.
func TestReadinessSaysWhatHasNoPlace(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "models: {c: {load: demand}, d: {load: never}}")
		broken := model("broken", "d1", 1)
		broken.Problems = []repo.Problem{{Severity: repo.SeverityError, File: "broken/config.pbtxt", Line: 3, Text: "no such field"}}
		r.repository.hold(model("a", "d1", 8), model("b", "d1", 8), broken, model("c", "d1", 8), model("d", "d1", 8))
		r.policies.set(func(_ context.Context, s *policy.Snapshot) (*policy.Plan, error) {
			p, err := without("b", s)
			for _, part := range p.Partitions {
				part.Instances = slices.DeleteFunc(part.Instances, func(in *policy.Instance) bool { return in.GetModel() == "c" })
			}
			p.Dispatch = slices.DeleteFunc(p.Dispatch, func(d *policy.Dispatch) bool { return d.GetModel() == "c" })
			p.Unplaced = append(p.Unplaced, &policy.Unplaced{Model: "c", Refusals: []*policy.Refusal{{Cause: policy.CauseOnDemand, Count: 1}}})
			return p, err
		})
		stop := r.start()
		defer stop()
		without := r.Readiness().Without
		require.Len(t, without, 2)
		require.Contains(t, without["broken"], "no such field")
		require.Contains(t, without["b"], "no place: 0/1 partitions: 1 unavailable")
		checks := r.Ready()
		require.True(t, checks[len(checks)-1].OK, "a serves")
		require.Contains(t, checks[len(checks)-1].Reason, "2 of 3 models serve nowhere: b: no place")
	})
}
