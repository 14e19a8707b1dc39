// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package advise

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
)

// Batching is how Triton itself batches a model, as its config.pbtxt says.
type Batching struct {
	Dynamic bool
	Delay   time.Duration
}

// Seen is a model's live traffic, in requests per second, and which part of it was bad.
type Seen struct{ Rate, BadRate float64 }

// Input is what advice is made from.
type Input struct {
	// Snapshot of the live system; it is not changed.
	Snapshot *policy.Snapshot
	// Batching by model; a model that is not in it runs its requests alone.
	Batching map[string]Batching
	// Seen is how Triton's own batching fares with the present traffic, by model; nil where Conch batches.
	Seen map[string]Seen
	// Traffic is recorded; nil generates it at the snapshot's rates and burstiness.
	Traffic *Traffic
	// Seeds of the repetitions; the spread over them is the advice's.
	Seeds []uint64
	// Progress is told of every step; it may be nil.
	Progress func(string)
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
	// Ratio is Conch's over Triton's, the median over seeds; Low and High are the spread, wider by how exactly rates are searched.
	Ratio float64 `json:"ratio"`
	Low   float64 `json:"ratio_low"`
	High  float64 `json:"ratio_high"`
	// GPUs there are, and how many Conch would need for what Triton holds on all of them.
	GPUs   int `json:"gpus"`
	Needed int `json:"gpus_needed"`
	// Present is how many GPUs the traffic that was observed needs; nil where there is one GPU.
	Present *Present `json:"present,omitempty"`
	// Notes are what the figures do not know.
	Notes []string `json:"notes,omitempty"`
	// Text is all of it in sentences.
	Text []string `json:"text"`
}

// Present is the least number of GPUs found that hold the observed rate, with every model on each; 0 where all of them do not.
type Present struct {
	Triton int `json:"triton_gpus"`
	Conch  int `json:"conch_gpus"`
}

// Make compares. An error means that the simulator could not run; data that are too thin are no error but an Advice without figures.
func Make(ctx context.Context, in Input) (*Advice, error) {
	a := &Advice{Version: 1}
	w, err := a.look(in)
	if err != nil {
		return nil, err
	}
	if len(a.Missing) > 0 {
		a.Text = append([]string{"There is too little to say what Conch would gain:"}, a.Missing...)
		return a, nil
	}
	a.Enough = true
	say := func(text string) {
		if in.Progress != nil {
			in.Progress(text)
		}
	}
	if a.Triton, err = w.goodput(ctx, "timeout", 0); err != nil {
		return nil, err
	}
	if why := contradicted(in.Seen, a.Triton); why != "" {
		// Figures that are wrong of what is there are no better of what could be.
		a.Enough, a.Triton = false, nil
		a.Missing = []string{why}
		a.Text = []string{"The simulation of your Triton does not agree with what it does, so that nothing can be said of Conch:", why}
		return a, nil
	}
	if a.Conch, err = w.goodput(ctx, "adaptive", 0); err != nil {
		return nil, err
	}
	if a.Triton.Low > 0 {
		var ratios []float64
		for i := range a.Triton.All {
			ratios = append(ratios, a.Conch.All[i].Rate/a.Triton.All[i].Rate)
		}
		slices.Sort(ratios)
		n := len(ratios)
		a.Ratio, a.Low, a.High = (ratios[(n-1)/2]+ratios[n/2])/2, ratios[0]*(1-tolerance), ratios[n-1]*(1+tolerance)
		say("searching how few GPUs would do")
		if a.Needed, err = w.fewest(ctx, "adaptive", a.Triton.Rate, a.GPUs); err != nil {
			return nil, err
		}
		if a.Needed == a.GPUs {
			a.Needed = 0
		}
	}
	if a.GPUs > 1 {
		say("searching how few GPUs the present traffic needs")
		a.Present = &Present{}
		if a.Present.Triton, err = w.fewest(ctx, "timeout", w.rate, a.GPUs); err != nil {
			return nil, err
		}
		if a.Present.Conch, err = w.fewest(ctx, "adaptive", w.rate, a.GPUs); err != nil {
			return nil, err
		}
	}
	a.write(len(in.Seeds), in.Traffic == nil)
	return a, nil
}

// contradicted says where live traffic refutes what Triton is said to hold; empty where it does not.
func contradicted(seen map[string]Seen, triton *sim.Found) string {
	var rate, worst float64
	for _, m := range seen {
		rate += m.Rate
		if m.Rate > 0 {
			worst = max(worst, m.BadRate)
		}
	}
	switch {
	case worst <= .01 && triton.High < .75*rate:
		return fmt.Sprintf("it holds %.0f requests per second with %.1f%% bad at the worst, and %.0f at the most in the simulation. Are profiles, instances on a GPU or GPUs other than conch thinks (tritonctl model get NAME, tritonctl gpu ls)?", rate, 100*worst, triton.High)
	case worst > .05 && triton.Low > rate/.75:
		return fmt.Sprintf("%.1f%% of a model's requests are bad at %.0f requests per second in all, of which the simulation holds %.0f at the least. Are there other callers of the servers, or callers that wait for answers before they send more?", 100*worst, rate, triton.Low)
	}
	return ""
}

// write makes sentences of the figures.
func (a *Advice) write(seeds int, live bool) {
	from := "the recorded traffic"
	if live {
		from = "the present rates"
	}
	if a.Triton.Low == 0 {
		a.Text = append(a.Text, fmt.Sprintf(
			"Under %s, Triton's own batching holds the SLOs at no rate at all in the simulator, so there is nothing to compare with; Conch would hold %.0f requests per second (%.0f to %.0f over %d seeds).",
			from, a.Conch.Rate, a.Conch.Low, a.Conch.High, seeds), "Check the SLOs: `tritonctl model ls` shows them.")
	} else {
		a.Text = append(a.Text, fmt.Sprintf("%.0f requests per second were observed. With traffic like that, Triton's own batching holds %.0f requests per second on your %s with at most 1%% bad for every model, and Conch would hold %.0f.",
			a.Rate, a.Triton.Rate, gpus(a.GPUs), a.Conch.Rate))
		switch {
		case a.Low > 1:
			a.Text = append(a.Text, fmt.Sprintf("Conch would hold %.2fx the traffic at the same SLO (%.2f to %.2f over %d seeds).", a.Ratio, a.Low, a.High, seeds))
		case a.High < 1:
			a.Text = append(a.Text, fmt.Sprintf("Conch would hold less than Triton: %.2fx (%.2f to %.2f over %d seeds). Do not put it in control of these models.", a.Ratio, a.Low, a.High, seeds))
		default:
			a.Text = append(a.Text, fmt.Sprintf("Conch would gain nothing certain: %.2fx (%.2f to %.2f over %d seeds).", a.Ratio, a.Low, a.High, seeds))
		}
		if a.Needed > 0 && a.Needed < a.GPUs {
			a.Text = append(a.Text, fmt.Sprintf("Or the same on %d of your %s, with every model on each of them (in all of %d repetitions).", a.Needed, gpus(a.GPUs), seeds))
		}
	}
	if p := a.Present; p != nil && p.Conch > 0 {
		triton := fmt.Sprintf("with Triton's own batching %d", p.Triton)
		if p.Triton == 0 {
			triton = fmt.Sprintf("with Triton's own batching %d do not hold them", a.GPUs)
		}
		a.Text = append(a.Text, fmt.Sprintf("The %.0f requests per second that were observed need %s with Conch, and %s.", a.Rate, gpus(p.Conch), triton))
	}
	for _, n := range a.Notes {
		a.Text = append(a.Text, "Not known: "+n)
	}
}

func gpus(n int) string {
	if n == 1 {
		return "1 GPU"
	}
	return fmt.Sprintf("%d GPUs", n)
}

// tolerance is how exactly rates are searched, relative to them.
const tolerance = .02

// goodput under a discipline; gpus 0 means the present ones and the present placement.
func (w *world) goodput(ctx context.Context, discipline string, gpus int) (*sim.Found, error) {
	return sim.Goodput(ctx, sim.Search{Seeds: w.in.Seeds, Guess: w.rate, Tolerance: tolerance, Trying: func(rate float64, seed uint64) {
		if w.in.Progress != nil {
			who := map[string]string{"timeout": "Triton's own batching", "adaptive": "Conch"}[discipline]
			w.in.Progress(fmt.Sprintf("searching what %s holds: %.0f req/s, repetition %d of %d", who, rate, slices.Index(w.in.Seeds, seed)+1, len(w.in.Seeds)))
		}
	}, Run: func(ctx context.Context, rate float64, seed uint64) (*sim.Result, error) {
		return w.run(ctx, discipline, gpus, rate, seed)
	}})
}

// fewest is the least number of GPUs that hold a rate with every seed, found by halving; 0 where all of them do not.
func (w *world) fewest(ctx context.Context, discipline string, rate float64, all int) (int, error) {
	hold := func(n int) (bool, error) {
		if n == all {
			n = 0 // as they are, with the present placement
		}
		for _, seed := range w.in.Seeds {
			r, err := w.run(ctx, discipline, n, rate, seed)
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

func (w *world) run(ctx context.Context, discipline string, gpus int, rate float64, seed uint64) (*sim.Result, error) {
	s, err := scenario.FromSnapshot(w.snapshot, nil)
	if err != nil {
		return nil, err
	}
	s.Duration, s.Warmup = scenario.Duration(trial), scenario.Duration(trial/20)
	made, err := s.World(scenario.Options{Seed: seed, GPUs: gpus})
	if err != nil {
		return nil, err
	}
	made.Streams, err = w.streams(made.Snapshot, rate, seed)
	if err != nil {
		return nil, err
	}
	made.Jitter = .02
	made.Plan.Dispatch = nil
	for _, m := range made.Snapshot.GetModels() {
		d := &policy.Dispatch{Model: m.GetName(), Discipline: discipline}
		if discipline == "timeout" {
			b := w.in.Batching[m.GetName()]
			d.Parameters = map[string]string{"max_queue_delay": b.Delay.String()}
			if !b.Dynamic {
				m.MaxBatchSize = cmp.Or(w.largest[m.GetName()], 1)
			}
		}
		made.Plan.Dispatch = append(made.Plan.Dispatch, d)
	}
	return sim.Run(ctx, made.World)
}
