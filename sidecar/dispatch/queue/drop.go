// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"strings"

	"github.com/conch-serving/conch/sidecar/dispatch/queue/adaptive"
)

// DropPolicy chooses which requests of a lane are given up so that the rest can
// still be in time. The policies are part of this package; NewDropPolicy makes
// them.
type DropPolicy interface {
	// Name is the name that NewDropPolicy knows it by.
	Name() string
	// bounded reports whether batches are kept within the deadline of their first
	// request, and requests that would be late even alone are given up.
	bounded() bool
	// hold returns the batch size, in rows, that is worth giving up requests for
	// under a load per executor, and how much later than planned such a batch
	// shall be able to end.
	hold(l *Load, load float64) (rows int, edge Time)
}

// surger is a DropPolicy that holds on to smaller batches during a surge that the
// rates do not show yet.
type surger interface {
	DropPolicy
	// surgeLoad is the load per executor, estimated from the waiting rows.
	surgeLoad(now Time, l *Load, waiting int) float64
}

func dropPolicies() []DropPolicy {
	_, ours := Adaptive(adaptive.Defaults())
	return []DropPolicy{ours, thrift{}, window{}, prefix{}, none{}}
}

// DropPolicyNames lists the drop policies.
func DropPolicyNames() []string {
	var names []string
	for _, p := range dropPolicies() {
		names = append(names, p.Name())
	}
	return names
}

// NewDropPolicy makes a drop policy by name.
func NewDropPolicy(name string) (DropPolicy, error) {
	for _, p := range dropPolicies() {
		if p.Name() == name {
			return p, nil
		}
	}
	return nil, fmt.Errorf("drop policy %q: %w; there are %s", name, ErrUnknown, strings.Join(DropPolicyNames(), ", "))
}

// leastRows is called when an executor is granted to a lane whose waiting
// requests begin with head: it returns the number of rows that a batch starting
// now should have, given what the drop policy wants to hold. Requests at the
// front that cannot finish in a batch of that size are given up.
//
// It is the smaller of hold and the number of rows that are left when heads are
// moved aside until all the rest fits the deadline of the first that remains:
// there is no point in making room for rows that do not exist.
func leastRows(now Time, l *lane, head *Request, t Table, hold int) int {
	if hold <= 1 || now+t.At(min(hold, l.rows)) <= head.Deadline {
		return 1 // nothing to give up
	}
	// The longest tail of the queue that fits its own first deadline. Walking
	// from the tail, a longer tail has more rows and an earlier deadline, so the
	// first that does not fit ends the search.
	rows := 0
	for r := l.waiting.tail; r != nil && rows < hold; r = r.prev {
		n := rows + int(r.Rows)
		if now+t.At(n) > r.Deadline {
			break
		}
		rows = n
	}
	return max(1, min(rows, hold))
}
