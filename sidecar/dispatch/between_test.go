// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package dispatch_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// large has a model's rows as large as those that are lent.
func large(m *router.Model) {
	for _, in := range m.Config.Input {
		in.Dims = []int64{lentRow}
	}
	for _, out := range m.Config.Output {
		out.Dims = []int64{lentRow}
	}
	m.SLO = 20 * time.Second
}

// stepsTable serves models of large rows: m and n with one input, j with two, which it compares, and w, whose input is small. All are on all partitions, and so are
// the ensembles.
func stepsTable(ensembles map[string]*router.Model, parts ...*triton) *router.Table {
	t := table(1, large, parts...)
	m := t.Models["m"]
	model := func(name string, change func(*tritonpb.ModelConfig)) {
		c := modelConfig(name)
		t.Models[name] = &router.Model{Name: name, Config: c, Versions: []string{"1"}, Batchable: true, Places: m.Places}
		if change != nil {
			change(c)
		}
		large(t.Models[name])
	}
	model("n", nil)
	model("j", func(c *tritonpb.ModelConfig) {
		c.Input = append(c.Input, &tritonpb.ModelInput{Name: "ALSO", DataType: tritonpb.DataType_TYPE_FP32})
	})
	model("w", nil)
	t.Models["w"].Config.Input[0].Dims = []int64{4}
	for name, e := range ensembles {
		large(e)
		e.Name, e.Config.Name, e.Places = name, name, m.Places
		t.Models[name] = e
	}
	return t
}

// joins adds a step of model j, which compares two tensors.
func joins(e *router.Model, one, other, to string) *router.Model {
	s := e.Config.GetEnsembleScheduling()
	s.Step = append(s.Step, &tritonpb.ModelEnsembling_Step{
		ModelName: "j", ModelVersion: -1, InputMap: map[string]string{"IN": one, "ALSO": other}, OutputMap: map[string]string{"OUT": to},
	})
	return e
}

// inferSteps sends a request to an ensemble whose rows must all be its owner's in the answer.
func inferSteps(ctx context.Context, t testing.TB, d *dispatch.Dispatcher, ensemble string, owner uint32, rows int) {
	t.Helper()
	foreign, err := inferStamped(ctx, t, d, owner, rows, toModel(ensemble))
	require.NoError(t, err)
	require.Zero(t, foreign, "values of somebody else's")
}

// untilNamed sends requests to an ensemble until the input of a step is named where the output of the step before was.
func untilNamed(t *testing.T, d *dispatch.Dispatcher, ensemble string, writes, reads *serial, from, to string) {
	require.Eventually(t, func() bool {
		inferSteps(t.Context(), t, d, ensemble, 1, 1)
		out, in := writes.places(from, "OUT", true), reads.places(to, "IN", false)
		return in[len(in)-1] != nil && fmt.Sprint(in[len(in)-1]) == fmt.Sprint(out[len(out)-1])
	}, 30*time.Second, time.Millisecond, "the tensor does not stay where it is")
}

// TestATensorBetweenStepsStaysWhereItWasWritten: the request of the next step names the memory that the server wrote the output of the step before to.
func TestATensorBetweenStepsStaysWhereItWasWritten(t *testing.T) {
	p := newTriton(t)
	s := newSerial(t, p, func(int) time.Duration { return 0 })
	chain := ensembleOf("", [3]string{"m", "IN", "x"}, [3]string{"n", "x", "OUT"})
	diamond := joins(ensembleOf("", [3]string{"m", "IN", "x"}, [3]string{"n", "x", "y"}, [3]string{"m", "x", "z"}), "y", "z", "OUT")
	d, _ := newDispatcher(t, dispatch.Options{SharedMemoryBytes: 64 << 20}, stepsTable(map[string]*router.Model{"e": chain, "diamond": diamond}, p))
	untilNamed(t, d, "e", s, s, "m", "n")
	inferSteps(t.Context(), t, d, "e", 2, 3)
	require.Equal(t, int64(3*4*lentRow), s.places("n", "IN", false)[len(s.places("n", "IN", false))-1][2])

	inferSteps(t.Context(), t, d, "diamond", 3, 2)
	written := append(s.places("m", "OUT", true), s.places("n", "OUT", true)...)
	for _, in := range []string{"IN", "ALSO"} {
		all := s.places("j", in, false)
		require.NotEmpty(t, all)
		require.Contains(t, written, all[len(all)-1], "both branches stay where they are, and so does what both of them take")
	}
	require.Eventually(t, func() bool { n, bytes := d.UnderWay(); return n == 0 && bytes == 0 }, 30*time.Second, time.Millisecond)
}

// TestAStepWithASmallInputLeavesItsLargeOutputInSharedMemory: as a step that decodes images does.
func TestAStepWithASmallInputLeavesItsLargeOutputInSharedMemory(t *testing.T) {
	p := newTriton(t)
	s := newSerial(t, p, func(int) time.Duration { return 0 })
	e := ensembleOf("", [3]string{"w", "IN", "x"}, [3]string{"n", "x", "OUT"})
	tb := stepsTable(map[string]*router.Model{"e": e}, p)
	e.Config.Input[0].Dims = []int64{4}
	d, _ := newDispatcher(t, dispatch.Options{SharedMemoryBytes: 64 << 20}, tb)
	ask := func() {
		r := request(t, "", 2, 7, toModel("e"))
		resp, err := d.Infer(t.Context(), r)
		require.NoError(t, err)
		require.Equal(t, 2*4*lentRow, resp.Output("OUT").Data.Len())
		resp.Free()
	}
	require.Eventually(t, func() bool {
		ask()
		out, in := s.places("w", "OUT", true), s.places("n", "IN", false)
		return in[len(in)-1] != nil && fmt.Sprint(in[len(in)-1]) == fmt.Sprint(out[len(out)-1])
	}, 30*time.Second, time.Millisecond)
	for _, place := range s.places("w", "IN", false) {
		require.Nil(t, place, "the small input goes in the message")
	}
}

// TestStepsOfAMergeGroupLeaveTheirTensorsInSharedMemory: only the tensor that says whose the rows are is copied.
func TestStepsOfAMergeGroupLeaveTheirTensorsInSharedMemory(t *testing.T) {
	p := newTriton(t)
	s := newSerial(t, p, func(int) time.Duration { return 0 })
	tb := merged(1, p)
	for _, m := range tb.Models {
		large(m)
		for _, in := range m.Config.Input {
			if in.Name == "whose" {
				in.Dims = []int64{1}
			}
		}
	}
	e := ensembleOf("e", [3]string{"m", "IN", "x"}, [3]string{"n", "x", "OUT"})
	large(e)
	e.Places, tb.Models["e"] = tb.Models["m"].Places, e
	d, seen := newDispatcher(t, dispatch.Options{SharedMemoryBytes: 64 << 20}, tb)
	require.Eventually(t, func() bool {
		inferSteps(t.Context(), t, d, "e", 5, 2)
		out, in := s.places("g", "OUT", true), s.places("g", "IN", false)
		return in[len(in)-1] != nil && fmt.Sprint(in[len(in)-1]) == fmt.Sprint(out[len(out)-1])
	}, 30*time.Second, time.Millisecond)
	seen.mu.Lock()
	defer seen.mu.Unlock()
	require.Equal(t, dispatch.Between{Kept: 2 * 4 * lentRow}, seen.executions[len(seen.executions)-1].Between)
}

// TestABatchThatGoesOnTogetherStaysInOnePiece: the next step's batch has the rows of one execution before it, in whatever order they came to the queue.
func TestABatchThatGoesOnTogetherStaysInOnePiece(t *testing.T) {
	p := newTriton(t)
	held := make(chan chan struct{}) // executions of j wait
	s := newSerial(t, p, func(int) time.Duration { return 0 })
	s.begins = func(r *tritonpb.ModelInferRequest) {
		if r.ModelName == "j" {
			<-<-held
		}
	}
	e := ensembleOf("", [3]string{"m", "IN", "x"}, [3]string{"n", "x", "OUT"})
	d, _ := newDispatcher(t, dispatch.Options{SharedMemoryBytes: 64 << 20}, stepsTable(map[string]*router.Model{"e": e}, p))
	untilNamed(t, d, "e", s, s, "m", "n")
	holding := func(owner uint32) (done chan error) {
		done = make(chan error, 1)
		r := stamped(t, owner, 1, toModel("j"), func(r *tritonpb.ModelInferRequest) {
			r.Inputs = append(r.Inputs, &input{Name: "ALSO", Datatype: "FP32", Shape: r.Inputs[0].Shape})
			r.RawInputContents = append(r.RawInputContents, r.RawInputContents[0])
		})
		go func() {
			resp, err := d.Infer(t.Context(), r)
			if err == nil {
				resp.Free()
			}
			done <- err
		}()
		return done
	}
	const together = 4
	for round := range 10 {
		first, second := make(chan struct{}), make(chan struct{})
		one := holding(100)
		held <- first
		results := make(chan error, together)
		for i := range together {
			go func() {
				foreign, err := inferStamped(t.Context(), t, d, uint32(200+i), 1, toModel("e"))
				if foreign > 0 {
					err = fmt.Errorf("%d values are somebody else's", foreign)
				}
				results <- err
			}()
		}
		require.Eventually(t, func() bool { c, _ := d.Counts("m"); return c.Waiting == together }, 30*time.Second, time.Millisecond)
		two := holding(101)
		require.Eventually(t, func() bool { c, _ := d.Counts("j"); return c.Waiting == 1 }, 30*time.Second, time.Millisecond)
		close(first)
		held <- second // the steps of m have run then
		require.Eventually(t, func() bool { c, _ := d.Counts("n"); return c.Waiting == together }, 30*time.Second, time.Millisecond)
		close(second)
		for range together {
			require.NoError(t, <-results)
		}
		require.NoError(t, <-one)
		require.NoError(t, <-two)
		out, in := s.places("m", "OUT", true), s.places("n", "IN", false)
		require.Equal(t, out[len(out)-1], in[len(in)-1], "round %d", round)
		require.Equal(t, int64(together*4*lentRow), in[len(in)-1][2])
	}
}

// apartTable has model m on the first of two servers and n on the other one.
func apartTable(ensembles map[string]*router.Model, one, other *triton) *router.Table {
	t := stepsTable(ensembles, one, other)
	t.Models["m"].Places, t.Models["n"].Places = t.Models["m"].Places[:1], t.Models["n"].Places[1:]
	return t
}

// TestATensorStaysWhereItWasWrittenForAnotherServer: of the same host. A server that takes no region of another one gets a copy, in its own.
func TestATensorStaysWhereItWasWrittenForAnotherServer(t *testing.T) {
	p, q := newTriton(t), newTriton(t)
	one, other := newSerial(t, p, func(int) time.Duration { return 0 }), newSerial(t, q, func(int) time.Duration { return 0 })
	e := ensembleOf("", [3]string{"m", "IN", "x"}, [3]string{"n", "x", "OUT"})
	d, _ := newDispatcher(t, dispatch.Options{SharedMemoryBytes: 64 << 20}, apartTable(map[string]*router.Model{"e": e}, p, q))
	untilNamed(t, d, "e", one, other, "m", "n")
	other.mu.Lock()
	clear(other.regions)
	other.mu.Unlock()
	inferSteps(t.Context(), t, d, "e", 2, 3) // through the socket
	untilNamed(t, d, "e", one, other, "m", "n")
}

// TestMemoryBetweenStepsIsHeldUntilItsReadersLastWord: a caller leaves while its second step reads what the first one's server has written, and the server that reads
// is lost. Nobody else writes there as long as that one may read.
func TestMemoryBetweenStepsIsHeldUntilItsReadersLastWord(t *testing.T) {
	p, q := newTriton(t), newTriton(t)
	one, other := newSerial(t, p, func(int) time.Duration { return 0 }), newSerial(t, q, func(int) time.Duration { return 0 })
	began, goes := make(chan struct{}), make(chan struct{})
	var reads atomic.Bool
	other.begins = func(r *tritonpb.ModelInferRequest) { reads.Store(r.Id == "2748") }
	other.takes = func(int) time.Duration {
		if reads.Load() {
			close(began)
			<-goes
		}
		return 0
	}
	e := ensembleOf("", [3]string{"m", "IN", "x"}, [3]string{"n", "x", "OUT"})
	d, _ := newDispatcher(t, dispatch.Options{SharedMemoryBytes: 16 << 20}, apartTable(map[string]*router.Model{"e": e}, p, q))
	untilNamed(t, d, "e", one, other, "m", "n")
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := inferStamped(ctx, t, d, 2748, 1, toModel("e"))
		left <- err
	}()
	<-began
	cancel()
	require.Error(t, <-left)
	next := newSerial(t, q, func(int) time.Duration { return 0 }) // in place of the one that reads
	for i := range 4 {                                            // as much as the memory holds
		foreign, err := inferStamped(t.Context(), t, d, uint32(3000+i), 8)
		require.NoError(t, err)
		require.Zero(t, foreign)
	}
	untilNamed(t, d, "e", one, next, "m", "n") // in memory that both have now
	close(goes)                                // it looks whether its input is still what it was
	require.Eventually(t, func() bool { return other.running.Load() == 0 }, 30*time.Second, time.Millisecond)
	require.Zero(t, other.changed.Load())
}

// randomSteps is an ensemble of a DAG that is drawn: each step takes tensors that there are by then, and the last one takes that of the one before it.
func randomSteps(r *rand.Rand) *router.Model {
	e, tensors := ensembleOf(""), []string{"IN"}
	steps := 2 + r.IntN(4)
	for i := range steps {
		to := fmt.Sprint("t", i)
		last := tensors[len(tensors)-1]
		from := tensors[r.IntN(len(tensors))]
		if i == steps-1 {
			to, from = "OUT", last
		}
		switch model := []string{"m", "n", "j"}[r.IntN(3)]; model {
		case "j":
			joins(e, from, tensors[r.IntN(len(tensors))], to)
		default:
			s := e.Config.GetEnsembleScheduling()
			s.Step = append(s.Step, &tritonpb.ModelEnsembling_Step{ModelName: model, ModelVersion: -1, InputMap: map[string]string{"IN": from}, OutputMap: map[string]string{"OUT": to}})
		}
		tensors = append(tensors, to)
	}
	return e
}

// TestStepsNeverHoldAnothersRows: callers of ensembles that are drawn leave at random, executions take long or fail, servers are lost and come back, one of them
// shares no memory. Every row of every answer is its owner's, no input changes while an execution reads it, one on a server that was lost
// included, and nothing is held in the end.
func TestStepsNeverHoldAnothersRows(t *testing.T) {
	seed := rand.Uint64()
	draw := rand.New(rand.NewPCG(seed, 0))
	ensembles := map[string]*router.Model{}
	for i := range 6 {
		ensembles[fmt.Sprint("e", i)] = randomSteps(draw)
	}
	parts := []*triton{newTriton(t), newTriton(t), newTriton(t)}
	servers := make([]*serial, len(parts))
	for i := range parts {
		servers[i] = newSerial(t, parts[i], mostlyShort)
		servers[i].refuses = i == 2
	}
	d, seen := newDispatcher(t, dispatch.Options{SharedMemoryBytes: 16 << 20}, stepsTable(ensembles, parts...))
	for name := range ensembles {
		steps, reason, ok := d.Ensemble(name)
		require.True(t, ok && steps > 0, reason)
	}
	d.SetProfile(linear(time.Millisecond, time.Millisecond))
	fault := faultsOf(t, parts, servers)
	const requests = 300
	var wrong, ok atomic.Int64
	inTurns(requests, 12, func(i int) error {
		if i%15 == 14 {
			fault()
		}
		ctx := t.Context()
		if rand.IntN(3) == 0 {
			var cancel func()
			ctx, cancel = context.WithTimeout(ctx, time.Duration(rand.IntN(60_000))*time.Microsecond)
			defer cancel()
		}
		foreign, err := inferStamped(ctx, t, d, uint32(i+2), 1+rand.IntN(2), toModel(fmt.Sprint("e", rand.IntN(len(ensembles)))))
		if foreign > 0 {
			wrong.Add(1)
		} else if err == nil {
			ok.Add(1)
		}
		return nil
	})
	require.Zero(t, wrong.Load(), "seed %d: answers with others' rows, beside %d without", seed, ok.Load())
	require.Greater(t, ok.Load(), int64(requests/20)) // how many depends on how busy the machine is
	require.Eventually(t, func() bool { n, bytes := d.UnderWay(); return n == 0 && bytes == 0 }, 30*time.Second, time.Millisecond)
	seen.count(t)
	var ways dispatch.Between
	seen.mu.Lock()
	defer seen.mu.Unlock()
	for _, e := range seen.executions {
		ways.Kept, ways.Copied, ways.Sent = ways.Kept+e.Between.Kept, ways.Copied+e.Between.Copied, ways.Sent+e.Between.Sent
	}
	require.Positive(t, ways.Kept)
	require.Positive(t, ways.Sent, "one of the servers shares no memory")
	t.Logf("%d answers; bytes between steps: %+v", ok.Load(), ways)
}
