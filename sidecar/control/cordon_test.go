// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/control/events"
)

// available puts every model on every GPU that may be used.
func available(ctx context.Context, s *policy.Snapshot) (*policy.Plan, error) {
	out, err := everywhere(ctx, s)
	var kept []*policy.Partition
	for _, p := range out.Partitions {
		if g := policy.NewIndex(s).GPUOf(p); !g.GetUnavailable() {
			kept = append(kept, p)
		}
	}
	out.Partitions = kept
	return out, err
}

// places are the GPUs that have partitions.
func (r *rig) places() (gpus []string) {
	for _, p := range r.CurrentPlan().GetPartitions() {
		gpus = append(gpus, p.GPU())
	}
	return gpus
}

func TestADrainedGPUIsLeft(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "state.db")
		r := newRigOn(t, "interval: 10s\n", path)
		r.policies.set(available)
		stop := r.start()
		require.Equal(t, []string{"gpu0", "gpu1"}, r.places())

		would, err := r.Cordon(t.Context(), api.CordonRequest{GPU: "gpu1", Drain: true, DryRun: true})
		require.NoError(t, err)
		require.Len(t, would.Diff.Stop, 1)
		require.Nil(t, r.GPUs()[1].Cordon)
		did, err := r.Cordon(t.Context(), api.CordonRequest{GPU: "gpu1", Drain: true, Author: "ada", Reason: "fan"})
		require.NoError(t, err)
		require.Len(t, did.Diff.Stop, 1)
		require.Equal(t, []string{"gpu0"}, r.places())
		require.Equal(t, "ada", r.GPUs()[1].Cordon.Author)
		require.Equal(t, "fan", r.lastEvent(events.GPUDrained).Reason)
		desired := r.reconciler.last()
		require.Equal(t, "drained", desired.Snapshot.GetNodes()[0].GetGpus()[1].GetUnavailableReason(), "a policy sees why")
		stop()

		r = newRigOn(t, "interval: 10s\n", path)
		r.policies.set(available)
		r.reconciler.resume = &desired
		stop = r.start()
		defer stop()
		pass(time.Minute)
		require.Equal(t, []string{"gpu0"}, r.places(), "a restart gives nothing back")
		_, err = r.Cordon(t.Context(), api.CordonRequest{GPU: "gpu1", Undo: true})
		require.NoError(t, err)
		pass(time.Second)
		require.Equal(t, []string{"gpu0", "gpu1"}, r.places())
	})
}

func TestACordonedGPUTakesNothingNew(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		r.policies.set(available)
		stop := r.start()
		defer stop()
		_, err := r.Cordon(t.Context(), api.CordonRequest{GPU: "gpu1"})
		require.NoError(t, err)
		pass(time.Second)
		require.Equal(t, []string{"gpu0", "gpu1"}, r.places(), "what is there stays")

		r.repository.hold(model("a", "d1", 8), model("b", "d1", 0), model("c", "d1", 4))
		_, err = r.Import(t.Context(), api.ImportRequest{}, nil)
		require.NoError(t, err)
		pass(time.Second)
		plan := r.CurrentPlan()
		require.Len(t, plan.PartitionsOf("c"), 1)
		require.Equal(t, "gpu0", plan.PartitionsOf("c")[0].GPU(), "a new model comes to the other alone")
		require.Len(t, plan.PartitionsOf("a"), 2)
	})
}

// TestNoOrderPutsNewModelsOnACordonedGPU: nor a client that loads a model, nor a plan
// file, nor an earlier plan.
func TestNoOrderPutsNewModelsOnACordonedGPU(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "mode: advise\n")
		stop := r.start()
		defer stop()
		r.repository.hold(model("a", "d1", 8), model("b", "d1", 0), model("c", "d1", 4)) // c comes into the directory
		f, err := r.Propose(t.Context(), api.DiffRequest{Rollback: 1})
		require.NoError(t, err)
		require.NoError(t, r.Unload(t.Context(), "a", client, false))
		_, err = r.Cordon(t.Context(), api.CordonRequest{GPU: "gpu0", Author: "ada", Reason: "fan"})
		require.NoError(t, err)

		require.NoError(t, r.Load(t.Context(), repo.Order{Model: "a"}, client))
		places := r.CurrentPlan().PartitionsOf("a")
		require.Len(t, places, 1)
		require.Equal(t, "gpu1", places[0].GPU())
		require.Len(t, r.CurrentPlan().PartitionsOf("b"), 2, "what is there stays")

		r.policies.set(func(context.Context, *policy.Snapshot) (*policy.Plan, error) { return nil, errBoom })
		require.NoError(t, r.Load(t.Context(), repo.Order{Model: "c"}, client))
		places = r.CurrentPlan().PartitionsOf("c")
		require.Len(t, places, 1, "nor where it is put without the policy")
		require.Equal(t, "gpu1", places[0].GPU())

		const text = "a would be new on GPU gpu0, which is cordoned by ada (fan)"
		_, err = r.Apply(t.Context(), api.ApplyRequest{DiffRequest: api.DiffRequest{Rollback: 1}})
		require.ErrorContains(t, err, text)
		file, err := f.File()
		require.NoError(t, err)
		file.Basis.Plan = r.CurrentPlan().Revision
		_, err = r.Apply(t.Context(), filed(file))
		require.ErrorContains(t, err, text)
		_, err = r.Cordon(t.Context(), api.CordonRequest{GPU: "gpu0", Undo: true})
		require.NoError(t, err)
		_, err = r.Apply(t.Context(), api.ApplyRequest{DiffRequest: api.DiffRequest{Rollback: 1}})
		require.NoError(t, err)
		require.Len(t, r.CurrentPlan().PartitionsOf("a"), 2)
	})
}

// TestADrainThatFailedLosesNothing: what no plan could move stays where it is when
// something else is ordered, and is moved as soon as a plan can.
func TestADrainThatFailedLosesNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "mode: advise\n")
		stop := r.start()
		defer stop()
		require.NoError(t, r.Unload(t.Context(), "a", client, false))
		_, err := r.Cordon(t.Context(), api.CordonRequest{GPU: "gpu0", Drain: true})
		require.ErrorContains(t, err, "still has what it had", "the policy of this test insists on every GPU")

		require.NoError(t, r.Load(t.Context(), repo.Order{Model: "a"}, client))
		require.Len(t, r.CurrentPlan().PartitionsOf("b"), 2, "a stranger's load moves nothing")
		require.Equal(t, []string{"gpu1"}, gpusOf(r.CurrentPlan().PartitionsOf("a")), "and puts nothing on a GPU that is to be left")
		_, err = r.Pin(t.Context(), api.PinRequest{})
		require.NoError(t, err)
		_, err = r.Import(t.Context(), api.ImportRequest{}, nil)
		require.NoError(t, err)
		pass(time.Minute)
		require.Len(t, r.CurrentPlan().PartitionsOf("b"), 2, "a pinned plan stays")

		_, err = r.Pin(t.Context(), api.PinRequest{Unpin: true})
		require.NoError(t, err)
		r.policies.set(available)
		_, err = r.Apply(t.Context(), api.ApplyRequest{})
		require.NoError(t, err)
		require.Equal(t, []string{"gpu1"}, r.places())
	})
}

func gpusOf(all []*policy.Partition) (gpus []string) {
	for _, p := range all {
		gpus = append(gpus, p.GPU())
	}
	return gpus
}

// A node that is gone may come back as good as new: its GPU's cordon ends meanwhile, where it is ordered.
func TestACordonOfAGPUThatIsGone(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "interval: 10s\n")
		r.policies.set(available)
		stop := r.start()
		defer stop()
		_, err := r.Cordon(t.Context(), api.CordonRequest{GPU: "gpu1", Drain: true})
		require.NoError(t, err)
		all := *r.nodes.Load()
		r.nodes.Store(&[]*policy.Node{{Name: "n", Gpus: all[0].GetGpus()[:1]}})
		r.NodesChanged("a GPU is gone")
		pass(time.Second)
		_, err = r.Cordon(t.Context(), api.CordonRequest{GPU: "gpu1"})
		require.ErrorIs(t, err, control.ErrNotFound, "it can be cordoned no more")
		_, err = r.Cordon(t.Context(), api.CordonRequest{GPU: "gpu1", Undo: true})
		require.NoError(t, err)
		_, err = r.Cordon(t.Context(), api.CordonRequest{GPU: "gpu1", Undo: true})
		require.ErrorIs(t, err, control.ErrNotFound)
		r.nodes.Store(&all)
		r.NodesChanged("the GPU is back")
		pass(time.Second)
		require.Equal(t, []string{"gpu0", "gpu1"}, r.places())
	})
}

func TestCordonsThatCannotBe(t *testing.T) {
	for name, c := range map[string]struct {
		settings string
		pin      bool
		request  api.CordonRequest
		is       error
		text     string
	}{
		"no such GPU":        {"", false, api.CordonRequest{GPU: "gpu9"}, control.ErrNotFound, "there are gpu0, gpu1"},
		"both at once":       {"", false, api.CordonRequest{GPU: "gpu0", Drain: true, Undo: true}, control.ErrInvalid, "choose one"},
		"in mode observe":    {"mode: observe\n", false, api.CordonRequest{GPU: "gpu0", Drain: true}, control.ErrRefused, "mode is observe"},
		"the plan is pinned": {"", true, api.CordonRequest{GPU: "gpu0", Drain: true}, control.ErrRefused, "is pinned by operator"},
		// The policy of this test insists on every GPU.
		"no plan without it": {"", false, api.CordonRequest{GPU: "gpu0", Drain: true}, nil, "GPU gpu0 is to be drained and still has what it had"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r := newRig(t, c.settings)
				stop := r.start()
				defer stop()
				if c.pin {
					_, err := r.Pin(t.Context(), api.PinRequest{})
					require.NoError(t, err)
				}
				_, err := r.Cordon(t.Context(), c.request)
				require.Error(t, err)
				require.ErrorContains(t, err, c.text)
				if c.is != nil {
					require.ErrorIs(t, err, c.is)
				}
				require.Equal(t, []string{"gpu0", "gpu1"}, r.places())
			})
		})
	}
}

func TestRestartOfAPartition(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := newRig(t, "")
		stop := r.start()
		defer stop()
		require.NoError(t, r.Restart(t.Context(), api.RestartRequest{Partition: "gpu1", Author: "ada", Reason: "it leaks"}))
		require.True(t, r.Look().Servers["gpu1"].Up)
		require.Equal(t, []string{"gpu1: it is started anew by order of ada"}, r.reconciler.restarted)
		require.Equal(t, "it leaks", r.lastEvent(events.PartitionRestarted).Reason)
		require.ErrorIs(t, r.Restart(t.Context(), api.RestartRequest{Partition: "gpu9"}), control.ErrNotFound)
		_, err := r.LogFile("gpu1")
		require.ErrorIs(t, err, control.ErrRefused, "the servers of this test have none")
	})
}

// TestWhereALogIsThatConchDoesNotHave: the refusal says who has it.
func TestWhereALogIsThatConchDoesNotHave(t *testing.T) {
	for kind, says := range map[string]string{
		config.DriverProcess:    "its server has not started",
		config.DriverEmbedded:   "its server runs inside conch",
		config.DriverAttach:     "its server is run by others",
		config.DriverKubernetes: "its server is a Pod",
	} {
		t.Run(kind, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				c := settings(t, "")
				c.Driver.Kind = kind
				r := newRigWith(t, c, nil, filepath.Join(t.TempDir(), "state.db"))
				defer r.start()()
				_, err := r.LogFile("gpu1")
				require.ErrorIs(t, err, control.ErrRefused)
				require.ErrorContains(t, err, says)
			})
		})
	}
}
