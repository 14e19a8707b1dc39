// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package recent

import (
	"sync"
	"time"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

const (
	// ExecutionsKept and executionsFor bound the executions that are kept.
	ExecutionsKept = 8192
	executionsFor  = 30 * time.Second
)

// Execution is one that ended.
type Execution struct {
	Model, Partition string
	Start, End       time.Time
	Rows, Requests   int
	// Deadline is the earliest of its requests; zero: there is none.
	Deadline time.Time
	Failed   bool
}

// executions are the last ones: that with the number n is at n modulo ExecutionsKept.
type executions struct {
	mu   sync.Mutex
	ring []Execution
	n    uint64
}

// Executed takes an execution in.
func (x *executions) Executed(e Execution) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.ring) < ExecutionsKept {
		x.ring = append(x.ring, e)
	} else {
		x.ring[x.n%ExecutionsKept] = e
	}
	x.n++
}

// Executions are those that ended in the last half minute and have a larger number than after, oldest first, as far as they are kept. The first
// has the number first.
func (x *executions) Executions(after uint64, now time.Time) (all []api.Executed, first uint64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	oldest := now.Add(-executionsFor)
	at := max(after, x.n-uint64(len(x.ring))) // numbers begin at 1: the execution n is at n-1
	for ; at < x.n; at++ {
		e := &x.ring[at%ExecutionsKept]
		if len(all) == 0 && e.End.Before(oldest) {
			continue
		}
		out := api.Executed{Partition: e.Partition, Model: e.Model, Start: unix(e.Start), End: unix(e.End), Rows: e.Rows, Requests: e.Requests, Failed: e.Failed}
		if !e.Deadline.IsZero() {
			out.Deadline = unix(e.Deadline)
		}
		all = append(all, out)
	}
	return all, x.n - uint64(len(all)) + 1
}

func unix(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }
