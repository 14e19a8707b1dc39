// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"cmp"
	"slices"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
)

// minutes that a history goes back.
const minutes = 60

// History is the offered load of each model by minute. It is not safe for concurrent use.
type History struct {
	current time.Time
	sums    map[string]*sum
	full    []map[string]float64
}

type sum struct{ total, samples float64 }

// Add takes the rates of now, requests per second by model. Samples of one minute are averaged; minutes without a sample count as without
// load.
func (h *History) Add(now time.Time, rates map[string]float64) {
	minute := now.Truncate(time.Minute)
	if h.sums == nil {
		h.current, h.sums = minute, map[string]*sum{}
	}
	for gap := 0; h.current.Before(minute); gap++ {
		if gap > minutes {
			h.current, h.full = minute, nil
			break
		}
		done := make(map[string]float64, len(h.sums))
		for model, s := range h.sums {
			if s.total > 0 {
				done[model] = s.total / s.samples
			}
		}
		h.full = append(h.full, done)
		if len(h.full) > minutes {
			h.full = h.full[len(h.full)-minutes:]
		}
		h.sums, h.current = map[string]*sum{}, h.current.Add(time.Minute)
	}
	for model, rate := range rates {
		s := h.sums[model]
		if s == nil {
			s = &sum{}
			h.sums[model] = s
		}
		s.total += rate
		s.samples++
	}
}

// List is the history of the models that had any load, by name, oldest minute first, up to the last full minute.
func (h *History) List() []*policy.ModelHistory {
	byModel := map[string]*policy.ModelHistory{}
	for i, minute := range h.full {
		for model, rate := range minute {
			m := byModel[model]
			if m == nil {
				m = &policy.ModelHistory{Model: model, Rates: make([]float64, len(h.full))}
				byModel[model] = m
			}
			m.Rates[i] = rate
		}
	}
	all := make([]*policy.ModelHistory, 0, len(byModel))
	for _, m := range byModel {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b *policy.ModelHistory) int { return cmp.Compare(a.GetModel(), b.GetModel()) })
	return all
}
