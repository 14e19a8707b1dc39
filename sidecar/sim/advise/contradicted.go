// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package advise

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

// A simulation does not agree with the servers where it makes times times as many requests bad as they did, or as many times fewer, and the two shares are further
// from each other than apart and what chance does to so many requests.
const (
	times = 2
	apart = .04
)

// judged is a share of bad requests, seen and simulated with each seed. Seen is from seen to atMost.
type judged struct {
	who          string
	requests     float64
	seen, atMost float64
	simulated    []float64
}

// refuted says whether the simulation is wrong with every seed, always in the same direction.
func (j judged) refuted() bool {
	least, most := slices.Min(j.simulated), slices.Max(j.simulated)
	differ := func(low, high float64) bool {
		mean := (low + high) / 2
		return high > times*low && high-low > apart+2*math.Sqrt(mean*(1-mean)/j.requests)
	}
	return differ(j.atMost, least) || differ(most, j.seen)
}

// contradicted says where the live traffic, of all models or of one with enough of it, refutes what the simulation makes of the same traffic; empty where it does not. The bad rate is that of the load that is
// there, which may be more than the servers hold or less.
func (w *world) contradicted(ctx context.Context) (string, error) {
	if len(w.in.Seen) == 0 {
		return "", nil
	}
	length, warmup := max(trial, window(w.snapshot)), trial/20
	if w.in.Traffic != nil {
		length, warmup = w.in.Traffic.Length, w.in.SeenFrom
	}
	if warmup >= length { // the last request was recorded before
		return "", nil
	}
	all, names := &judged{who: "all requests"}, map[string]*judged{}
	for _, seed := range w.in.Seeds {
		r, err := w.servers(ctx, 0, length, warmup, seed, func(s *policy.Snapshot) ([]workload.Stream, error) {
			if w.in.Traffic != nil {
				return []workload.Stream{w.asRecorded(s)}, nil
			}
			return w.generated(s, w.rate, seed)
		})
		if err != nil {
			return "", err
		}
		var requests, bad, seenBad, mostBad float64
		add := func(name string, t sim.Totals) {
			seen, known := w.in.Seen[name]
			if !known || t.Arrivals == 0 {
				return
			}
			atMost := max(seen, w.in.SeenAtMost[name])
			if names[name] == nil {
				names[name] = &judged{who: "the requests for " + name, requests: float64(t.Arrivals), seen: seen, atMost: atMost}
			}
			names[name].simulated = append(names[name].simulated, t.BadRate)
			n := float64(t.Arrivals)
			requests, bad, seenBad, mostBad = requests+n, bad+n*t.BadRate, seenBad+n*seen, mostBad+n*atMost
		}
		for _, m := range r.Models {
			add(m.Name, m.Totals)
		}
		for _, p := range r.Pipelines {
			add(p.Name, p.Totals)
		}
		if requests > 0 {
			all.requests, all.seen, all.atMost, all.simulated = requests, seenBad/requests, mostBad/requests, append(all.simulated, bad/requests)
		}
	}
	for _, j := range append([]*judged{all}, named(names)...) {
		if len(j.simulated) == len(w.in.Seeds) && j.requests >= fewestRequests && j.refuted() {
			return j.text(w.rate), nil
		}
	}
	return "", nil
}

func named(all map[string]*judged) (list []*judged) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		list = append(list, all[name])
	}
	return list
}

// text says what was seen and what was simulated.
func (j judged) text(rate float64) string {
	check := "Are there other callers of the servers, or callers that wait for answers before they send more?"
	if j.seen < slices.Min(j.simulated) {
		check = "Are profiles, instances on a GPU or GPUs other than conch thinks (tritonctl model get NAME, tritonctl gpu ls)?"
	}
	return fmt.Sprintf("%.1f%% of %s were bad at %.0f requests per second in all, and %.1f%% to %.1f%% in the simulation of the same traffic. %s",
		100*j.seen, j.who, rate, 100*slices.Min(j.simulated), 100*slices.Max(j.simulated), check)
}
