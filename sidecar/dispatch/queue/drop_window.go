// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

// window is Symphony's window drop (after Nexus, section 3.2 "GetBatch" of
// Symphony): a few heads whose deadlines are near would force a small batch,
// and small batches make everybody after them late as well. So the batch is
// held at a size b that keeps up with the rate, and heads that cannot finish
// in a batch of b are given up, even if a smaller batch could save them.
//
// b is the smaller of the target (see target in rate.go) and the number of rows
// that are left when heads are moved aside until all the rest fits the deadline
// of the first that remains: there is no point in making room for rows that do
// not exist.
type window struct{}

func (window) Name() string  { return "window" }
func (window) bounded() bool { return true }

func (window) minRows(now Time, l *lane, head *Request, t Table, target int) int {
	// The usual case: everything up to the target fits the head's deadline.
	if now+t.At(min(target, l.rows)) <= head.Deadline {
		return 1
	}
	// The longest tail of the queue that fits its own first deadline. Walking
	// from the tail, a longer tail has more rows and an earlier deadline, so the
	// first that does not fit ends the search.
	rows := 0
	for r := l.waiting.tail; r != nil && rows < target; r = r.prev {
		n := rows + int(r.Rows)
		if now+t.At(n) > r.Deadline {
			break
		}
		rows = n
	}
	return max(1, min(rows, target))
}
