// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package segment

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Experiment is what the paper's authors published with their code, of the parts that [ReadExperiment] reads.
type Experiment struct {
	// Models are those of table 1, in the order of their numbers.
	Models []Model
	// Batches and SeqLens are what queries draw from; SeqLens only for the model Bert.
	Batches, SeqLens []int
	// QoS and Peak are the targets of each pair, in the measurements of latency (section 7.2) and of throughput (7.3).
	QoS, Peak map[[2]int]time.Duration
	// Pairs is the predictor for groups of two of the models on an A100.
	Pairs *MLP
}

// Bert is the name of the model that reads sequences.
const Bert = "bert"

// features of the predictor: one number for each model, and four for each slice (figure 8).
const perSlice = 4

// ReadExperiment reads experiment_config.json and mlp_A100_2in7.json from a directory. README.md says how to make them from the authors' repository.
func ReadExperiment(dir fs.FS) (*Experiment, error) {
	const settings, weights = "experiment_config.json", "mlp_A100_2in7.json"
	text, err := fs.ReadFile(dir, settings)
	if err != nil {
		return nil, err
	}
	var file struct {
		Models    map[string]string `json:"models"`
		Operators map[string]int    `json:"operators_per_model(MODELS_LEN)"`
		Batches   []int             `json:"paper_batch_sizes"`
		SeqLens   []int             `json:"seq_lens_bert"`
		Targets   struct {
			QoS  map[string]float64 `json:"7.2_qos/2in7"`
			Peak map[string]float64 `json:"7.3_throughput/2in7"`
		} `json:"qos_ms_used_when_running"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("%s: %w", settings, err)
	}
	x := &Experiment{Batches: file.Batches, SeqLens: file.SeqLens}
	for i := range len(file.Models) {
		name := file.Models[strconv.Itoa(i)]
		if file.Operators[name] < 1 {
			return nil, fmt.Errorf("%s: model %d, %q, has no number of operators", settings, i, name)
		}
		x.Models = append(x.Models, Model{Name: name, Operators: file.Operators[name]})
	}
	if len(x.Models) < 2 || len(x.Batches) == 0 || len(x.SeqLens) == 0 {
		return nil, fmt.Errorf("%s: %d models, %d batch sizes, %d sequence lengths; there must be two models and one of each", settings, len(x.Models), len(x.Batches), len(x.SeqLens))
	}
	if x.QoS, err = x.targets(file.Targets.QoS); err != nil {
		return nil, fmt.Errorf("%s: 7.2_qos/2in7: %w", settings, err)
	}
	if x.Peak, err = x.targets(file.Targets.Peak); err != nil {
		return nil, fmt.Errorf("%s: 7.3_throughput/2in7: %w", settings, err)
	}
	if text, err = fs.ReadFile(dir, weights); err != nil {
		return nil, err
	}
	if x.Pairs, err = ParseMLP(text); err != nil {
		return nil, fmt.Errorf("%s: %w", weights, err)
	}
	if want := len(x.Models) + 2*perSlice; x.Pairs.Inputs() != want {
		return nil, fmt.Errorf("%s: %d inputs; pairs of %d models have %d features", weights, x.Pairs.Inputs(), len(x.Models), want)
	}
	return x, nil
}

// targets reads milliseconds by pair, such as "0 6".
func (x *Experiment) targets(file map[string]float64) (map[[2]int]time.Duration, error) {
	all := map[[2]int]time.Duration{}
	for key, ms := range file {
		fields := strings.Fields(key)
		if len(fields) != 2 || ms <= 0 {
			return nil, fmt.Errorf("%q: %v is no target of a pair", key, ms)
		}
		var pair [2]int
		for i, f := range fields {
			n, err := strconv.Atoi(f)
			if err != nil || n < 0 || n >= len(x.Models) {
				return nil, fmt.Errorf("%q is no pair of %d models", key, len(x.Models))
			}
			pair[i] = n
		}
		if pair[0] >= pair[1] {
			return nil, fmt.Errorf("the pair %q is not in the order of the models", key)
		}
		all[pair] = milliseconds(ms)
	}
	for a := range x.Models {
		for b := a + 1; b < len(x.Models); b++ {
			if all[[2]int{a, b}] == 0 {
				return nil, fmt.Errorf("there is no target for the pair %d %d", a, b)
			}
		}
	}
	return all, nil
}

func milliseconds(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// Published is the paper's predictor for the models that share a GPU, which make it a [Predictor]: exact about order, which a trained network is not.
// It remembers what it was asked, so it is for one goroutine.
type Published struct {
	mlp    *MLP
	models int
	served [2]int
	idle   [2]Slice // without operators, as the training data have it
	asRun  bool     // features are as the authors' code has them
	known  map[question][]time.Duration
}

// question is what is before the last slice of a group, and that slice without its end.
type question struct {
	before Slice
	last   Slice
}

// least is the shortest time of an operator group: the network's output can be below zero.
const least = 50 * time.Microsecond

// Serving is the predictor of a pair. Slices name models by their place in the pair.
func (x *Experiment) Serving(pair [2]int) *Published {
	p := &Published{mlp: x.Pairs, models: len(x.Models), served: pair, known: map[question][]time.Duration{}}
	for i, model := range pair {
		p.idle[i].Model = i
		if x.Models[model].Name == Bert {
			p.idle[i].SeqLen = slices.Min(x.SeqLens)
		}
	}
	return p
}

// ServingAsRun is the predictor with the features that the authors' code gives it, which are not those of training: the first slice of a group in the
// first slot, whichever model it is of, and nothing in the second for a query alone. How long groups take is another matter: see [World.Truth].
func (x *Experiment) ServingAsRun(pair [2]int) *Published {
	p := x.Serving(pair)
	p.asRun = true
	return p
}

// Latency is the largest that the network says of the group with its last slice ended at any operator from its start to its end: so that it grows with
// every operator. A group of one slice has the other model with no operators, of the same batch: that is how the training data have it. No group is
// faster than each of its slices alone.
func (p *Published) Latency(group []Slice) time.Duration {
	switch len(group) {
	case 0:
		return 0
	case 1:
		return p.until(question{last: group[0]}, group[0].End)
	}
	return max(p.until(question{before: group[0], last: group[1]}, group[1].End), p.Latency(group[1:]))
}

func (p *Published) until(q question, end int) time.Duration {
	q.last.End = 0
	known := p.known[q]
	for at := q.last.Start + len(known); at <= end; at++ {
		s := q.last
		s.End = at
		latency := max(least, milliseconds(p.mlp.Predict(p.features(q.before, s))))
		if at == s.Start && q.before.End > q.before.Start {
			latency = p.Latency([]Slice{q.before})
		} else if len(known) > 0 {
			latency = max(latency, known[len(known)-1])
		}
		known = append(known, latency)
	}
	p.known[q] = known
	return known[end-q.last.Start]
}

// features of one or two slices: in the order of the models' numbers, which the network was trained with.
func (p *Published) features(a, b Slice) []float64 {
	group := []Slice{a, b}
	alone := a == (Slice{})
	switch {
	case p.asRun && alone:
		group = group[1:]
	case alone:
		group[0] = p.idle[1-b.Model]
		group[0].Batch = b.Batch
		fallthrough
	case !p.asRun:
		slices.SortFunc(group, func(a, b Slice) int { return p.served[a.Model] - p.served[b.Model] })
	}
	features := make([]float64, p.models, p.mlp.Inputs())
	for _, s := range group {
		features[p.served[s.Model]]++
		features = append(features, float64(s.Start), float64(s.End), float64(s.Batch), float64(s.SeqLen))
	}
	return features[:p.mlp.Inputs()]
}
