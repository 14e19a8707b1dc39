// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package advise

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/evaluate"
	"github.com/conch-serving/conch/sidecar/sim/report"
)

// Batching is how Triton itself batches a model, by its config.pbtxt.
type Batching struct {
	// Dynamic: the model has dynamic_batching. Delay is its max_queue_delay.
	Dynamic bool
	Delay   time.Duration
}

// Executions are a model's executions of one batch size by the servers' statistics: Count of them, with Rows rows each and a mean time.
type Executions struct {
	Rows, Count int
	Mean        time.Duration
}

// Input is what advice is made from.
type Input struct {
	// Snapshot of the live system; it is not changed.
	Snapshot *policy.Snapshot
	// Batching by model; a model that is not in it runs its requests alone.
	Batching map[string]Batching
	// Seen is which part of a model's requests was bad with Triton's own batching, of Traffic or of the present one; nil where that was not seen, as where Conch batches.
	Seen map[string]float64
	// SeenAtMost is Seen with the requests that count neither way, which may be bad in the simulation: those whose callers' own deadlines passed, or that failed.
	// As Seen where it is not said.
	SeenAtMost map[string]float64
	// SeenFrom is how far into Traffic Seen begins.
	SeenFrom time.Duration
	// Grids are l(b) by model, declared or measured; they win over the snapshot's profiles, and hold for the whole of every GPU.
	Grids map[string]Grid
	// Counted are executions by model that servers counted while generated batches were sent; they win over the snapshot's profiles, and are as
	// Shared says of those.
	Counted map[string][]Executions
	// Timed are the round trips of these batches by model, as fast as the fastest of them were. A round trip takes no less than the execution: Counted, without
	// what batches waited for each other in the simulation, are not believed to be slower than the highest line below all of them.
	Timed map[string]Grid
	// Shared: the snapshot's observations are executions that the servers counted themselves, with the time in which they waited for other
	// models of the same GPU.
	Shared bool
	// Traffic is recorded; nil generates it at the snapshot's rates and burstiness.
	Traffic *Traffic
	// Seeds of the repetitions; the spread over them is the advice's.
	Seeds []uint64
	// Compare has both sides run at the observed rate too, for Advice.Sides.
	Compare bool
	// Progress is called with how far the work is, so much done of all in no unit, and with what is done at the moment; it may be nil.
	Progress func(done, all float64, what string)
}

// Advice is the answer. Its JSON is stable: fields are only added.
type Advice struct {
	Version int `json:"version"` // of this format: 1
	// Enough: the figures below mean something. Otherwise Missing says why not and what to do, and there are none.
	Enough  bool     `json:"enough"`
	Missing []string `json:"missing,omitempty"`
	// Rate is the traffic that was observed, in requests per second.
	Rate float64 `json:"rate"`
	// Triton and Conch are the highest rates that hold under the timeout and the adaptive discipline.
	Triton *sim.Found `json:"triton,omitempty"`
	Conch  *sim.Found `json:"conch,omitempty"`
	// Gain is Conch's rate over Triton's.
	Gain
	// Own is Conch with a server for each GPU, where there is a server over several: what Conch would gain if it started the servers. Nil elsewhere.
	Own *Own `json:"own,omitempty"`
	// GPUs there are, counting for a server over several the batches that it executes at once, and how many Conch would need for what Triton holds on all of
	// them; 0 where that is as many, or where a server has several.
	GPUs   int `json:"gpus"`
	Needed int `json:"gpus_needed"`
	// Present is how many GPUs the traffic that was observed needs; nil where there is one GPU, or a server has
	// several.
	Present *Present `json:"present,omitempty"`
	// Possible are the answers for what is not known: by how much one batch costs whatever its size. Then Enough is false, and Triton, Conch
	// and Ratio are those of no single case.
	Possible []Possible `json:"possible,omitempty"`
	// Notes are what the figures do not know.
	Notes []string `json:"notes,omitempty"`
	// Text is all of it in sentences.
	Text []string `json:"text"`
	// Sides are Triton as it is and Conch at the observed rate, where Input.Compare asks for them and there are figures.
	Sides []report.Side `json:"-"`
}

// Own is what Conch holds with servers of its own.
type Own struct {
	Conch *sim.Found `json:"conch"`
	Gain
}

// Present is the least number of GPUs found that hold the observed rate, with every model on each; 0 where all of them do not.
type Present struct {
	Triton int `json:"triton_gpus"`
	Conch  int `json:"conch_gpus"`
}

// Make compares. An error means that the simulator could not run; data that are too thin are no error but an Advice without figures.
func Make(ctx context.Context, in Input) (*Advice, error) {
	a := &Advice{Version: 1}
	var err error
	w := a.look(in)
	if len(a.Missing) > 0 {
		a.Text = append([]string{tooLittle}, a.Missing...)
		return a, nil
	}
	if len(w.open) > 0 {
		return a, a.possible(ctx, w)
	}
	if err := w.uncover(ctx, w.hidden, w.rate); err != nil {
		return nil, err
	}
	if a.Missing = w.flat(); len(a.Missing) > 0 {
		a.Text = append([]string{tooLittle}, a.Missing...)
		return a, nil
	}
	if why, err := w.contradicted(ctx); err != nil {
		return nil, err
	} else if why != "" {
		// Figures that are wrong of what is there are no better of what could be.
		a.Missing = []string{why}
		a.Text = []string{"The simulation of your Triton does not agree with what it does, so that nothing can be said of Conch:", why}
		return a, nil
	}
	a.Enough = true
	w.phases = 2
	several := a.GPUs != len(policy.NewIndex(w.snapshot).GPUs()) // a server over several GPUs is one whole
	resizable := a.GPUs > 1 && !several
	switch {
	case resizable:
		w.phases += 2
	case several:
		w.phases++
	}
	if a.Triton, err = w.goodput(ctx, tritonSide, in.Seeds); err != nil {
		return nil, err
	}
	if a.Conch, err = w.goodput(ctx, conchSide, in.Seeds); err != nil {
		return nil, err
	}
	a.Gain = gain(a.Triton, a.Conch, trustOf(several))
	if several {
		own, err := w.goodput(ctx, ownSide, in.Seeds)
		if err != nil {
			return nil, err
		}
		a.Own = &Own{Conch: own, Gain: gain(a.Triton, own, trustOf(false))}
		a.note("whether all models fit each GPU's memory, where Conch starts a server for each. Each of the %d batches that a server executes at once is taken for a GPU of its own.", a.GPUs)
	}
	if resizable {
		if a.Triton.Low > 0 {
			w.say(0, "searching how few GPUs would do")
			if a.Needed, err = w.fewest(ctx, conchSide, a.Triton.Rate, a.GPUs); err != nil {
				return nil, err
			}
			if a.Needed == a.GPUs {
				a.Needed = 0
			}
		}
		w.phase++
		w.say(0, "searching how few GPUs the present traffic needs")
		a.Present = &Present{}
		if a.Present.Triton, err = w.fewest(ctx, tritonSide, w.rate, a.GPUs); err != nil {
			return nil, err
		}
		if a.Present.Conch, err = w.fewest(ctx, conchSide, w.rate, a.GPUs); err != nil {
			return nil, err
		}
	}
	if in.Compare {
		if err := a.compare(ctx, w); err != nil {
			return nil, err
		}
	}
	a.write(len(in.Seeds), in.Traffic == nil)
	return a, nil
}

const tooLittle = "There is too little to say what Conch would gain:"

// tolerance is how exactly rates are searched, relative to them.
const tolerance = .02

// side is one of those that are compared.
type side string

const (
	tritonSide side = "your Triton"
	conchSide  side = "Conch"
	ownSide    side = "Conch with a server for each GPU"
)

// goodput is what a side holds on the present GPUs, by the present placement.
func (w *world) goodput(ctx context.Context, who side, seeds []uint64) (*sim.Found, error) {
	defer func() { w.phase++ }()
	return sim.Goodput(ctx, sim.Search{Seeds: seeds, Guess: w.rate, Tolerance: tolerance, Trying: func(rate float64, seed uint64) {
		nth := slices.Index(seeds, seed)
		w.say(float64(nth)/float64(len(seeds)), fmt.Sprintf("what %s holds: %.0f req/s, repetition %d of %d", who, rate, nth+1, len(seeds)))
	}, Run: func(ctx context.Context, rate float64, seed uint64) (*sim.Result, error) {
		return w.run(ctx, who, 0, rate, seed)
	}})
}

// say reports how much of the present phase is done, and what is being done.
func (w *world) say(done float64, what string) {
	if w.in.Progress != nil {
		w.in.Progress(float64(w.phase)+done, float64(w.phases), what)
	}
}

// fewest is the least number of GPUs that hold a rate with every seed, found by halving; 0 where all of them do not.
func (w *world) fewest(ctx context.Context, who side, rate float64, all int) (int, error) {
	hold := func(n int) (bool, error) {
		if n == all {
			n = 0 // as they are, with the present placement
		}
		for _, seed := range w.in.Seeds {
			r, err := w.run(ctx, who, n, rate, seed)
			if err != nil || r.WorstBadRate() > .01 {
				return false, err
			}
		}
		return true, nil
	}
	if ok, err := hold(all); err != nil || !ok {
		return 0, err
	}
	fails, holds := 0, all
	for holds-fails > 1 {
		n := (fails + holds) / 2
		ok, err := hold(n)
		if err != nil {
			return 0, err
		}
		if ok {
			holds = n
		} else {
			fails = n
		}
	}
	return holds, nil
}

func (w *world) run(ctx context.Context, who side, gpus int, rate float64, seed uint64) (*sim.Result, error) {
	if who == tritonSide {
		r, err := w.asIs(ctx, gpus, rate, seed)
		if err != nil {
			return nil, err
		}
		return r.Result, nil
	}
	made, err := w.prepare(gpus, w.length(rate), seed)
	if err != nil {
		return nil, err
	}
	one := evaluate.AtOnce(made.Snapshot, made.Plan, policy.NewIndex(made.Snapshot))
	if who == ownSide {
		one = nil // Conch chooses the GPU of a batch
	}
	nodes := map[string][]string{}
	for _, p := range made.Plan.GetPartitions() {
		id := cmp.Or(one[p.GetId()], p.GetId())
		nodes[id] = append(nodes[id], p.GetId())
	}
	for _, id := range slices.Sorted(maps.Keys(nodes)) {
		if len(nodes[id]) > 1 {
			made.Nodes = append(made.Nodes, nodes[id])
		}
	}
	if len(made.Nodes) > 0 {
		made.Duration, made.Warmup = made.Duration+learning, learning
	}
	if made.Streams, err = w.streams(made.Snapshot, rate, made.Duration, seed); err != nil {
		return nil, err
	}
	for _, m := range made.Snapshot.GetModels() {
		made.Plan.Dispatch = append(made.Plan.Dispatch, &policy.Dispatch{Model: m.GetName(), Discipline: "adaptive"})
	}
	return sim.Run(ctx, made.World)
}
