// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package recent

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

const (
	// Slowest is how many of a model's slowest requests there are to see.
	Slowest = 20
	// spanLength divides the minute, spans covers it and the part that is being filled.
	spanLength = 15 * time.Second
	spans      = 5
	// longestID bounds what is kept of what clients name their requests.
	longestID = 256
)

// slowest keeps the slowest requests of each quarter of a minute.
type slowest struct {
	spans [spans]span
}

type span struct {
	at   int64
	kept []api.SlowRequest
	// least of the latencies in kept, once it is full.
	least float64
}

// add takes a request in that ended at a steady time.
func (s *slowest) add(q *Request, at time.Time) {
	number := at.UnixNano() / int64(spanLength)
	p := &s.spans[place(number, spans)]
	if p.at < number {
		clear(p.kept)
		p.at, p.kept = number, p.kept[:0]
	}
	latency := q.Latency.Seconds()
	if len(p.kept) == Slowest && latency <= p.least {
		return
	}
	slow := api.SlowRequest{
		Model: q.Model, Ended: q.Ended, LatencySeconds: latency, DeadlineSeconds: q.Deadline.Seconds(), Result: q.Result, Reason: q.Reason,
		Partition: q.Partition, Rows: q.Rows, BatchRows: q.BatchRows, Retried: q.Retried,
		Spent: api.Spent{Wait: q.Wait.Seconds(), Gather: q.Gather.Seconds(), Execute: q.Execute.Seconds(), Conch: q.overhead().Seconds()},
	}
	if q.Identity != nil {
		id := q.Identity.ID()
		slow.ID, slow.TraceID = strings.ToValidUTF8(id[:min(len(id), longestID)], ""), q.Identity.TraceID()
	}
	if len(p.kept) < Slowest {
		p.kept = append(p.kept, slow)
	} else {
		p.kept[p.fastest()] = slow
	}
	if len(p.kept) == Slowest {
		p.least = p.kept[p.fastest()].LatencySeconds
	}
}

func (p *span) fastest() (at int) {
	for i := range p.kept {
		if p.kept[i].LatencySeconds < p.kept[at].LatencySeconds {
			at = i
		}
	}
	return at
}

// Slowest are the slowest requests of a model that ended in the last minute, slowest first, at most [Slowest].
func (r *Recorder) Slowest(name string, now time.Time) []api.SlowRequest {
	all := []api.SlowRequest{}
	if found, known := r.models.Load(name); known {
		m := found.(*model)
		m.mu.Lock()
		for i := range m.slow.spans {
			for _, q := range m.slow.spans[i].kept {
				if r.elapsed(q.Ended, now) <= time.Minute {
					all = append(all, q)
				}
			}
		}
		m.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b api.SlowRequest) int {
		return cmp.Or(cmp.Compare(b.LatencySeconds, a.LatencySeconds), b.Ended.Compare(a.Ended))
	})
	return all[:min(len(all), Slowest)]
}
