// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/plugins/builtin"
	"github.com/conch-serving/conch/plugins/policy"
)

// reproducePlacement compares placement with what the papers say.
func (b *bench) reproducePlacement(ctx context.Context, r *figure.Report) error {
	seeds := b.roundsOr(3)
	rows, err := b.placementRows()
	if err != nil {
		return err
	}
	rows = slices.DeleteFunc(rows, func(row *row) bool { return !strings.Contains(row.figure, b.only) })
	if len(rows) == 0 {
		return fmt.Errorf("reproduce-placement: no figure has %s in its name", b.only)
	}
	if err := b.measure(ctx, rows, seeds); err != nil {
		return err
	}
	b.print(rows, r)
	r.Emulated = fmt.Sprintf("everything: GPUs are arithmetic, and where something runs it is simulated time; %d seeds", seeds)
	return nil
}

// placementRows are what INFaaS, USHER and gpulet publish about placement that needs no GPU. Rows with inputs of ours say so: the papers publish no
// latencies.
func (b *bench) placementRows() ([]*row, error) {
	rows := b.variantRows()
	rows = append(rows, b.figure3Rows()...)
	rows = append(rows, b.figure7Rows()...)
	all, err := arenas()
	if err != nil {
		return nil, err
	}
	named := make(map[string]arena)
	for _, a := range all {
		named[a.name] = a
	}
	rows = append(rows, b.headlineRows(named["usher20"])...)
	return append(rows, b.throughputRows(named)...), nil
}

// planned asks a built-in policy without evaluations.
func planned(ctx context.Context, name string, s *policy.Snapshot, parameters map[string]string) (*policy.Plan, error) {
	p, ok := builtin.New(name)
	if !ok {
		return nil, fmt.Errorf("there is no policy %s", name)
	}
	d, err := p.Describe(ctx)
	if err != nil {
		return nil, err
	}
	if s.Parameters, err = d.Resolve(parameters); err != nil {
		return nil, err
	}
	return p.Plan(ctx, s, policy.NoEvaluation{})
}

// variantRows are INFaaS' table 3: the cheapest configuration of the three variants of its table 2, in the table's unit of cost.
func (b *bench) variantRows() (rows []*row) {
	prices := map[string]float64{"A": 1, "B": 3, "C": 16}
	for _, query := range []struct {
		name, says string
		qps        float64
		slo        int64
		paper      float64
	}{
		{"qps10_slo300", "2 A", 10, 300, 2}, {"qps10_slo50", "1 B", 10, 50, 3}, {"qps1000_slo300", "2 B and 1 C", 1000, 300, 22},
	} {
		for _, solver := range []string{"exact", "greedy"} {
			note := "exact solver without headroom; the paper: " + query.says
			if solver == "greedy" {
				note = "the greedy rule, which adds instances of one variant"
			}
			rows = append(rows, &row{
				figure: "placement.infaas.table3." + query.name + "." + solver + ".cost", unit: "cost", note: note, published: published{paper: query.paper},
				run: func(ctx context.Context, _ uint64) (float64, error) {
					p, err := planned(ctx, "infaas", variantWorld(query.qps, query.slo), map[string]string{"solver": solver, "slack": "0", "inference_part": "1"})
					cost := 0.0
					for _, part := range p.GetPartitions() {
						for _, in := range part.GetInstances() {
							cost += prices[in.GetModel()]
						}
					}
					return cost, err
				},
			})
		}
	}
	return rows
}

// variantWorld is INFaaS' table 2: three variants of ResNet50, each with its latency, the rate at which an instance saturates and its cost. A batch of
// the last number in that latency is that rate.
func variantWorld(qps float64, sloMS int64) *policy.Snapshot {
	s := &policy.Snapshot{
		Revision: 1, Seed: 1, Nodes: []*policy.Node{{Name: "n", Cpu: &policy.CPU{Type: "cpu", Cores: 400, MemoryBytes: 1 << 40}}},
		Apps: []*policy.App{{Name: "app", SloUs: sloMS * 1000, Rate: qps}},
	}
	for i := range 16 {
		for _, of := range []string{"inferentia", "V100"} {
			s.Nodes[0].Gpus = append(s.Nodes[0].Gpus, &policy.GPU{Id: fmt.Sprintf("%s-%d", of, i), Type: of})
		}
	}
	for _, v := range []struct {
		name, place string
		latency     int64
		cost        float64
		batch       uint32
	}{{"A", "cpu", 200, 1, 1}, {"B", "inferentia", 20, 3, 2}, {"C", "V100", 15, 16, 12}} {
		us := float64(v.latency) * 1000
		p := &policy.Profile{Model: v.name, GpuType: v.place, Usable: true}
		for _, share := range []uint32{1, 100} {
			p.Points = append(p.Points, &policy.ProfilePoint{Batch: v.batch, ThreadPercentage: share, LatencyUs: &policy.Estimate{Value: us}, LatencyUpperUs: us})
		}
		s.Profiles = append(s.Profiles, p)
		s.Models = append(s.Models, &policy.Model{Name: v.name, SloUs: v.latency * 1000, MaxBatchSize: v.batch, Batchable: true})
		s.Apps[0].Variants = append(s.Apps[0].Variants, &policy.Variant{Model: v.name, Places: []string{v.place}, CostPerHour: v.cost})
	}
	return s
}

// need is a model of USHER's figures: what batches take of a GPU's compute and memory. Every batch takes 5 ms, within an SLO of 100.
type need struct {
	rate       float64
	creq, mreq map[uint32]float64
}

func needy(gpus int, all ...need) *policy.Snapshot {
	s := &policy.Snapshot{Revision: 1, Seed: 1, Nodes: []*policy.Node{{Name: "n"}}}
	for i := range gpus {
		s.Nodes[0].Gpus = append(s.Nodes[0].Gpus, &policy.GPU{Id: fmt.Sprintf("gpu%d", i), Type: "X", Index: uint32(i), MemoryBytes: 16 << 30, CostPerHour: 1, Emulated: true, SharesEnforced: true}) //nolint:gosec // few
	}
	for i, n := range all {
		p := &policy.Profile{Model: fmt.Sprintf("m%d", i+1), GpuType: "X", Usable: true}
		largest := uint32(0)
		for _, batch := range []uint32{1, 2, 4, 8, 16, 32} {
			creq, ok := n.creq[batch]
			if !ok {
				continue
			}
			largest = batch
			for _, share := range []uint32{10, 20, 40, 50, 100} {
				p.Points = append(p.Points, &policy.ProfilePoint{
					Batch: batch, ThreadPercentage: share, LatencyUs: &policy.Estimate{Value: 5000}, LatencyUpperUs: 5000,
					Creq: &policy.Estimate{Value: creq}, Mreq: &policy.Estimate{Value: n.mreq[batch]},
				})
			}
		}
		s.Profiles = append(s.Profiles, p)
		s.Models = append(s.Models, &policy.Model{Name: p.Model, SloUs: 100_000, MaxBatchSize: largest, Batchable: true, Rate: n.rate, RowRate: n.rate, Burstiness: 1})
	}
	return s
}

// filled is how many GPUs a plan uses, and what it fills of their memory on average, in percent: the Mreq of every instance at its batch.
func filled(s *policy.Snapshot, p *policy.Plan) (gpus, percent float64) {
	used, memory := make(map[string]bool), 0.0
	for _, part := range p.GetPartitions() {
		used[part.GPU()] = true
		for _, in := range part.GetInstances() {
			for _, profile := range s.GetProfiles() {
				for _, q := range profile.GetPoints() {
					if profile.GetModel() == in.GetModel() && q.GetBatch() == in.GetMaxBatch() && q.GetThreadPercentage() == 100 {
						memory += q.GetMreq().GetValue()
					}
				}
			}
		}
	}
	return float64(len(used)), 100 * memory / float64(len(used))
}

// figure3Rows are USHER's figure 3: three models whose memory fills three GPUs; with one of them divided in two it is still three; with all of them, two.
// A batch of 8 takes the memory of the figure, and one of 4 the parameters and half of the rest. At 800 rows a second a batch of 8 is enough, and of
// 4 takes two replicas: which batches a model has says whether it is divided.
func (b *bench) figure3Rows() (rows []*row) {
	memory := []map[uint32]float64{{4: .40, 8: .70}, {4: .35, 8: .65}, {4: .25, 8: .40}}
	for _, division := range []struct {
		name          string
		batches       [3]uint32
		gpus, percent float64
	}{
		{"a", [3]uint32{8, 8, 8}, 3, 58.33}, {"b", [3]uint32{4, 8, 8}, 3, 61.66}, {"c", [3]uint32{4, 4, 4}, 2, 100},
	} {
		of := func(ctx context.Context) (gpus, percent float64, err error) {
			var all []need
			for i, batch := range division.batches {
				all = append(all, need{800, map[uint32]float64{batch: .2}, map[uint32]float64{batch: memory[i][batch]}})
			}
			s := needy(4, all...)
			p, err := planned(ctx, "usher", s, map[string]string{"batches": "4,8"})
			gpus, percent = filled(s, p)
			return gpus, percent, err
		}
		rows = append(rows,
			&row{figure: "placement.usher.fig3" + division.name + ".gpus", unit: "GPUs", published: published{paper: division.gpus}, run: func(ctx context.Context, _ uint64) (float64, error) {
				gpus, _, err := of(ctx)
				return gpus, err
			}},
			&row{figure: "placement.usher.fig3" + division.name + ".memory", unit: "%", published: published{paper: division.percent}, run: func(ctx context.Context, _ uint64) (float64, error) {
				_, percent, err := of(ctx)
				return percent, err
			}})
	}
	return rows
}

// figure7Rows are USHER's figure 7: two models that need compute and two that need memory, as they come and in pairs.
func (b *bench) figure7Rows() (rows []*row) {
	for _, order := range []struct {
		name       string
		parameters map[string]string
		paper      float64
	}{
		{"unsorted", map[string]string{"batches": "32", "classify": "false", "sort": "false"}, 3}, {"paired", map[string]string{"batches": "32"}, 2},
	} {
		rows = append(rows, &row{
			figure: "placement.usher.fig7." + order.name + ".gpus", unit: "GPUs", note: "M2 with a Creq of 50%, which the figure's own sums want; its text has 20%", published: published{paper: order.paper},
			run: func(ctx context.Context, _ uint64) (float64, error) {
				var all []need
				for _, n := range [][2]float64{{.5, .2}, {.5, .2}, {.4, .6}, {.4, .6}} {
					all = append(all, need{100, map[uint32]float64{32: n[0]}, map[uint32]float64{32: n[1]}})
				}
				s := needy(4, all...)
				p, err := planned(ctx, "usher", s, order.parameters)
				gpus, _ := filled(s, p)
				return gpus, err
			},
		})
	}
	return rows
}

// headlineRows are USHER's headline (section 5.2) on models and GPUs of its number, whose latencies and requirements are ours: goodput on 24 GPUs past
// what they can do, GPUs for less, and the time of a decision.
func (b *bench) headlineRows(a arena) (rows []*row) {
	const ours = "the paper publishes no latencies or requirements: those here are ours"
	heldBy := func(ctx context.Context, seed uint64, name string) (float64, error) {
		c := &contest{bench: b.seeded(seed), arena: a, placement: placement{name: name, policy: name}}
		err := c.search(ctx, 0)
		return c.load(), err
	}
	for _, other := range []struct {
		name  string
		paper float64
	}{{"shepherd", 2.6}, {"gpulet", 2.2}, {"alpaserve", 2.2}} {
		rows = append(rows, &row{
			figure: "placement.usher20.usher_over_" + other.name + ".held", unit: "ratio", published: published{paper: other.paper},
			note: "the paper: from 1 to this, growing with the load; ours: the loads that the two hold on 24 GPUs. " + ours,
			run: func(ctx context.Context, seed uint64) (float64, error) {
				us, err := heldBy(ctx, seed, "usher")
				if err != nil {
					return 0, err
				}
				them, err := heldBy(ctx, seed, other.name)
				return us / them, err
			},
		})
	}
	rows = append(rows, &row{
		figure: "placement.usher20.decision", unit: "s", published: published{paper: .51}, note: "processor time of usher's plan for 20 models on 24 GPUs; the paper's machine is another",
		run: func(ctx context.Context, seed uint64) (float64, error) {
			q, err := a.ask(a.guess, seed, b.simulated(1), nil)
			if err != nil {
				return 0, err
			}
			const times = 10
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			began, err := threadTime()
			for range times {
				if err != nil {
					return 0, err
				}
				_, err = planned(ctx, "usher", q.snapshot, nil)
			}
			now, late := threadTime()
			return (now - began).Seconds() / times, errors.Join(err, late)
		},
	})
	return rows
}

// throughputRows are gpulet's figure 12: how much more the scheduler holds than its baselines, over five scenarios and two applications.
func (b *bench) throughputRows(named map[string]arena) (rows []*row) {
	const ours = "geometric mean over the seven; the paper's latencies are not published, those here are ours (bench/policies.go)"
	schedulers := map[string]placement{
		"nexus": {name: "nexus", policy: "nexus"}, "gpulet": {name: "gpulet", policy: "gpulet"},
		"gpulet_blind":   {name: "gpulet_blind", policy: "gpulet", parameters: map[string]string{"interference": "off"}},
		"gpulet_bestfit": {name: "gpulet_bestfit", policy: "gpulet", parameters: map[string]string{"partitioning": "bestfit"}},
	}
	seven := []string{"game", "traffic", "scen1", "scen2", "scen3", "scen4", "scen5"}
	for _, comparison := range []struct {
		over, name string
		paper      float64
		note       string
		only       []string
	}{
		{"nexus", "sbp", 1.617, ours, seven}, {"gpulet_bestfit", "bestfit", 1.812, ours, seven}, {"gpulet_blind", "without_interference", 1.075, ours, seven},
		{"nexus", "sbp.game", 1650. / 690, "with latencies of ours", seven[:1]},
	} {
		rows = append(rows, &row{
			figure: "placement.gpulet.over_" + comparison.name, unit: "ratio", published: published{paper: comparison.paper}, note: comparison.note,
			run: func(ctx context.Context, seed uint64) (float64, error) {
				sum := 0.0
				for _, name := range comparison.only {
					var loads []float64
					for _, who := range []string{"gpulet", comparison.over} {
						p := schedulers[who]
						if p.parameters == nil {
							p.parameters = map[string]string{}
						}
						c := &contest{bench: b.seeded(seed), arena: named[name], placement: p}
						if err := c.search(ctx, 0); err != nil {
							return 0, err
						}
						loads = append(loads, c.load())
					}
					sum += math.Log(loads[0] / loads[1])
				}
				return math.Exp(sum / float64(len(comparison.only))), nil
			},
		})
	}
	return rows
}

// seeded is the bench with another seed.
func (b *bench) seeded(seed uint64) *bench {
	c := *b
	c.seed = seed
	return &c
}

// threadTime is the processor time of the present thread.
func threadTime() (time.Duration, error) {
	var u syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_THREAD, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), err
}
