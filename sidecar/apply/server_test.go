// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/apply/decide"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/apply/mps"
)

func TestAServerThatDiesComesBackWithItsModels(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		files := w.revision("r1", map[string]int{"a": 8, "b": 8})
		require.NoError(t, set(t, r, desired(1, files, partition("p", "g0", 50, "a", "b"), partition("q", "g1", 50, "b"))))
		s := w.at("p")
		w.mu.Lock()
		s.die("SIGKILL")
		measured := len(w.measured)
		w.mu.Unlock()
		after(time.Millisecond)
		require.Equal(t, []string{"q"}, w.routes("b"), "requests go elsewhere at once")
		require.Equal(t, []string{"p (to come)"}, w.routes("a"), "requests wait")
		after(time.Second)
		require.True(t, w.serves("a"))
		require.Equal(t, []string{"p", "q"}, w.routes("b"))
		require.Len(t, w.events, 2)
		require.False(t, w.events[0].Up)
		require.Equal(t, "SIGKILL", w.events[0].Reason)
		require.True(t, w.events[1].Up)
		require.Equal(t, 1, w.events[1].Restarts)
		require.NotZero(t, measured)
		require.Len(t, w.measured, measured, "what was measured serves at once")
	})
}

// An operator has a server started anew: nothing is sent there any more, and it ends
// when it has answered what it has.
func TestAServerIsStartedAnew(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		files := w.revision("r1", map[string]int{"a": 8, "b": 8})
		require.NoError(t, set(t, r, desired(1, files, partition("p", "g0", 50, "a", "b"), partition("q", "g1", 50, "b"))))
		first := w.at("p")
		lease := make(chan struct{})
		w.mu.Lock()
		w.leases[first.at] = lease
		w.mu.Unlock()
		w.did()
		require.NoError(t, r.StartAnew("p", "ada wants it"))
		after(10 * time.Second)
		require.Equal(t, []string{"q"}, w.routes("b"), "requests go elsewhere")
		require.Equal(t, []string{"p (to come)"}, w.routes("a"), "or wait")
		require.Same(t, first, w.at("p"), "it has a request in flight")
		require.Equal(t, decide.IsStopping, condition(r, "p", ""))

		w.mu.Lock()
		delete(w.leases, first.at)
		w.mu.Unlock()
		close(lease)
		require.NoError(t, r.Settle(t.Context(), 0))
		require.NotSame(t, first, w.at("p"))
		require.Equal(t, []string{"p", "q"}, w.routes("b"))
		require.Equal(t, []string{"p"}, w.routes("a"))
		require.Empty(t, w.events, "nothing failed")
		require.ErrorContains(t, r.StartAnew("z", "ada wants it"), "no server of partition z is up")
	})
}

// A server that hangs is killed; one that does not start is tried again.
func TestAServerThatHangs(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		files := w.revision("r1", map[string]int{"a": 8})
		require.NoError(t, set(t, r, desired(1, files, partition("p", "g0", 50, "a"))))
		w.did()
		s := w.at("p")
		w.mu.Lock()
		s.hangs = true
		w.startErr["p"] = errors.New("the GPU fell off")
		w.mu.Unlock()
		after(20 * time.Second)
		require.Equal(t, "kill p", w.did()[0])
		require.Equal(t, decide.IsFailing, condition(r, "p", ""))
		var failed *apply.StartError
		require.ErrorAs(t, r.Settle(t.Context(), 1), &failed)
		w.mu.Lock()
		delete(w.startErr, "p")
		w.mu.Unlock()
		after(2 * time.Minute)
		require.True(t, w.serves("a"))
	})
}

// onTwoNodes has a server p on one node, and q on another. Refuse is how those of some partitions answer probes.
func onTwoNodes(t *testing.T, w *world, r *apply.Reconciler) (refuse func(err error, partitions ...string)) {
	t.Helper()
	files := w.revision("r1", map[string]int{"a": 8})
	d := desired(1, files, partition("p", "g0", 50, "a"), partition("q", "g0", 50, "a"))
	d.Snapshot.Nodes = append(d.Snapshot.Nodes, &policy.Node{Name: "other", Gpus: []*policy.GPU{{Id: "g0", Type: "A", Emulated: true, MemoryBytes: 100}}})
	d.Plan.Partitions[1].Node = "other"
	require.NoError(t, set(t, r, d))
	w.did()
	return func(err error, partitions ...string) {
		for _, id := range partitions {
			s := w.at(id)
			w.mu.Lock()
			s.refuse = err
			w.mu.Unlock()
		}
	}
}

// All servers die at once, and are silent a moment before that is known. That they take long to start is no reason to step aside for another conch.
func TestAllServersDie(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		refuse := onTwoNodes(t, w, r)
		refuse(status.Error(codes.Unavailable, "connection refused"), "p", "q")
		after(5 * time.Second)
		require.NotZero(t, r.CutOff())
		w.mu.Lock()
		w.startErr["p"], w.startErr["q"] = errors.New("the image is on its way"), errors.New("the image is on its way")
		w.mu.Unlock()
		for _, id := range []string{"p", "q"} {
			s := w.at(id)
			w.mu.Lock()
			s.die("tritonserver exited: signal: killed")
			w.mu.Unlock()
		}
		after(time.Second)
		require.Zero(t, r.CutOff())
		after(time.Minute)
		require.Zero(t, r.CutOff())
	})
}

// A conch that is cut off from the servers of all nodes ends none of them; one that alone does not answer is broken, on whichever node it is.
func TestAConchThatIsCutOff(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		refuse := onTwoNodes(t, w, r)
		refused := status.Error(codes.Unavailable, "no route to host")
		require.Zero(t, r.CutOff())
		refuse(refused, "p", "q")
		after(time.Minute)
		require.Empty(t, w.did())
		require.WithinDuration(t, time.Now(), r.CutOff(), time.Minute)
		refuse(nil, "p")
		after(10 * time.Second)
		require.Zero(t, r.CutOff())
		refuse(nil, "q") // whose connection was tried again later
		after(time.Minute)
		require.Empty(t, w.did())
		require.True(t, w.serves("a"))

		refuse(refused, "q")
		after(10 * time.Second)
		require.Equal(t, []string{"kill q", "start q", "load a on q"}, w.did())
		require.Zero(t, r.CutOff())

		w.mu.Lock()
		w.startErr["p"], w.startErr["q"] = refused, refused
		w.mu.Unlock()
		refuse(refused, "p", "q")
		began := time.Now()
		after(10 * time.Minute)
		require.Subset(t, w.did(), []string{"kill p", "kill q"}, "it lasts")
		require.WithinDuration(t, began, r.CutOff(), time.Minute, "what was started since does not answer, either")
		w.mu.Lock()
		delete(w.startErr, "p")
		w.mu.Unlock()
		after(2 * time.Minute)
		require.Zero(t, r.CutOff())
	})
}

// The connection to a server that was killed breaks before its process is reaped. A probe that falls in between does not
// hide how it ended, whatever gRPC calls the broken connection.
func TestAServerThatEndsRefusesProbesFirst(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.Canceled} {
		inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
			files := w.revision("r1", map[string]int{"a": 8})
			require.NoError(t, set(t, r, desired(1, files, partition("p", "g0", 50, "a"))))
			w.events = nil
			s := w.at("p")
			w.mu.Lock()
			s.refuse = status.Error(code, "the client connection is closing")
			w.mu.Unlock()
			after(700 * time.Millisecond) // a probe was refused meanwhile
			w.mu.Lock()
			s.die("tritonserver exited: signal: killed")
			w.mu.Unlock()
			after(time.Second)
			require.True(t, w.serves("a"), code)
			require.Equal(t, "tritonserver exited: signal: killed", w.events[0].Reason, code)
		})
	}
}

// A server that refuses its probes and goes on running is killed, and is not said to hang.
func TestAServerThatRefusesProbes(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		files := w.revision("r1", map[string]int{"a": 8})
		require.NoError(t, set(t, r, desired(1, files, partition("p", "g0", 50, "a"))))
		w.did()
		s := w.at("p")
		w.mu.Lock()
		s.refuse = status.Error(codes.Unimplemented, "unknown service")
		w.mu.Unlock()
		after(5 * time.Second)
		require.Equal(t, "kill p", w.did()[0])
		require.True(t, w.serves("a"))
		require.Contains(t, w.events[0].Reason, "the server refuses a health probe")
	})
}

// A model is unloaded on conch's own server, not by conch: this is noticed and
// repaired within a second.
func TestAModelUnloadedBehindConchsBack(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		files := w.revision("r1", map[string]int{"a": 8})
		require.NoError(t, set(t, r, desired(1, files, partition("p", "g0", 50, "a"))))
		s := w.at("p")
		w.mu.Lock()
		delete(s.models, "a")
		w.mu.Unlock()
		after(time.Second)
		require.True(t, w.serves("a"))
		// And a server that is not desired there ends.
		w.mu.Lock()
		s.models["stranger"] = "x"
		w.mu.Unlock()
		after(time.Second)
		require.Equal(t, []string{"p [a]"}, w.loaded())
	})
}

// What others have loaded a moment ago serves when Settle returns, and what they have
// unloaded holds nothing up.
func TestServersOfOthersAreLookedAtAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.lasting = true
		r := w.reconciler()
		files := w.revision("r1", map[string]int{"a": 8, "b": 8})
		given := func(models ...string) apply.Desired {
			d := desired(1, files, partition("p", "g0", 100, models...))
			d.Given = true
			return d
		}
		require.NoError(t, set(t, r, given()))
		have := func(models ...string) {
			s := w.at("p")
			w.mu.Lock()
			defer w.mu.Unlock()
			clear(s.models)
			for _, m := range models {
				s.models[m] = ""
			}
		}
		after(time.Minute)
		for range 3 {
			after(130 * time.Millisecond) // at no particular moment between two looks
			have("a", "b")
			require.NoError(t, set(t, r, given("a", "b")))
			require.Equal(t, []string{"p"}, w.routes("b"))
			have("a")
			require.NoError(t, set(t, r, given("a", "b")))
			require.Empty(t, w.routes("b"))
			have("a", "b")
			require.NoError(t, set(t, r, given("a")))
		}
		require.NoError(t, r.Close(context.Background(), true))
	})
}

// A server of others that lives and does not say what it has is not waited for for ever: what others order of the rest would not end.
func TestAServerOfOthersThatDoesNotSayWhatItHas(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		w.lasting = true
		r := w.reconciler()
		d := desired(1, w.revision("r1", map[string]int{"a": 8}), partition("p", "g0", 100), partition("q", "g1", 100))
		d.Given = true
		require.NoError(t, set(t, r, d))
		s := w.at("q")
		w.mu.Lock()
		s.mute = true
		w.mu.Unlock()
		generation, err := r.Set(t.Context(), d, 0)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		require.NoError(t, r.Settle(ctx, generation))
		require.Less(t, time.Since(began), 2*time.Second)
		require.NoError(t, r.Close(context.Background(), true))
	})
}

// A model that its server loads and does not keep ready is a failure like any other: tried less and less often, and no trouble to others.
func TestReadinessThatNeverRecovers(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		files := w.revision("r1", map[string]int{"a": 8, "b": 8})
		require.NoError(t, set(t, r, desired(1, files, partition("p", "g0", 50, "a", "b"))))
		s := w.at("p")
		w.mu.Lock()
		s.unready = map[string]bool{"b": true}
		w.mu.Unlock()
		after(time.Minute)
		require.Equal(t, decide.IsFailing, condition(r, "p", "b"))
		var failed *driver.LoadError
		require.ErrorAs(t, r.Settle(t.Context(), 1), &failed)
		require.ErrorContains(t, failed, "does not keep it ready")
		w.did()
		after(10 * time.Minute)
		require.Less(t, len(w.did()), 15, "once a minute in the end")
		require.True(t, w.serves("a"))
		w.mu.Lock()
		s.unready = nil
		w.mu.Unlock()
		after(time.Minute + time.Second)
		require.True(t, w.serves("b"))
		require.Empty(t, r.Observed().Conditions)
		w.did()
		after(time.Hour)
		require.Empty(t, w.did())
	})
}

// A model that does not answer its first request is not waited for for ever.
func TestAFirstRequestThatIsNeverAnswered(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		files := w.revision("r1", map[string]int{"a": 8, "b": 8})
		w.warmsFor = map[string]time.Duration{"b": time.Hour}
		var failed *driver.LoadError
		require.ErrorAs(t, set(t, r, desired(1, files, partition("p", "g0", 50, "a", "b"))), &failed)
		require.Equal(t, "b", failed.Model)
		require.True(t, w.serves("a"))
		require.Equal(t, decide.IsFailing, condition(r, "p", "b"))
		w.mu.Lock()
		w.warmsFor = nil
		w.mu.Unlock()
		after(10 * time.Minute)
		require.Len(t, w.routes("b"), 1)
	})
}

// One that is measured and does not answer keeps others of its GPU waiting no longer than models are measured.
func TestAFirstRequestThatIsNeverAnsweredHoldsUpNoOther(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		files := w.revision("r1", map[string]int{"a": 8, "b": 8, "c": 8})
		w.loadsFor["b"], w.loadsFor["c"] = time.Second, time.Second // a comes first
		w.warmsFor = map[string]time.Duration{"a": time.Hour}
		_, err := r.Set(t.Context(), desired(1, files, partition("p", "g0", 50, "a", "b"), partition("q", "g0", 50, "c")), 0)
		require.NoError(t, err)
		after(7 * time.Second) // one to load, five to measure, and the look that sees it
		require.True(t, w.serves("b"))
		require.True(t, w.serves("c"))
		require.Empty(t, w.measured)
	})
}

// A model whose process dies at its first request, which its server goes on to call ready, has the server started again, three times at most.
func TestAFirstRequestThatKillsTheProcessOfTheModel(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		files := w.revision("r1", map[string]int{"a": 8, "b": 8})
		w.warmErr["b"] = status.Error(codes.Internal, "Stub process 'b_0_0' is not healthy.")
		require.Error(t, set(t, r, desired(1, files, partition("p", "g0", 50, "a", "b"))))
		after(10 * time.Minute)
		kills := 0
		for _, what := range w.did() {
			if what == "kill p" {
				kills++
			}
		}
		require.Equal(t, 3, kills)
		require.True(t, w.serves("a"))
		require.Empty(t, w.routes("b"))
		require.Equal(t, decide.IsFailing, condition(r, "p", "b"))
	})
}

// A client of MPS makes the GPU fault: every server that is a client of MPS is started again, once, and OnFault is called. The others are left
// alone.
func TestAFaultOfAnMPSClient(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld(t)
		faults := make(chan bool, 1)
		var reported [][]string
		r := w.reconciler(func(o *apply.Options) {
			o.MPS = mps.Daemon{Running: true}
			state := false
			o.Faulted = func(context.Context) (bool, error) {
				select {
				case state = <-faults:
				default:
				}
				return state, nil
			}
			o.OnFault = func(partitions []string) { reported = append(reported, partitions) }
		})
		d := desired(1, w.revision("r1", map[string]int{"a": 8}), partition("p", "g0", 50, "a"), partition("q", "g0", 50, "a"), partition("emulated", "g1", 50, "a"))
		d.Snapshot.Nodes[0].Gpus[0].Emulated = false
		require.NoError(t, set(t, r, d))
		w.did()
		faults <- true
		after(10 * time.Second)
		did := w.did()
		slices.Sort(did)
		require.Equal(t, []string{"kill p", "kill q", "load a on p", "load a on q", "start p", "start q"}, did)
		require.Equal(t, [][]string{{"p", "q"}}, reported)
		require.Equal(t, []string{"p", "q", "emulated"}, w.routes("a"))
		faults <- false
		after(2 * time.Second)
		faults <- true
		after(10 * time.Second)
		require.Len(t, reported, 2)
		w.table = nil
		require.NoError(t, r.Close(context.Background(), false))
	})
}

// A load that never ends costs its neighbours nothing; where there are none the
// server is started again.
func TestALoadThatHangs(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		files := w.revision("r1", map[string]int{"a": 8, "hangs": 8})
		w.loadsFor["hangs"] = time.Hour
		err := set(t, r, desired(1, files, partition("p", "g0", 50, "a", "hangs")))
		var refused *driver.LoadError
		require.ErrorAs(t, err, &refused)
		require.True(t, refused.Hung)
		w.did()
		after(20 * time.Minute)
		require.Empty(t, w.did(), "a serves")
		require.Equal(t, decide.IsFailing, condition(r, "p", "hangs"))

		// Its files are mended: now the server has to go.
		w.mu.Lock()
		w.loadsFor["hangs"] = 0
		w.mu.Unlock()
		require.NoError(t, set(t, r, desired(2, w.revision("r2", map[string]int{"a": 8, "hangs": 4}), partition("p", "g0", 50, "a", "hangs"))))
		require.Equal(t, "kill p", w.did()[0])
		require.True(t, w.serves("hangs") && w.serves("a"))
	})
}

// A model that kills its servers is found out and left alone.
func TestAModelThatKillsItsServers(t *testing.T) {
	inTime(t, func(t *testing.T, w *world, r *apply.Reconciler) {
		files := w.revision("r1", map[string]int{"a": 8, "b": 8, "deadly": 8})
		w.loadsFor = map[string]time.Duration{"a": 10 * time.Millisecond, "b": 10 * time.Millisecond}
		w.kills["deadly"] = true
		require.Error(t, set(t, r, desired(1, files, partition("p", "g0", 50, "a", "b", "deadly"))))
		after(10 * time.Minute)
		w.did()
		after(time.Hour)
		require.Empty(t, w.did())
		require.True(t, w.serves("a") && w.serves("b"))
		require.Equal(t, decide.IsFailing, condition(r, "p", "deadly"))
	})
}
