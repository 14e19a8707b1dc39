// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"time"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// State is what there is to see at one moment.
type State struct {
	Time    time.Time   `json:"time"`
	Version api.Version `json:"version"`
	// Health says why conch is not ready, if it is not.
	Health api.Health  `json:"health"`
	Models []api.Model `json:"models"`
	GPUs   []api.GPU   `json:"gpus"`
	// Requests are what became of each model's requests, Waiting what waits for a model; a model of which none waits is not there.
	Requests []api.ModelRequests `json:"requests"`
	Waiting  []api.ModelWaiting  `json:"waiting"`
	// Minutes of the last hour that have ended, oldest first.
	Minutes []api.Minute `json:"minutes"`
	// Events are the last ones, oldest first.
	Events []api.Event `json:"events"`
}

// samples of a history that are kept; they are taken once a second.
const samples = 60

// history keeps figures of models and places for sparklines.
type history map[string][]float64

// add takes a sample of everything that a state has, and forgets what is no longer there.
func (h history) add(s *State) {
	seen := map[string]bool{}
	keep := func(key string, v float64) {
		seen[key] = true
		all := append(h[key], v)
		h[key] = all[max(0, len(all)-samples):]
	}
	for _, m := range s.Models {
		keep(rateOf(m.Name), m.Rate)
		keep(queuedOf(m.Name), float64(m.Queued))
	}
	for _, g := range s.GPUs {
		keep(busyOf(g.Key()), busy(g))
		for _, p := range g.Partitions {
			keep(busyOf(p.ID+" of "+g.Key()), p.BusyShare)
		}
	}
	for key := range h {
		if !seen[key] {
			delete(h, key)
		}
	}
}

func rateOf(model string) string   { return "rate " + model }
func queuedOf(model string) string { return "queued " + model }
func busyOf(place string) string   { return "busy " + place }

// busy is the part of the statistics window in which a GPU executed; partitions count by their share.
func busy(g api.GPU) float64 {
	sum := 0.0
	for _, p := range g.Partitions {
		if !p.Retiring {
			share := float64(p.ThreadPercentage) / 100
			if share == 0 { // of CPUs no share is given
				share = 1
			}
			sum += p.BusyShare * share
		}
	}
	return min(1, sum)
}
