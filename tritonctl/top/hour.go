// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"math"
	"strings"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

const (
	// hour is in minutes.
	hour = 60
	// unmeasured is where nothing is known: no request ended, or conch did not run.
	unmeasured = '·'
	// hourLegend says what lastHour draws.
	hourLegend = "█ 99% in time or more, a step less for each percent, · nothing measured"
)

// lastHour draws which share of a model's requests was in time over the last hour, in so many equal parts; "unknown" where nothing was measured in it.
// A full block is the target, 99%; a block lower is one percent less.
func lastHour(s *State, model string, parts int) string {
	if len(s.Minutes) == 0 {
		return "unknown"
	}
	// The minute before the present one has ended, but may not have come yet.
	end := max(s.Minutes[len(s.Minutes)-1].Start, (s.Time.Unix()/60-2)*60) + 60
	sums := make([]api.Counted, parts)
	known := false
	for _, m := range s.Minutes {
		c := m.Models[model]
		at := int64(parts) - 1 - (end-60-m.Start)/60*int64(parts)/hour
		if c.Requests() == 0 || at < 0 {
			continue
		}
		known = true
		sums[at] = api.Counted{sums[at].Requests() + c.Requests(), sums[at].InTime() + c.InTime()}
	}
	if !known {
		return "unknown"
	}
	var b strings.Builder
	for _, c := range sums {
		if c.Requests() == 0 {
			b.WriteRune(unmeasured)
			continue
		}
		percent := 100 * float64(c.InTime()) / float64(c.Requests())
		b.WriteRune(blocks[max(0, min(len(blocks)-1, int(math.Floor(percent+1e-9))-99+len(blocks)-1))])
	}
	return b.String()
}

// hourly is lastHour as a cell, sorted by the share of the whole hour; models of which nothing is known are last.
func hourly(s *State, model string) cell {
	c := cell{text: lastHour(s, model, 12), sort: 2., tone: soft}
	if r := requestsOf(s, model); r.Hour.Requests > 0 {
		c.sort = float64(r.Hour.InTime) / float64(r.Hour.Requests)
	}
	return c
}
