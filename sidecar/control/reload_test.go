// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/policyhost"
)

// without is everywhere, but for one model, which it has no place for.
func without(model string, s *policy.Snapshot) (*policy.Plan, error) {
	p, err := everywhere(context.Background(), s)
	for _, part := range p.Partitions {
		part.Instances = slices.DeleteFunc(part.Instances, func(in *policy.Instance) bool { return in.GetModel() == model })
	}
	p.Dispatch = slices.DeleteFunc(p.Dispatch, func(d *policy.Dispatch) bool { return d.GetModel() == model })
	for _, m := range s.GetModels() {
		if m.GetName() == model {
			p.Unplaced = []*policy.Unplaced{{Model: model, Tried: 1, Text: "0/1 partitions: 1 unavailable; parameter placement names gpu9", Refusals: []*policy.Refusal{{Cause: policy.CauseUnavailable, Count: 1}}}}
		}
	}
	p.SnapshotRevision, p.Policy = s.GetRevision(), "fake"
	return p, err
}

// TestAReloadDoesNotUnloadAModelThatServes: what would leave it without a place is refused whole, with the policy's reason. A model that the
// operator does not want any more, one that does not serve, and one that the policy takes away in any case hold up no reload.
func TestAReloadDoesNotUnloadAModelThatServes(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		stop := r.start()
		defer stop()
		next := "policy: {name: next}\n"
		r.policies.try = func(name string, s *policy.Snapshot) (*policy.Plan, error) {
			if name == "next" {
				return without("b", s)
			}
			return everywhere(t.Context(), s)
		}
		err := r.Reload(t.Context(), settings(t, next))
		require.EqualError(t, err, "reload refused, nothing was changed: b, which serves, would have no place: b: 0/1 partitions: 1 unavailable; "+
			"parameter placement names gpu9. A model that is not to serve is unloaded first (tritonctl model unload), or has load: never")
		pass(time.Second)
		require.Equal(t, "static", r.policies.ref.Name)
		require.Equal(t, 1, r.reconciler.count(), "what served serves on")
		require.NotContains(t, r.kinds(), events.Reloaded)

		for _, allowed := range []string{"mode: advise\n" + next, next + "models: {b: {load: never}}", next + "models: {b: {load: demand}}"} {
			require.NoError(t, r.Reload(t.Context(), settings(t, allowed)), allowed)
			pass(time.Second)
			require.NoError(t, r.Reload(t.Context(), settings(t, "")))
			pass(time.Second)
		}
		r.reconciler.mu.Lock()
		r.reconciler.refuse = map[string]string{"b": "d1"}
		r.reconciler.mu.Unlock()
		require.NoError(t, r.Reload(t.Context(), settings(t, next)), "it serves nowhere")
		require.NoError(t, r.Reload(t.Context(), settings(t, "")))
		r.reconciler.mu.Lock()
		r.reconciler.refuse = nil
		r.reconciler.mu.Unlock()
		require.Error(t, r.Reload(t.Context(), settings(t, next)))

		r.policies.try = func(_ string, s *policy.Snapshot) (*policy.Plan, error) { return without("b", s) }
		require.NoError(t, r.Reload(t.Context(), settings(t, next)), "the present configuration leaves it without a place, too")
		r.policies.try = func(string, *policy.Snapshot) (*policy.Plan, error) { return nil, policyhost.ErrDeadline }
		require.NoError(t, r.Reload(t.Context(), settings(t, "")), "no answer takes nothing away")
	})
}

func TestARefusedReloadIsAnEvent(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		stop := r.start()
		defer stop()
		r.ReloadRefused(errors.New("conch.yaml: 1 problem\n  line 3: models.a.slo: -1s is negative"))
		e := r.lastEvent(events.ReloadRefused)
		require.Equal(t, "the configuration was not reloaded, the one before stays in force: conch.yaml: 1 problem line 3: models.a.slo: -1s is negative", e.Message)
		require.True(t, events.Grave(e.Kind))
	})
}

// TestAMisspeltModelIsAnEvent, at the start and at a reload that brings it, not at each import.
func TestAMisspeltModelIsAnEvent(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "models: {resnet5O: {slo: 5ms}, a: {slo: 5ms}}")
		r.repository.hold(model("a", "d1", 8), model("resnet50", "d1", 8))
		stop := r.start()
		defer stop()
		written := func() (n int) {
			for _, kind := range r.kinds() {
				if kind == events.ModelUnknown {
					n++
				}
			}
			return n
		}
		require.Equal(t, `conch.yaml: line 5: models.resnet5O: there is no such model, so that this says nothing; did you mean "resnet50"?`, r.lastEvent(events.ModelUnknown).Message)
		require.Equal(t, 1, written())
		require.NoError(t, r.Reload(t.Context(), settings(t, "models: {resnet5O: {slo: 7ms}}")))
		require.Equal(t, 1, written(), "it is known")
		require.NoError(t, r.Reload(t.Context(), settings(t, "models: {resnet50: {slo: 7ms}}")))
		require.Equal(t, 1, written())
		require.NoError(t, r.Reload(t.Context(), settings(t, "models: {x: {slo: 7ms}}")))
		require.Equal(t, "conch.yaml: line 5: models.x: there is no such model, so that this says nothing", r.lastEvent(events.ModelUnknown).Message)
	})
}

// TestAServerThatHasNotAnsweredMayHaveAModel, whether conch.yaml lists the servers or names a Service of a cluster.
func TestAServerThatHasNotAnsweredMayHaveAModel(t *testing.T) {
	for _, driver := range []string{"endpoints: [{grpc: one:8001}, {grpc: two:8001}, {grpc: three:8001}]", "service: {name: triton}"} {
		bubble.Test(t, func(t *testing.T) {
			c, err := config.Parse("conch.yaml", []byte("driver: {kind: attach, "+driver+"}\nmodels: {x: {slo: 50ms}}\n"))
			require.NoError(t, err)
			c.Provision(config.Environment{})
			attached := &servers{models: []*repo.Model{model("a", "d1", 8)}}
			f := &front{rig: newRigWith(t, c, attached, filepath.Join(t.TempDir(), "state.db")), servers: attached}
			two := (*f.nodes.Load())[0]
			three := proto.CloneOf(two)
			three.Gpus = append(three.Gpus, &policy.GPU{Id: "gpu2", Type: "T4"})
			f.nodes.Store(&[]*policy.Node{three})
			stop := f.start()
			defer stop()
			require.Empty(t, f.messages(events.ModelUnknown), "two of three servers have answered")
			f.nodes.Store(&[]*policy.Node{two})
			require.NoError(t, f.Reload(t.Context(), c))
			require.Len(t, f.messages(events.ModelUnknown), 1)
		})
	}
}

func TestATakeOverIsAnEvent(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		stop := r.start()
		defer stop()
		r.TakenOver(apply.TakeOver{Kept: []string{"gpu0", "gpu1"}, Missing: []string{"gpu2"}, Unwanted: []string{"gpu3"}})
		e := r.lastEvent(events.TakenOver)
		require.Equal(t, "2 running servers of the conch before taken over: gpu0, gpu1; 1 started anew: gpu2; 1 not in the plan: gpu3", e.Message)
		require.Equal(t, map[string]string{"kept": "2", "started_anew": "1", "unwanted": "1"}, e.Fields)
		r.TakenOver(apply.TakeOver{Unwanted: []string{"gpu3"}})
		require.Equal(t, "no running server of the conch before is as the plan has it; 1 not in the plan: gpu3", r.lastEvent(events.TakenOver).Message)
	})
}
