// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
)

const gpus = 4

// models are six of the zoo that Symphony's authors published (Table 4, GTX 1080 Ti), of different length and SLO.
var models = [...]string{"ResNet50", "InceptionV3", "MobileNetV2", "VGG16", "DenseNet121", "EfficientNetB0"}

// scenario is what to compare, and for how long.
type scenario struct {
	contest rig.Contest
	// delays are the settings of max_queue_delay to choose Triton's best from, and triton its setups with them.
	delays []time.Duration
	triton []rig.Setup
	// figure prefixes the names of figures.
	figure string
	// offered is the rate that both face, in req/s; start is where the search for Triton's highest begins.
	offered, start float64
	// what is being shown, and what is not real about it.
	what, emulated string
}

func scenarioOf(triton, server string) (scenario, error) {
	// Times twice as long leave a busy machine's late wake-ups small beside the SLOs.
	stretch := 2.0
	s := scenario{figure: "demo", what: "minitriton (Triton's batching rule, in this process)"}
	s.contest = rig.Contest{GPUs: gpus, GPUType: zoo.GTX1080Ti, Warmup: 300 * time.Millisecond, Measure: 2500 * time.Millisecond, Seed: 1}
	switch triton {
	case "embedded":
		s.emulated = "GPUs: an execution of b rows sleeps for twice the published time of b rows, and SLOs are twice as long; minitriton stands for Triton"
	case "real":
		if server == "" {
			return scenario{}, errors.New("--triton=real needs --tritonserver: run `make demo TRITON=real`, or `make triton` first")
		}
		// Real servers spend about a millisecond of processor per execution: with times five times longer two cores keep up.
		stretch = 5
		s.figure, s.contest.Server = "demo.real", server
		s.contest.Warmup, s.contest.Measure = time.Second, 8*time.Second
		s.what = "tritonserver processes, one per GPU"
		s.emulated = "GPUs: an execution of b rows sleeps for five times the published time of b rows, in Triton's python backend; SLOs are five times longer too"
	default:
		return scenario{}, fmt.Errorf("--triton=%s: embedded or real", triton)
	}
	s.offered, s.start = 500/stretch, 330/stretch
	for _, delay := range []time.Duration{0, time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond} {
		s.delays = append(s.delays, time.Duration(stretch*float64(delay)))
	}
	s.triton = rig.Delays(s.delays...)
	var err error
	s.contest.Models, err = rig.Zoo(zoo.GTX1080Ti, stretch, 16, models[:]...)
	return s, err
}
