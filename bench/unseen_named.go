// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"

	"github.com/conch-serving/conch/sidecar/sim/scenario"
)

// namedLoads are the loads that the families of draws were made after.
func namedLoads() []draw {
	var all []draw
	for _, gpus := range []int{2, 4, 8} {
		all = append(all, named(fmt.Sprintf("tightheavy.gpus%d", gpus), gpus,
			line("tight", 4, .3, 15, 2, nil), line("heavy", 25, 2, 200, 1, nil)))
	}
	for _, gpus := range []int{2, 4} {
		tight, heavy := line("tight", 4, .3, 15, 2, nil), line("heavy", 25, 2, 200, 1, nil)
		bursty := line("bursty", 30, 3, 600, .5, nil)
		bursty.arrivals.Shape = .1
		all = append(all, named(fmt.Sprintf("bursty.gpus%d", gpus), gpus, tight, heavy, bursty))
	}
	var classes []drawnModel
	for i := range 10 {
		n := strconv.Itoa(i)
		switch {
		case i < 4:
			classes = append(classes, line("tight"+n, 4, .4, 20, 2, nil))
		case i < 7:
			classes = append(classes, line("medium"+n, 8, 1, 60, 1.5, nil))
		default:
			classes = append(classes, line("loose"+n, 20, 2, 300, 1, nil))
		}
	}
	all = append(all, named("classes.gpus6", 6, classes...))
	surge := func(name string, models, gpus int, factor, length float64) draw {
		steps := surges(factor, length, 6)
		var some []drawnModel
		for i := range models {
			some = append(some, line(fmt.Sprint("m", i), 5.072, 1.053, 25+10*float64(i), 1, steps))
		}
		d := named(name, gpus, some...)
		d.surges = true
		return d
	}
	return append(all, surge("doubled.gpus6", 4, 6, 2, 1), surge("tripled.gpus3", 3, 3, 3, .5))
}

// line is a model of l(b) = row b + fixed, times in milliseconds.
func line(name string, fixed, row, slo, weight float64, steps []scenario.Step) drawnModel {
	m := drawnModel{name: name, slo: slo * ms, weight: weight, rows: 1, arrivals: scenario.Arrivals{Steps: steps}}
	for b := 1.0; b <= 65; b++ {
		m.latency = append(m.latency, (fixed+row*b)*ms)
	}
	return m
}

func named(name string, gpus int, models ...drawnModel) draw {
	s := &scenario.Scenario{APIVersion: scenario.APIVersion, Name: name, Rate: 1, GPUs: []scenario.GPUs{{Type: "fast", Count: gpus}}}
	d := &drawing{load: draw{name: name, scenario: s}, types: []float64{1}, speed: float64(gpus), models: models}
	return d.done()
}
