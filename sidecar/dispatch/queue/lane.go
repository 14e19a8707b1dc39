// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import "github.com/conch-serving/conch/sidecar/dispatch/queue/adaptive"

// idleLanes is how many empty lanes a model keeps for their keys, before the oldest
// is reused for a new key. Idle lanes beyond maxIdleLanes are removed, shedAtOnce with
// every request, so that a caller with ever new parameters does not use up memory.
const (
	idleLanes    = 8
	maxIdleLanes = 8 * idleLanes
	shedAtOnce   = 4
)

// laneKey identifies a lane of a model. Requests that avoid an executor have a lane
// of their own per executor: those that were in one failed batch may share the
// next one.
type laneKey struct {
	key   uint64
	avoid ExecutorID
	level int32 // see levels.go
}

// lane holds the requests of one model that may share a batch: those that can still
// be in time, ordered by deadline, and those that were given up, in the order in
// which they were given up.
type lane struct {
	laneKey
	level *level
	m     *model
	at    int // in model.lanes

	waiting list
	n, rows int // waiting requests and rows
	late    list
	nlate   int
	// expires: a waiting request may have an Expiry. LateExpiry is at most the least Expiry of the late requests that are dropped after it.
	expires    bool
	lateExpiry Time

	cands []candidate // one per service of the model
	timer slot

	// A lane is in at most one of: its model's idle list (while it has no
	// request at all), its pool's late list (while it has given-up requests).
	on         *laneList
	prev, next *lane
}

// list is an intrusive list of requests.
type list struct{ head, tail *Request }

// by is what orders requests: the sooner of the deadline and the expiry.
func (r *Request) by() Time { return min(r.Deadline, r.Expiry) }

// expired reports whether the request may not start any more, or only behind those that are in time.
func (r *Request) expired(now Time) bool { return now > r.Expiry }

// insert puts r in deadline order, searching from the tail. Among equal
// deadlines it goes last, or first if it had been there before.
func (q *list) insert(r *Request, first bool) {
	after, by := q.tail, r.by()
	for after != nil && (after.by() > by || first && after.by() == by) {
		after = after.prev
	}
	q.insertAfter(r, after)
}

func (q *list) insertAfter(r, after *Request) {
	r.prev = after
	if after == nil {
		r.next, q.head = q.head, r
	} else {
		r.next, after.next = after.next, r
	}
	if r.next == nil {
		q.tail = r
	} else {
		r.next.prev = r
	}
}

// cut unlinks the run from first to last.
func (q *list) cut(first, last *Request) {
	before, after := first.prev, last.next
	if before == nil {
		q.head = after
	} else {
		before.next = after
	}
	if after == nil {
		q.tail = before
	} else {
		after.prev = before
	}
	first.prev, last.next = nil, nil
}

// laneList is an intrusive list of lanes, oldest first.
type laneList struct {
	head, tail *lane
	n          int
}

func (q *laneList) push(l *lane) {
	l.on, l.prev, l.next = q, q.tail, nil
	if q.tail == nil {
		q.head = l
	} else {
		q.tail.next = l
	}
	q.tail = l
	q.n++
}

// leave takes the lane off the list that it is on, if any.
func (l *lane) leave() {
	q := l.on
	if q == nil {
		return
	}
	if l.prev == nil {
		q.head = l.next
	} else {
		l.prev.next = l.next
	}
	if l.next == nil {
		q.tail = l.prev
	} else {
		l.next.prev = l.prev
	}
	q.n--
	l.on, l.prev, l.next = nil, nil, nil
}

// candidate is what a lane could run next on one service of its model.
type candidate struct {
	adaptive.Load
	exec        Time
	expiry      Time     // the least in B
	first, last *Request // B, a run of the lane's waiting list; valid while Requests > 0
	svc         *service
	lane        *lane
	in          *heap // of its cohort: ready, pending, blocked or none
	unblocked   Time  // from when it may start, as of the last call of blocked
	order       slot
}

// gather sets B to the longest run of requests from `from` on that may start
// together now. Requests that this service cannot run, having too many rows or,
// where deadlines count, too little time left for this profile class, are passed
// over: another service may run them.
func (c *candidate) gather(now Time, from *Request) {
	svc := c.svc
	r := from
	for r != nil && (int(r.Rows) > svc.MaxBatch || svc.bounded && now+svc.Table.At(int(r.Rows)) > r.Deadline) {
		r = r.next
	}
	if r == nil {
		c.Batch, c.first, c.last = adaptive.Batch{}, nil, nil
		return
	}
	c.first, c.last, c.expiry = r, r, r.Expiry
	c.Batch = adaptive.Batch{Rows: int(r.Rows), Requests: 1, Arrival: r.Arrival, Deadline: r.Deadline}
	for !c.Full && c.last.next != nil {
		c.take(now, c.last.next)
	}
	if s := c.lane.m.stepper; s != nil && svc.Table != nil {
		for most := s.Size(c.Rows); c.Requests > 1 && c.Rows > most; most = s.Size(c.Rows) { // without a request of several rows there may be fewer than that
			c.trim(most)
		}
	}
	c.mark()
}

// trim takes requests off the end of B until it has at most so many rows.
func (c *candidate) trim(rows int) {
	if c.Rows <= rows {
		return
	}
	for c.Requests > 1 && c.Rows > rows {
		c.Rows -= int(c.last.Rows)
		c.Requests--
		c.last = c.last.prev
		c.Full = true
	}
	c.Arrival = c.first.Arrival
	for r := c.first; r != c.last; r = r.next {
		c.Arrival = min(c.Arrival, r.next.Arrival)
	}
}

// take adds the next request to B if it fits, and otherwise closes B.
func (c *candidate) take(now Time, r *Request) {
	rows := c.Rows + int(r.Rows)
	deadline := min(c.Deadline, r.Deadline) // differs where an expiry puts a request behind one of a later deadline
	if rows > c.svc.most || c.svc.bounded && now+c.svc.Table.At(rows) > deadline {
		c.Full = true
		return
	}
	c.Deadline, c.expiry = deadline, min(c.expiry, r.Expiry)
	c.Rows = rows
	c.Requests++
	c.Arrival = min(c.Arrival, r.Arrival)
	c.last = r
}

// mark sets the fields that depend on |B|.
func (c *candidate) mark() {
	t := c.svc.Table
	c.Full = c.Full || c.Rows >= c.svc.most
	c.Newest, c.Waiting = c.last.Arrival, c.lane.rows
	c.Latest = min(c.Deadline-t.At(c.Rows), c.expiry)
	c.Frontrun = min(c.Deadline-t.At(c.Rows+1), c.expiry)
}

// park puts the candidate into a heap of its cohort, or takes it out of all.
func (c *candidate) park(h *heap) {
	if c.in != h {
		if c.in != nil {
			c.in.remove(&c.order)
		}
		c.in = h
	}
	if h != nil {
		key := c.Latest
		if r := c.lane.m.ranker; r != nil {
			key = r.Rank(&c.Load)
		}
		h.set(&c.order, key)
	}
}
