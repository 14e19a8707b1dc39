// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/sidecar/sim/workload"
)

const (
	// mixSeed drew the ten loads, once, from /dev/urandom.
	mixSeed = 946436129
	// mixLoads is how many there are, mixModels and mixGPUs of what each has.
	mixLoads, mixModels, mixGPUs = 10, 8, 4
	// mixElements is a row: 600 KB.
	mixElements = 150_000
	// mixRate is about what the GPUs of a load can do in batches of eight, in req/s: times are stretched for that, so that two cores carry the bytes.
	mixRate = 120
	// mixSLO is by how much SLOs are longer than published, which are for GPUs that no other model uses: where eight share them, single rows of one wait for
	// batches of others, and by the published ones Triton holds a few requests a second.
	mixSLO = 3
	// mixRequests is how many a trial has, mixLength the longest that one is.
	mixRequests, mixLength = 1000, 25 * time.Second
	// adviceRate is what clients send while advice is asked for.
	adviceRate = mixRate / 4
	// adviceLook is how long advise looks at the traffic: so long that all models but the one that is asked for least have the 200 requests that advise wants of
	// them. adviceWithin is how long batches may be timed meanwhile, for adviceShare of the server's time.
	adviceLook, adviceWithin, adviceShare = 2 * time.Minute, 100 * time.Second, .2
	// adviceLimit is how long an answer may take; one that takes longer is none.
	adviceLimit = adviceLook + 30*time.Second
	// adviceFile is the results file with what advise said.
	adviceFile = "advise"
)

// mix is a load as users have it: different models of the zoo, some asked for much and some little, in bursts.
type mix struct {
	name    string
	models  rig.Models
	names   []string
	weights []float64
	shapes  []float64 // of the gaps' Gamma distribution, by model; 1 is Poisson
	stretch float64
}

// drawMix draws one of the loads.
func drawMix(number int) (mix, error) {
	profiles, err := zoo.Profiles(zoo.GTX1080Ti)
	if err != nil {
		return mix{}, err
	}
	random := workload.Seed(mixSeed, "mix", fmt.Sprint(number))
	m := mix{name: fmt.Sprintf("mix%d", number)}
	var list []zoo.Model
	busy, sum := 0.0, 0.0 // GPU seconds of a request, by weight
	for rank, i := range random.Perm(len(profiles))[:mixModels] {
		p := profiles[i]
		weight := math.Pow(float64(rank+1), -.9)
		m.names, m.weights = append(m.names, p.Model), append(m.weights, weight)
		m.shapes = append(m.shapes, []float64{1, 1, .3, .1}[random.IntN(4)])
		busy, sum = busy+weight*p.Latency(8).Seconds()/8, sum+weight
		list = append(list, zoo.Model{Name: p.Model, Profile: p, MaxBatchSize: 32, Dims: []int64{mixElements}})
	}
	m.stretch = max(stretch, mixGPUs*sum/busy/mixRate)
	for i := range list {
		list[i].Profile = list[i].Profile.Stretched(m.stretch)
		list[i].Profile.SLO *= mixSLO
	}
	m.models = rig.Emulated(list...)
	return m, nil
}

// arrivals of the load at a rate.
func (m mix) arrivals(rate float64, seed uint64, length time.Duration) ([]loadgen.Arrival, error) {
	var streams []workload.Stream
	sum := 0.0
	for _, w := range m.weights {
		sum += w
	}
	for i, w := range m.weights {
		s, err := workload.Renewal{Model: int32(i), Curve: workload.Constant(rate * w / sum), Shape: m.shapes[i], Random: workload.Seed(seed, "arrivals", m.names[i])}.Stream() //nolint:gosec // few
		if err != nil {
			return nil, err
		}
		streams = append(streams, s)
	}
	var all []loadgen.Arrival
	for _, s := range streams {
		for a := (workload.Arrival{}); s.Next(&a) && a.At < length; {
			all = append(all, loadgen.Arrival{At: a.At, Model: int(a.Model)})
		}
	}
	slices.SortStableFunc(all, func(a, b loadgen.Arrival) int { return int(a.At - b.At) })
	return all, nil
}

// contest is what measures the load.
func (b *bench) mixContest(m mix) *rig.Contest {
	return &rig.Contest{
		Models: m.models, GPUs: mixGPUs, GPUType: zoo.GTX1080Ti, Server: b.server, Bin: b.bin, Warmup: time.Second, Learn: learnFor,
		Requests: b.requests(mixRequests), Measure: mixLength, Every: true, Arrivals: m.arrivals, Seed: b.seed, Step: 2, Resolution: .1, Progress: func(line string) { b.say(m.name + ": " + line) },
	}
}

// eachMix does something for each load that --only lets through, and keeps what the report has by then: a run that is stopped has lost nothing but the load that
// it was at. A load that fails is begun once more, since what it adds to the report it adds at its end.
func (b *bench) eachMix(ctx context.Context, r *figure.Report, do func(mix) error) error {
	n := mixLoads
	if b.quick {
		n = 1
	}
	for number := range n {
		m, err := drawMix(number)
		if err != nil {
			return err
		}
		if !strings.Contains("mix."+m.name, b.only) {
			continue
		}
		err = do(m)
		if err != nil && ctx.Err() == nil {
			b.say(fmt.Sprintf("%s: %v; it is begun once more", m.name, err))
			err = do(m)
		}
		if err == nil {
			err = b.keep(r)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
	}
	return nil
}

// before does something with the server of a load: one for all GPUs, with dynamic batching as Triton's documentation begins with. That a server of Triton's hangs
// at its end, as some do now and then, takes nothing from what it has answered.
func (b *bench) before(ctx context.Context, m mix, do func(*rig.Tritons) error) error {
	if b.server == "" {
		return errors.New("no tritonserver: run `make bench BENCH=live`, or say --tritonserver")
	}
	server, err := rig.StartTritons(ctx, rig.TritonOptions{Server: b.server, Models: m.models, GPUs: mixGPUs, Node: rig.NodeBound, Dynamic: &zoo.DynamicBatching{}})
	if err != nil {
		return err
	}
	err = do(server)
	if closing := server.Close(); closing != nil {
		if err != nil {
			return errors.Join(err, closing)
		}
		b.say(fmt.Sprintf("%s: %v; what it has answered counts", m.name, closing))
	}
	return err
}

// emulatedMix says what is not real.
const emulatedMix = "GPUs: an execution sleeps for the published times of models of the 1080 Ti, stretched so that four GPUs do some 120 requests a second, SLOs three times as much, in the python backend of one real tritonserver for all four"

// advise asks `tritonctl advise` what Conch would gain on each of the ten loads, before anything of them is measured.
func (b *bench) advise(ctx context.Context, r *figure.Report) error {
	r.Emulated = emulatedMix
	return b.eachMix(ctx, r, func(m mix) error {
		var a advice
		err := b.before(ctx, m, func(server *rig.Tritons) (err error) {
			a, err = b.adviceOf(ctx, m, server)
			return err
		})
		if err != nil {
			return err
		}
		name := "advise." + m.name + "."
		if !a.Enough {
			r.Add(name+"answered", 0, "bool", "too little is known: "+strings.Join(a.Missing, "; "))
			return nil
		}
		r.Add(name+"answered", 1, "bool", fmt.Sprintf("eight models, Zipf .9, 600 KB rows, times x%.1f, SLOs x%.1f", m.stretch, mixSLO*m.stretch))
		r.Add(name+"predicted", a.Ratio, "ratio", "rate that Conch would hold over what the server holds")
		r.Add(name+"predicted_low", a.Low, "ratio", "the answer's range")
		r.Add(name+"predicted_high", a.High, "ratio", "the answer's range")
		return nil
	})
}

// mixes measures the ten loads that advise was asked about: what the server holds alone, and with Conch in front of it (driver attach, mode control).
func (b *bench) mixes(ctx context.Context, r *figure.Report) error {
	r.Emulated = emulatedMix
	said := byName{}
	reports, err := figure.Read(b.results)
	if err != nil {
		return err
	}
	for _, report := range reports {
		if report.File == adviceFile {
			said = byNameOf([]*figure.Report{report})
			r.Versions["advice"] = report.When.UTC().Format(time.RFC3339)
		}
	}
	for number := range mixLoads {
		name := fmt.Sprintf("mix%d", number)
		if _, asked := said["advise."+name+".answered"]; !asked && !b.quick && strings.Contains("mix."+name, b.only) {
			return fmt.Errorf("%s has nothing about %s: ask first, with conch-bench advise, and measure then; `make bench BENCH=live` does both", filepath.Join(b.results, adviceFile+".json"), name)
		}
	}
	var ratios []float64
	hits, answered := 0, 0
	err = b.eachMix(ctx, r, func(m mix) error {
		var alone, with rig.Standing
		err := b.before(ctx, m, func(server *rig.Tritons) (err error) {
			c := b.mixContest(m)
			if alone, err = c.HighestOf(ctx, rig.TritonSetup{Node: rig.NodeBound}, server, adviceRate); err != nil {
				return err
			}
			setup := rig.ConchSetup{Attach: mixGPUs}
			conch, err := setup.StartBefore(ctx, c, server)
			if err != nil {
				return err
			}
			with, err = c.HighestOf(ctx, setup, conch, alone.Rate)
			return errors.Join(err, conch.Close())
		})
		if err != nil {
			return err
		}
		name, ratio := "mix."+m.name+".", with.Held()/alone.Held()
		ratios = append(ratios, ratio)
		r.Add(name+"triton.goodput", alone.Held(), "req/s", "at most 1% bad for every model: one server for all GPUs, dynamic batching")
		r.Add(name+"conch.goodput", with.Held(), "req/s", "the same server with Conch in front of it")
		r.Add(name+"goodput_ratio", ratio, "ratio", "measured")
		low, known := said["advise."+m.name+".predicted_low"]
		if high := said["advise."+m.name+".predicted_high"]; known {
			answered++
			if .9*low.Value <= ratio && ratio <= 1.1*high.Value {
				hits++
			}
		}
		return nil
	})
	if err != nil || b.only != "" {
		return err
	}
	r.AddMean("mix.goodput_ratio", ratios, "ratio", "geometric mean of the loads, each measured once")
	r.Add("mix.advise.answered", float64(answered), "loads", fmt.Sprintf("of %d that advise had an answer for", len(ratios)))
	r.Add("mix.advise.hits", float64(hits), "loads", "where what was measured lies in the answer's range, give or take a tenth")
	return nil
}

// advice is the part of the advice that is compared.
type advice struct {
	Enough  bool
	Missing []string
	Ratio   float64 `json:"ratio"`
	Low     float64 `json:"ratio_low"`
	High    float64 `json:"ratio_high"`
}

// adviceOf asks for advice while clients send single rows, at a quarter of what the GPUs can do in batches of eight, to a server that a conch observes.
func (b *bench) adviceOf(ctx context.Context, m mix, server *rig.Tritons) (out advice, err error) {
	c := b.mixContest(m)
	conch, err := rig.ConchSetup{Attach: mixGPUs, Observe: true}.StartBefore(ctx, c, server)
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, conch.Close()) }()
	caller, err := loadgen.NewGRPC(conch.Endpoints(), m.models.Load(), loadgen.Emulated(mixElements))
	if err != nil {
		return out, err
	}
	sending, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	const most = 5 * time.Minute
	given, err := m.arrivals(adviceRate, b.seed, most)
	if err != nil {
		stop()
		return out, errors.Join(err, caller.Close())
	}
	go func() {
		defer close(done)
		// It ends with the advice; what came of the requests is not what is measured.
		_, _ = loadgen.Run(sending, loadgen.Load{Models: m.models.Load(), Given: given, Measure: most, Patience: time.Second}, caller, clock.System())
	}()
	defer func() { stop(); <-done; err = errors.Join(err, caller.Close()) }()

	b.say(fmt.Sprintf("%s: tritonctl advise --measure at %d req/s, for %v", m.name, adviceRate, adviceLook))
	limited, cancel := context.WithTimeout(ctx, adviceLimit)
	defer cancel()
	command := exec.CommandContext(limited, filepath.Join(b.bin, "tritonctl"), "--admin", conch.Admin, "advise", "--measure", "--share", fmt.Sprint(adviceShare), "--yes", "--within", adviceWithin.String(), "--for", adviceLook.String(), "--seeds", "3", "-o", "json")
	var stderr bytes.Buffer
	command.Stderr = &stderr
	text, err := command.Output()
	if limited.Err() != nil && ctx.Err() == nil {
		b.say(fmt.Sprintf("%s: no advice within %v", m.name, adviceLimit))
		return advice{Missing: []string{fmt.Sprintf("there was no answer within %v", adviceLimit)}}, nil
	}
	if err != nil && !json.Valid(text) {
		return out, fmt.Errorf("tritonctl advise: %w\n%s", err, stderr.Bytes())
	}
	if err := json.Unmarshal(text, &out); err != nil {
		return out, fmt.Errorf("tritonctl advise: %w", err)
	}
	b.say(fmt.Sprintf("%s: advised %.2f (%.2f to %.2f), missing %v", m.name, out.Ratio, out.Low, out.High, out.Missing))
	return out, nil
}
