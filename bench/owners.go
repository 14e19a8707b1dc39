// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/gonum/stat"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/sidecar/sim/scenario"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

const (
	// ownersSeed drew the loads, once, from /dev/urandom.
	ownersSeed = 2878886035
	// drawnOwners is how many loads it draws: as many for each size of GPUs.
	drawnOwners = 16
	// ownersRequests is about how many a trial has, and ownersSeeds how many seeds of arrivals each search has.
	ownersRequests, ownersSeeds = 20_000, 3
)

// ownerSizes are the GPUs of loads, and ownerParts among how many owners models and GPUs are divided.
var (
	ownerSizes = [...]int{8, 16, 32, 64}
	ownerParts = [...]int{2, 4}
)

// owners compares, in the simulator, one owner of all models and GPUs with the same models and GPUs divided among several owners, each of which has the queues of its
// models and sends to its GPUs alone. The rates of all models are known when they are divided, and stay: what owners lose when loads shift comes on top.
func (b *bench) owners(ctx context.Context, r *figure.Report) error {
	r.Emulated = "everything: simulated time, no delays, every model on every GPU of its owner; at most 1% bad of every model's requests"
	n := drawnOwners
	if b.quick {
		n = len(ownerSizes)
	}
	var loads []*ownedLoad
	var cells []*cell
	for number := range n {
		load := drawOwned(number)
		if !strings.Contains("owners."+load.name, b.only) {
			continue
		}
		loads = append(loads, load)
		cells = append(cells, load.whole)
		for _, parts := range load.divided {
			for _, p := range parts {
				cells = append(cells, p.cell)
			}
		}
	}
	if len(loads) == 0 {
		return errors.New("owners: no load has " + b.only + " in its name")
	}
	if err := b.search(ctx, cells, b.roundsOr(ownersSeeds)); err != nil {
		return err
	}
	for i, parts := range ownerParts {
		var all []float64
		bySize := map[int][]float64{}
		for _, load := range loads {
			kept := load.kept(i)
			all = append(all, kept)
			bySize[load.gpus] = append(bySize[load.gpus], kept)
		}
		slices.Sort(all)
		name, note := fmt.Sprintf("owners.of%d.", parts), fmt.Sprintf("what %d owners hold over what one holds of the same load", parts)
		r.Add(name+"median", stat.Quantile(.5, stat.LinInterp, all, nil), "ratio", fmt.Sprintf("%s, median of %d loads that a seed drew, %d seeds of arrivals each", note, len(all), b.roundsOr(ownersSeeds)))
		r.Add(name+"worst", all[0], "ratio", note+", the load on which that is least")
		r.Add(name+"best", all[len(all)-1], "ratio", note+", the load on which that is most")
		for _, gpus := range ownerSizes {
			if len(bySize[gpus]) > 0 {
				r.Add(fmt.Sprintf("%sgpus%d", name, gpus), stat.Mean(bySize[gpus], nil), "ratio", fmt.Sprintf("%s, mean of the %d loads on %d GPUs", note, len(bySize[gpus]), gpus))
			}
		}
	}
	return nil
}

// ownedLoad is a load that one owner has, and that several have.
type ownedLoad struct {
	name    string
	gpus    int
	whole   *cell
	divided [len(ownerParts)][]ownedPart
}

// ownedPart is what one of several owners has: its part of the requests, and what it holds.
type ownedPart struct {
	weight float64 // of all requests
	cell   *cell
}

// kept is what several owners hold over what one holds, the geometric mean over the seeds: the first owner that holds its part no more ends it for all.
func (l *ownedLoad) kept(division int) float64 {
	whole := rates(l.whole.found)
	together := slices.Repeat([]float64{math.Inf(1)}, len(whole))
	for _, p := range l.divided[division] {
		for seed, rate := range rates(p.cell.found) {
			together[seed] = min(together[seed], rate/p.weight)
		}
	}
	return meanRatio(together, whole)
}

// drawOwned draws 8 to 40 models for one of the sizes.
func drawOwned(number int) *ownedLoad {
	gpus := ownerSizes[number%len(ownerSizes)]
	d := &drawing{Rand: workload.Seed(ownersSeed, "owners", strconv.Itoa(number)), load: draw{name: fmt.Sprintf("drawn%02d", number)}, types: []float64{1}, speed: float64(gpus)}
	d.load.scenario = &scenario.Scenario{APIVersion: scenario.APIVersion, Name: d.load.name, Rate: 1, GPUs: []scenario.GPUs{{Type: "fast", Count: gpus}}}
	for range 8 + d.IntN(33) {
		d.model("m", [2]float64{2 * ms, 50 * ms}, [2]float64{2, 30}).weight = d.log(.1, 3)
	}
	whole := d.done()
	load := &ownedLoad{name: whole.name, gpus: gpus, whole: &cell{name: whole.name, scenario: whole.scenario, guess: whole.capacity / 2, requests: ownersRequests}}
	for i, parts := range ownerParts {
		for k, own := range divide(d.models, gpus, parts) {
			s := *whole.scenario
			s.Models, s.GPUs = nil, []scenario.GPUs{{Type: "fast", Count: own.gpus}}
			weight := 0.
			for _, m := range own.models {
				s.Models = append(s.Models, whole.scenario.Models[m])
				weight += d.models[m].weight
			}
			part := weight / d.weights
			load.divided[i] = append(load.divided[i], ownedPart{part, &cell{
				name: fmt.Sprintf("%s.of%d.%d", load.name, parts, k), scenario: &s, guess: part * whole.capacity / 2, requests: ownersRequests,
			}})
		}
	}
	return load
}

// owned is what an owner has: models by number, and how many GPUs.
type owned struct {
	models []int
	gpus   int
	busy   float64
}

// divide gives each owner models of about the same busy time, the longest first, and GPUs in proportion to it.
func divide(models []drawnModel, gpus, parts int) []owned {
	busy := func(m int) float64 { return models[m].weight * models[m].perRequest() }
	order := indices(models)
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(busy(b), busy(a)) })
	all, total := make([]owned, parts), 0.
	for _, m := range order {
		least := 0
		for i := range all {
			if all[i].busy < all[least].busy {
				least = i
			}
		}
		all[least].models = append(all[least].models, m)
		all[least].busy += busy(m)
		total += busy(m)
	}
	for i := range all {
		slices.Sort(all[i].models)
		all[i].gpus = 1
	}
	for range gpus - parts { // each to the owner that has the most to do for each GPU
		most := 0
		for i := range all {
			if all[i].busy/float64(all[i].gpus) > all[most].busy/float64(all[most].gpus) {
				most = i
			}
		}
		all[most].gpus++
	}
	return all
}
