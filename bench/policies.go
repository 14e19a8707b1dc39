// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/plugins/builtin"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim/evaluate"
	"github.com/conch-serving/conch/sidecar/sim/try"
)

// nine are the models of gpulet's schedulability study with its SLOs (its artifact's scripts and table 4). Their latencies are not published: those
// here are ours. On a whole GPU a batch of 32 takes half of the SLO, which is how the paper sets SLOs, and a batch of one 15% of that; a share
// below the knee slows in proportion to what it lacks, and a batch of one is content with half of the knee.
var nine = []struct {
	name string
	slo  float64 // ms
	knee float64 // percent, at a batch of 32
	l2   float64 // L2 and bandwidth utilisation at a batch of 32
	dram float64
}{
	{"lenet1", 5, 20, .1, .05}, {"googlenet", 66, 50, .25, .3}, {"resnet50", 108, 60, .3, .4}, {"ssd-mobilenetv1", 202, 60, .3, .35},
	{"vgg16", 142, 80, .4, .5}, {"mnasnet1_0", 62, 40, .2, .3}, {"mobilenet_v2", 64, 40, .2, .35}, {"densenet161", 202, 50, .3, .45}, {"bert", 22, 60, .35, .3},
}

// nineOnFour is the world of the study: the nine models on four GPUs, without load.
func nineOnFour() *policy.Snapshot {
	s := &policy.Snapshot{Revision: 1, Seed: 1, Nodes: []*policy.Node{{Name: "n"}}, Interference: []*policy.Interference{
		// gpulet's artifact, for the 2080 Ti.
		{GpuType: "2080Ti", L2Self: .1129, L2Other: .7160, BandwidthSelf: .3549, BandwidthOther: .0882, Constant: .8954},
	}}
	for i := range 4 {
		s.Nodes[0].Gpus = append(s.Nodes[0].Gpus, &policy.GPU{
			Id: fmt.Sprintf("gpu%d", i), Type: "2080Ti", Index: uint32(i), MemoryBytes: 11 << 30, CostPerHour: 1, Emulated: true, SharesEnforced: true, //nolint:gosec // small
		})
	}
	for _, m := range nine {
		s.Models = append(s.Models, &policy.Model{
			Name: m.name, SloUs: int64(m.slo * 1e3), MaxBatchSize: 32, Batchable: true, MemoryBytes: 200 << 20, Burstiness: 1, Late: policy.LatePolicy_LATE_POLICY_DROP,
		})
		p := &policy.Profile{Model: m.name, GpuType: "2080Ti", Usable: true, Source: policy.ProfileSource_PROFILE_SOURCE_DECLARED}
		for _, share := range []uint32{20, 40, 50, 60, 80, 100} {
			for _, batch := range []uint32{1, 2, 4, 8, 16, 32} {
				fill := float64(batch) / 32
				slow := math.Max(1, m.knee*(.5+.5*fill)/float64(share))
				us := m.slo * 1e3 / 2 * (.15 + .85*fill) * slow
				p.Points = append(p.Points, &policy.ProfilePoint{
					Batch: batch, ThreadPercentage: share, LatencyUs: &policy.Estimate{Value: us}, LatencyUpperUs: us,
					Creq: &policy.Estimate{Value: m.knee / 100 * (.5 + .5*fill)}, Mreq: &policy.Estimate{Value: .02 + .05*fill},
					L2Utilization: &policy.Estimate{Value: m.l2 * (.3 + .7*fill)}, BandwidthUtilization: &policy.Estimate{Value: m.dram * (.3 + .7*fill)},
				})
			}
		}
		s.Profiles = append(s.Profiles, p)
	}
	return s
}

func setLoad(s *policy.Snapshot, model string, rate float64) {
	for _, m := range s.GetModels() {
		if m.GetName() == model {
			m.Rate, m.RowRate = rate, rate
		}
	}
}

// scenes are gpulet's five mixes (its artifact's scripts) and one of ours, at a load of so many times the unit.
func scenes() map[string]map[string]float64 {
	return map[string]map[string]float64{
		"scen1": {"googlenet": 100, "bert": 100, "mnasnet1_0": 50, "mobilenet_v2": 50},
		"scen2": {"densenet161": 10, "vgg16": 10},
		"scen3": {"resnet50": 10, "vgg16": 10, "mobilenet_v2": 10},
		"scen4": {"ssd-mobilenetv1": 10, "mnasnet1_0": 10, "densenet161": 10},
		"scen5": {"lenet1": 10, "ssd-mobilenetv1": 10, "vgg16": 10, "mnasnet1_0": 10},
		// A tight model beside heavy ones, each of whose batches it cannot wait for.
		"mixed": {"lenet1": 300, "vgg16": 20, "densenet161": 20},
	}
}

// placement is a policy with parameters.
type placement struct {
	name, policy string
	parameters   map[string]string
}

func placements() []placement {
	all := []placement{
		{"gpulet_bestfit", "gpulet", map[string]string{"partitioning": "bestfit"}},
		{"gpulet_evensplit", "gpulet", map[string]string{"partitioning": "evensplit"}},
	}
	for _, name := range builtin.Names() {
		all = append(all, placement{name, name, nil})
	}
	slices.SortFunc(all, func(a, b placement) int { return strings.Compare(a.name, b.name) })
	return all
}

// policies compares placements in the simulator: how many of gpulet's 19,682 mixes each can schedule, and the load that each holds in gpulet's
// five scenarios and one of ours. Plans are made for the mean rates and one traffic; they are judged by another that they never saw.
func (b *bench) policies(ctx context.Context, r *figure.Report) error {
	r.Emulated = "all of it: simulated time on GPUs that are arithmetic, with latencies that are ours (bench/policies.go)"
	if b.wants("schedulable") {
		if err := b.schedulable(ctx, r); err != nil {
			return err
		}
	}
	if b.wants("held") {
		return b.held(ctx, r)
	}
	return nil
}

// schedulable counts the mixes of 0, 100 and 200 requests per second of each of the nine models that a way to cut GPUs can schedule by its own
// account: whose plan carries the rate of every model, up to the 15 requests per second that gpulet drops.
func (b *bench) schedulable(ctx context.Context, r *figure.Report) error {
	every := 1
	if b.quick {
		every = 50
	}
	for _, partitioning := range []string{"none", "evensplit", "bestfit", "elastic"} {
		session, err := try.Open(ctx, try.Options{Policy: "gpulet", Parameters: map[string]string{"partitioning": partitioning}})
		if err != nil {
			return err
		}
		s := nineOnFour()
		tried, good := 0, 0
		for mix := 1; mix < 19683; mix += every {
			for i, digits := 0, mix; i < len(nine); i, digits = i+1, digits/3 {
				setLoad(s, nine[i].name, float64(digits%3*100))
			}
			t, err := session.Run(ctx, s)
			if err != nil {
				return err
			}
			if t.Error != "" {
				return fmt.Errorf("mix %d: %s", mix, t.Error)
			}
			tried++
			if carries(s, t.Plan) {
				good++
			}
		}
		fmt.Fprintf(b.progress, "%-10s schedules %d of %d mixes\n", partitioning, good, tried)
		r.Add("policies.schedulable."+partitioning, float64(good)/float64(tried), "ratio", "")
	}
	return nil
}

// dropped is what gpulet leaves a model short of rather than giving it another place.
const dropped = 15

func carries(s *policy.Snapshot, p *policy.Plan) bool {
	planned := map[string]float64{}
	for _, part := range p.GetPartitions() {
		for _, in := range part.GetInstances() {
			planned[in.GetModel()] += in.GetRate()
		}
	}
	for _, m := range s.GetModels() {
		if m.GetRate() > 0 && planned[m.GetName()] < m.GetRate()-dropped {
			return false
		}
	}
	return true
}

// held is the load, in multiples of a scenario's unit, up to which a policy's plan has at most 1% bad requests for every model, on traffic that
// the policy did not see.
func (b *bench) held(ctx context.Context, r *figure.Report) error {
	names := make([]string, 0, len(scenes()))
	for name := range scenes() {
		names = append(names, name)
	}
	slices.Sort(names)
	length := 10 * time.Second
	if b.quick {
		length = 2 * time.Second
	}
	for _, scene := range names {
		for _, c := range placements() {
			session, err := try.Open(ctx, try.Options{Policy: c.policy, Parameters: c.parameters, Evaluations: 128, Length: 2 * time.Second})
			if err != nil {
				return err
			}
			holds := func(times float64) (bool, error) {
				s := nineOnFour()
				s.Seed = b.seed
				for model, rate := range scenes()[scene] {
					setLoad(s, model, rate*times)
				}
				t, err := session.Run(ctx, s)
				if err != nil || t.Error != "" || len(t.Violations) > 0 {
					return false, err
				}
				unseen := proto.CloneOf(s)
				unseen.Seed += 1000
				traffic, err := evaluate.Generate(unseen, length)
				if err != nil {
					return false, err
				}
				o, err := evaluate.New(s, traffic).Evaluate(ctx, t.Plan)
				if err != nil || len(o[0].GetViolations()) > 0 {
					return false, err
				}
				return !slices.ContainsFunc(o[0].GetModels(), func(m *policy.ModelOutcome) bool { return m.GetBadRate() > .01 }), nil
			}
			most, err := mostHeld(holds)
			if err != nil {
				return fmt.Errorf("%s in %s: %w", c.name, scene, err)
			}
			fmt.Fprintf(b.progress, "%-8s %-18s holds %.3g times the unit\n", scene, c.name, most)
			r.Add("policies."+scene+"."+c.name+".held", most, "x", "")
		}
	}
	return nil
}

// mostHeld is the highest load that holds, within 3%: doubled until it does not, then halved in between.
func mostHeld(holds func(float64) (bool, error)) (float64, error) {
	low, high := 0.0, .25
	for high < 1<<10 {
		ok, err := holds(high)
		if err != nil {
			return 0, err
		}
		if !ok {
			break
		}
		low, high = high, 2*high
	}
	for low > 0 && high/low > 1.03 {
		middle := (low + high) / 2
		ok, err := holds(middle)
		if err != nil {
			return 0, err
		}
		if ok {
			low = middle
		} else {
			high = middle
		}
	}
	return low, nil
}
