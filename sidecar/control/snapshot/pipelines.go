// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"maps"
	"slices"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/observe"
)

// Step is a step of an ensemble: the model that it calls, and the positions of the steps whose results it takes, below its own.
type Step struct {
	Model string
	After []int
}

// Ensembles is what is known of the ensembles whose steps the request path executes. Steps are those of one, none for other models; Walks are its requests in
// the window, with steps in the same order.
type Ensembles struct {
	Steps func(name string) []Step
	Walks func(name string) observe.Walks
}

// mostSteps bounds a pipeline: ensembles of ensembles may have twice as many steps at each level.
const mostSteps = 4096

// AddPipelines puts the ensembles whose steps are executed one by one into a snapshot, as pipelines, with what was observed of them, and adds what
// they ask of their models to these models' rates. An ensemble that is a step of another one is replaced by its steps there. An ensemble without an
// SLO, with a step whose model the snapshot does not have, or with more than 4096 steps, is left out.
func AddPipelines(s *policy.Snapshot, e Ensembles) {
	models := make(map[string]*policy.Model, len(s.GetModels()))
	known := make(map[string]bool, len(s.GetModels()))
	for _, m := range s.GetModels() {
		models[m.GetName()], known[m.GetName()] = m, true
	}
	for _, m := range s.GetModels() {
		steps := e.Steps(m.GetName())
		if len(steps) == 0 {
			continue
		}
		walks := e.Walks(m.GetName())
		if s.GetStatistics() != nil && walks.Requests > 0 && len(walks.Steps) == len(steps) {
			s.Statistics.Pipelines = append(s.Statistics.Pipelines, walked(m.GetName(), steps, walks))
		}
		p := &policy.Pipeline{Name: m.GetName(), SloUs: m.GetSloUs(), Rate: m.GetRate()}
		if m.GetRate() > 0 {
			p.Rows = m.GetRowRate() / m.GetRate()
		}
		e.expand(p, m.GetName(), 1, nil, nil)
		if len(p.Steps) <= mostSteps && p.Check(known) == nil {
			s.Pipelines = append(s.Pipelines, p)
		}
	}
	for _, p := range s.GetPipelines() {
		p.Load(models)
	}
}

// expand appends the steps of an ensemble to a pipeline, for so many rows of the ensemble for each of the pipeline's request. Steps that take the
// ensemble's own inputs come after those that are given, and take these bytes of them. It returns the positions of the last steps.
func (e Ensembles) expand(p *policy.Pipeline, name string, rows float64, after []uint32, taken []float64) (last []uint32) {
	steps, walks := e.Steps(name), e.Walks(name)
	ends := make([][]uint32, len(steps)) // the positions in the pipeline that stand for a step
	followed := make([]bool, len(steps))
	for i, step := range steps {
		if len(p.Steps) > mostSteps {
			return nil
		}
		each, bytes := observed(walks, steps, i)
		before, takes := after, taken
		if len(step.After) > 0 {
			before, takes = nil, nil
			for k, from := range step.After {
				followed[from] = true
				for _, at := range ends[from] {
					before = append(before, at)
					if bytes != nil {
						takes = append(takes, rows*bytes[k]/float64(len(ends[from])))
					}
				}
			}
		}
		if len(e.Steps(step.Model)) > 0 {
			ends[i] = e.expand(p, step.Model, rows*each, before, takes)
			continue
		}
		if len(takes) != len(before) {
			takes = nil
		}
		ends[i] = []uint32{uint32(len(p.Steps))} //nolint:gosec // few
		p.Steps = append(p.Steps, &policy.PipelineStep{Model: step.Model, After: slices.Clone(before), Rows: rows * each, TakenBytes: slices.Clone(takes)})
	}
	for i := range steps {
		if !followed[i] {
			last = append(last, ends[i]...)
		}
	}
	return last
}

// observed are the rows of a step, and the bytes that it takes from each step before it, for each row of the ensemble; one row, and nil, where nothing was seen.
func observed(w observe.Walks, steps []Step, i int) (rows float64, taken []float64) {
	if len(w.Steps) != len(steps) || w.Steps[i].Whole == 0 || w.Steps[i].Rows == 0 {
		return 1, nil
	}
	step := &w.Steps[i]
	if len(step.Taken) != len(steps[i].After) { // the ensemble has changed since
		return 1, nil
	}
	for _, bytes := range step.Taken {
		taken = append(taken, float64(bytes)/float64(step.Whole))
	}
	return float64(step.Rows) / float64(step.Whole), taken
}

// walked says where the time of an ensemble's requests went.
func walked(name string, steps []Step, w observe.Walks) *policy.PipelineStatistics {
	s := &policy.PipelineStatistics{Pipeline: name, Requests: w.Requests, LatencyUs: mean(w.Took, w.Requests)}
	for i, step := range steps {
		seen := &w.Steps[i]
		out := &policy.StepStatistics{
			Model: step.Model, QueueUs: mean(seen.Queue, seen.Ran), ExecutionUs: mean(seen.Execution, seen.Ran), HandOverUs: mean(seen.HandOver, seen.Ran),
			CriticalShare: float64(seen.Critical) / float64(w.Requests),
		}
		for _, before := range step.After {
			out.After = append(out.After, uint32(before)) //nolint:gosec // few
		}
		rows, taken := observed(w, steps, i)
		out.Rows = rows
		for _, bytes := range taken {
			out.TakenBytes += bytes
		}
		s.Steps = append(s.Steps, out)
	}
	return s
}

// mean in microseconds.
func mean(sum time.Duration, n uint64) float64 {
	if n == 0 {
		return 0
	}
	return float64(sum) / float64(n) / 1e3
}

// DivideSLOs is the snapshot as policies get it: a model that pipelines ask for, and whose SLO nobody has written down, has as its SLO its part of the
// shortest of theirs; with clients of its own that is no more than the SLO that it has by default. A snapshot in which there is no such model is returned as it is.
func DivideSLOs(s *policy.Snapshot, files *repo.Revision, settings *config.Config) *policy.Snapshot {
	slos := s.StepSLOs(func(p *policy.Pipeline) ([]float64, bool) {
		us, _ := p.Divide(s.Takes)
		for i := range us {
			us[i] *= float64(p.GetSloUs())
		}
		return us, true
	}, nil)
	maps.DeleteFunc(slos, func(name string, _ float64) bool {
		file := files.Model(name)
		return file == nil || declared(file, settings)
	})
	if len(slos) == 0 {
		return s
	}
	return s.WithSLOs(slos)
}

// declared reports whether the SLO of a model is written down for it.
func declared(m *repo.Model, settings *config.Config) bool {
	if settings.Models[m.Name].SLO > 0 {
		return true
	}
	_, ok, err := repo.SLO(m.Config)
	return ok && err == nil
}
