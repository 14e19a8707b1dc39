// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// arenas are gpulet's five scenarios and two applications, USHER's models on 24 GPUs (equal rates, an Azure trace, two types of GPU), and models of
// different SLO classes.
func arenas() ([]arena, error) {
	all := []arena{
		// Table 5 and the scripts of gpulet's artifact: scen1 asks for two models twice as often.
		{name: "scen1", world: nineOnFour, mix: map[string]float64{"googlenet": 2, "bert": 2, "mnasnet1_0": 1, "mobilenet_v2": 1}, guess: 4000},
		{name: "scen2", world: nineOnFour, mix: map[string]float64{"densenet161": 1, "vgg16": 1}, guess: 1500},
		{name: "scen3", world: nineOnFour, mix: map[string]float64{"resnet50": 1, "vgg16": 1, "mobilenet_v2": 1}, guess: 2500},
		{name: "scen4", world: nineOnFour, mix: map[string]float64{"ssd-mobilenetv1": 1, "mnasnet1_0": 1, "densenet161": 1}, guess: 2000},
		{name: "scen5", world: nineOnFour, mix: map[string]float64{"lenet1": 1, "ssd-mobilenetv1": 1, "vgg16": 1, "mnasnet1_0": 1}, guess: 2000},
		// Figure 11 with the SLOs of its text and scheduler: 108 ms for everything in game; in traffic 202 ms, 90 for the first stage and 112 for the
		// second. Stages arrive independently of each other.
		{name: "game", world: game, mix: map[string]float64{"lenet1": 1, "lenet2": 1, "lenet3": 1, "lenet4": 1, "lenet5": 1, "lenet6": 1, "resnet50": 1}, guess: 10000},
		{name: "traffic", world: traffic, mix: map[string]float64{"ssd-mobilenetv1": 1, "googlenet": 1, "vgg16": 1}, guess: 2000},
	}
	even := make(map[string]float64)
	for _, k := range twenty {
		even[k.name] = 1
	}
	all = append(all,
		arena{name: "usher20", world: emulated(twenty, v100(24)), mix: even, guess: 9000},
		// USHER's two traces: one of many functions, steady and dense, and one of bursts.
		arena{name: "azure", world: emulated(twenty, v100(24)), trace: roundRobin(4600), guess: 7000},
		arena{name: "azure_bursty", world: emulated(twenty, v100(24)), trace: roundRobin(460), guess: 5000},
		arena{name: "two_types", world: emulated(twenty, v100(8), t4(24)), mix: even, guess: 7000, mixed: true},
		// One model whose every batch is longer than the other can wait.
		arena{name: "tight_heavy", world: emulated([]kind{
			{name: "tight", slo: 15, knee: 80, weights: 100 * mib, working: 200 * mib, l2: .3, dram: .3},
			{name: "heavy", slo: 400, knee: 90, weights: gib, working: 2 * gib, l2: .4, dram: .5},
		}, v100(2)), mix: map[string]float64{"tight": 20, "heavy": 1}, guess: 3000},
		arena{name: "mixed", world: nineOnFour, mix: map[string]float64{"lenet1": 300, "vgg16": 20, "densenet161": 20}, guess: 4000},
	)
	classes, err := threeClasses()
	return append(all, classes), err
}

// keep leaves the models of a mix.
func keep(s *policy.Snapshot, mix map[string]float64) *policy.Snapshot {
	if mix == nil {
		return s
	}
	s.Models = slices.DeleteFunc(s.Models, func(m *policy.Model) bool { return mix[m.GetName()] == 0 })
	s.Profiles = slices.DeleteFunc(s.Profiles, func(p *policy.Profile) bool { return mix[p.GetModel()] == 0 })
	return s
}

// within sets the SLO of a model; its latencies stay.
func within(s *policy.Snapshot, model string, ms int64) {
	for _, m := range s.GetModels() {
		if m.GetName() == model {
			m.SloUs = ms * 1000
		}
	}
}

// game has five more LeNets.
func game() *policy.Snapshot {
	s := nineOnFour()
	for i := 2; i <= 6; i++ {
		m, p := proto.CloneOf(s.Models[0]), proto.CloneOf(s.Profiles[0])
		m.Name = fmt.Sprintf("lenet%d", i)
		p.Model = m.Name
		s.Models, s.Profiles = append(s.Models, m), append(s.Profiles, p)
	}
	for _, m := range s.GetModels() {
		if strings.HasPrefix(m.GetName(), "lenet") || m.GetName() == "resnet50" {
			m.SloUs = 108_000
		}
	}
	return s
}

func traffic() *policy.Snapshot {
	s := nineOnFour()
	within(s, "ssd-mobilenetv1", 90)
	within(s, "googlenet", 112)
	within(s, "vgg16", 112)
	return s
}

// Prices are those of Amazon's p3.2xlarge and g4dn.xlarge on demand; that a T4 is 2.5 times slower is ours.
func v100(n int) pool {
	return pool{of: "V100", count: n, memory: 16 * gib, cost: 3.06, slower: 1, later: 1}
}
func t4(n int) pool {
	return pool{of: "T4", count: n, memory: 16 * gib, cost: .526, slower: 2.5, later: 1.5}
}

// twenty are the models of USHER's table 1 with its SLOs, sizes (4 bytes a parameter, 2 in those above a billion; of Llama-2, which the paper
// divides over GPUs, a quarter) and times to load. Their latencies and requirements are not published: those here are ours, as for gpulet's nine.
var twenty = []kind{
	{"yolo-v3", 197, 70, 35 * mib, 4800 * mib, .30, .40, .44},
	{"r-cnn", 284, 80, 168 * mib, 6400 * mib, .35, .45, .57},
	{"mobilenetssd-v2", 93, 40, 60 * mib, 2400 * mib, .20, .35, .495},
	{"resnet-50", 108, 60, 96 * mib, 3200 * mib, .30, .40, .51},
	{"resnet-101", 198, 70, 176 * mib, 4500 * mib, .30, .40, .586},
	{"resnext-50", 116, 60, 100 * mib, 4000 * mib, .30, .40, .531},
	{"resnext-101", 407, 90, 356 * mib, 6400 * mib, .35, .45, .7},
	{"squeezenet", 14, 20, 2 * mib, 1000 * mib, .10, .10, .31},
	{"shufflenet-v2", 40, 25, 8 * mib, 1300 * mib, .15, .20, .39},
	{"mobilenet-v2", 64, 40, 14 * mib, 1900 * mib, .20, .35, .395},
	{"densenet-121", 202, 50, 30 * mib, 7200 * mib, .30, .45, .4},
	{"densenet-201", 405, 60, 56 * mib, 8800 * mib, .30, .50, .49},
	{"inception-resnet-v2", 439, 80, 224 * mib, 5600 * mib, .35, .45, .6},
	{"inception-v3", 116, 60, 100 * mib, 2900 * mib, .30, .35, .53},
	{"inception-v4", 204, 70, 172 * mib, 4000 * mib, .30, .40, .58},
	{"efficientnet-b7", 217, 60, 264 * mib, 9600 * mib, .30, .50, .64},
	{"gnmt", 66, 40, 1112 * mib, 3000 * mib, .30, .45, .89},
	{"bert", 35, 60, 440 * mib, 2400 * mib, .35, .30, .78},
	{"gpt-2", 140, 50, 2900 * mib, 5000 * mib, .30, .55, 1.18},
	{"llama-2", 834, 45, 6200 * mib, 6000 * mib, .30, .60, 1.59},
}

// threeClasses are ten models of the zoo on six GPUs: three that are tight, four between, three heavy ones. The zoo's latencies are those of whole
// GPUs; knees and utilisations are ours.
func threeClasses() (arena, error) {
	all, err := zoo.Profiles(zoo.A100)
	if err != nil {
		return arena{}, err
	}
	a := arena{name: "three_classes", mix: make(map[string]float64), guess: 5000}
	type member struct {
		zoo.Profile
		knee, weight float64
	}
	var members []member
	for _, class := range []struct {
		names        []string
		knee, weight float64
	}{
		{[]string{"MobileNetV2", "MobileNetV3Small", "EfficientNetB0"}, 40, 6},
		{[]string{"ResNet50", "InceptionV3", "EfficientNetB2", "Xception"}, 60, 3},
		{[]string{"EfficientNetV2L", "EfficientNetB7", "SSDMobilenet"}, 90, .25},
	} {
		for _, name := range class.names {
			i := slices.IndexFunc(all, func(p zoo.Profile) bool { return p.Model == name })
			if i < 0 {
				return a, fmt.Errorf("the zoo has no model %s", name)
			}
			members = append(members, member{all[i], class.knee, class.weight})
			a.mix[name] = class.weight
		}
	}
	a.world = func() *policy.Snapshot {
		var kinds []kind
		for _, m := range members {
			kinds = append(kinds, kind{name: m.Model, slo: m.SLO.Seconds() * 1e3, knee: m.knee, weights: 200 * mib, working: 2 * gib, l2: .25, dram: .35})
		}
		s := emulated(kinds, pool{of: zoo.A100, count: 6, memory: 40 * gib, cost: 3.6, slower: 1, later: 1})()
		for i, p := range s.GetProfiles() {
			for _, q := range p.GetPoints() {
				slow := math.Max(1, members[i].knee*(.5+.5*float64(q.GetBatch())/32)/float64(q.GetThreadPercentage()))
				us := members[i].Latency(int(q.GetBatch())).Seconds() * 1e6 * slow
				q.LatencyUs, q.LatencyUpperUs = &policy.Estimate{Value: us}, us
			}
		}
		return s
	}
	return a, nil
}

// azure writes a trace in the format of the Azure Functions trace of 2019: functions whose popularity is log-normal, most with steady calls, some by
// timers and some in bursts. Rates wander by a sine of some hours. The real one has 46,000 functions; the fewer there are, the burstier the load
// of a model.
func azure(seed uint64, functions, minutes int) ([]byte, error) {
	random := workload.Seed(seed, "azure", "")
	var text bytes.Buffer
	lines := csv.NewWriter(&text)
	head := []string{"HashOwner", "HashApp", "HashFunction", "Trigger"}
	for i := range minutes {
		head = append(head, strconv.Itoa(i+1))
	}
	_ = lines.Write(head) // to a buffer
	for i := range functions {
		mean := 60 * math.Exp(1.6*random.NormFloat64())
		trigger, phase, period := "http", 2*math.Pi*random.Float64(), 60*(1+4*random.Float64())
		switch u := random.Float64(); {
		case u < .15:
			trigger = "timer"
		case u < .3:
			trigger = "queue"
		}
		every, busy := []int{1, 5, 15}[random.IntN(3)], false
		line := []string{fmt.Sprintf("o%03d", i%97), fmt.Sprintf("a%03d", i%211), fmt.Sprintf("f%03d", i), trigger}
		for minute := range minutes {
			n := mean * (1 + .4*math.Sin(phase+2*math.Pi*float64(minute)/period))
			switch trigger {
			case "timer":
				if n *= float64(every); minute%every != i%every {
					n = 0
				}
			case "queue": // a fifth of the minutes are busy, in runs
				if random.Float64() < map[bool]float64{true: .4, false: .1}[busy] {
					busy = !busy
				}
				if n *= 5; !busy {
					n = 0
				}
			}
			// A Poisson count, by the normal distribution: only large ones matter here.
			line = append(line, strconv.Itoa(int(math.Max(0, math.Round(n+math.Sqrt(n)*random.NormFloat64())))))
		}
		_ = lines.Write(line)
	}
	lines.Flush()
	return text.Bytes(), lines.Error()
}

// roundRobin assigns so many functions of a trace to the twenty models one after the other, as USHER did (section 2). Traces are kept by their seed.
func roundRobin(functions int) func(seed uint64) (map[string][]workload.Counts, error) {
	var mutex sync.Mutex
	known := make(map[uint64]map[string][]workload.Counts)
	return func(seed uint64) (map[string][]workload.Counts, error) {
		mutex.Lock()
		defer mutex.Unlock()
		if by, ok := known[seed]; ok {
			return by, nil
		}
		text, err := azure(seed, functions, pastMinutes+seenMinutes+unseenMinutes)
		if err != nil {
			return nil, err
		}
		all, err := workload.ReadAzure(bytes.NewReader(text))
		if err != nil {
			return nil, err
		}
		by := make(map[string][]workload.Counts)
		for i, c := range all {
			name := twenty[i%len(twenty)].name
			by[name] = append(by[name], c)
		}
		known[seed] = by
		return by, nil
	}
}
