// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// world mirrors the calls that a Scheduler received and checks every decision.
// Its checks are written from the definitions, not from the implementation.
type world struct {
	t   *rapid.T
	s   *queue.Scheduler
	now queue.Time
	log []string // of decisions, to compare runs

	models    map[queue.ModelID]*mirrorModel
	executors map[queue.ExecutorID]*mirrorExecutor
	added     int // executors so far
	seq       int // of Enqueue and Requeue calls
	front     int // of requests that a preempted batch gave back, downwards
	requests  []*mirrorRequest
	changing  bool // within Reconfigure: nothing may be decided
}

type mirrorModel struct {
	spec             queue.ModelSpec
	discipline, drop string
	delay            queue.Time
}

type mirrorExecutor struct {
	spec         queue.ExecutorSpec
	up, draining bool
	batch        *queue.Batch
	preempted    int // rows of the batch that just gave way
}

type state int

const (
	queued state = iota
	running
	answered
)

type mirrorRequest struct {
	queue.Request
	id      int
	seq     int // order among equal deadlines
	model   queue.ModelID
	state   state
	answers int
	late    int  // as the queue says
	gaveWay bool // in this moment, to a larger batch, which may be of the same lane
}

func (w *world) of(r *queue.Request) *mirrorRequest { return r.Tag.(*mirrorRequest) }

// serves returns how an executor serves a model.
func (p *mirrorExecutor) serves(m queue.ModelID) (queue.Service, bool) {
	for _, s := range p.spec.Serves {
		if s.Model == m {
			return s, true
		}
	}
	return queue.Service{}, false
}

func (m *mirrorModel) table(s queue.Service) queue.Table {
	if int(s.Class) < len(m.spec.Classes) {
		return m.spec.Classes[s.Class]
	}
	return nil
}

func (m *mirrorModel) limit(s queue.Service) int {
	if s.MaxBatch > 0 {
		return min(s.MaxBatch, m.spec.MaxBatch)
	}
	return m.spec.MaxBatch
}

// usable lists the executors that may run a model, busy or not.
func (w *world) usable(m queue.ModelID) (ids []queue.ExecutorID) {
	for id, p := range w.executors {
		if _, ok := p.serves(m); ok && p.up && !p.draining {
			ids = append(ids, id)
		}
	}
	return ids
}

// lane lists the queued requests that may share a batch with r, in the order in
// which they have to be served.
func (w *world) lane(r *mirrorRequest) []*mirrorRequest {
	var lane []*mirrorRequest
	for _, o := range w.requests {
		if o.state == queued && o.model == r.model && o.Key == r.Key && o.Avoid == r.Avoid && o.Level == r.Level {
			lane = append(lane, o)
		}
	}
	slices.SortFunc(lane, func(a, b *mirrorRequest) int {
		return cmp.Or(cmp.Compare(by(&a.Request), by(&b.Request)), cmp.Compare(a.seq, b.seq))
	})
	return lane
}

// by is what orders requests.
func by(r *queue.Request) queue.Time {
	if r.Expiry == 0 {
		return r.Deadline
	}
	return min(r.Deadline, r.Expiry)
}

// expired reports whether a request may not start any more, or only late.
func (w *world) expired(r *queue.Request) bool { return r.Expiry != 0 && w.now > r.Expiry }

// inLevel counts the queued requests of a request's level.
func (w *world) inLevel(r *mirrorRequest) (n int) {
	for _, o := range w.requests {
		if o.state == queued && o.model == r.model && o.Level == r.Level {
			n++
		}
	}
	return n
}

// crowded reports whether a queued request's level has no room, before its batch starts.
func (w *world) crowded(r *mirrorRequest) bool {
	n := w.inLevel(r)
	for _, o := range w.requests {
		if o.state == queued && o.model == r.model && o.Level == r.Level && o.MaxQueue > 0 && n >= int(o.MaxQueue) {
			return true
		}
	}
	return false
}

// behind reports whether a lower level of a request's model waits: then a batch need not wait for its exec.
func (w *world) behind(r *mirrorRequest) bool {
	return slices.ContainsFunc(w.requests, func(o *mirrorRequest) bool {
		return (o.state == queued || o.state == running) && o.model == r.model && o.Level > r.Level
	})
}

// compared is the place of a level in a batch that begins with another.
func compared(level, first int32) int {
	if level == first {
		return -1
	}
	return int(level)
}

func (w *world) Dispatch(b *queue.Batch) {
	t := w.t
	w.log = append(w.log, fmt.Sprintf("%d dispatch model %d on %d, %d rows, late %t", w.now, b.Model, b.Executor, b.Rows, b.Late))
	require.False(t, w.changing, "a decision in the middle of a reconfiguration")
	p, m := w.executors[b.Executor], w.models[b.Model]
	require.NotNil(t, p, "unknown executor")
	require.NotNil(t, m, "unknown model")
	require.Nil(t, p.batch, "the executor runs a batch already")
	require.True(t, p.up && !p.draining, "the executor is down or draining")
	svc, ok := p.serves(b.Model)
	require.True(t, ok, "the executor does not serve the model")
	require.Equal(t, w.now, b.Start)

	require.NotEmpty(t, b.Requests)
	first := w.of(b.Requests[0])
	own, ownEarliest := 0, queue.Never // of the lane that the batch began with
	rows, oldest, earliest, expiry, hastened := 0, queue.Never, queue.Never, queue.Never, w.crowded(first)
	for i, r := range b.Requests {
		o := w.of(r)
		require.Equal(t, queued, o.state, "request %d is not queued", o.id)
		require.Equal(t, b.Model, o.model)
		require.Equal(t, first.Key, r.Key, "different keys in a batch")
		if i > 0 && !b.Late {
			last := b.Requests[i-1]
			order := cmp.Or(cmp.Compare(compared(last.Level, first.Level), compared(r.Level, first.Level)), cmp.Compare(by(last), by(r)))
			require.LessOrEqual(t, order, 0, "not in the order of levels and deadlines")
		}
		require.True(t, !w.expired(r) || b.Late && r.Expired == queue.LateServe, "request %d starts after its expiry", o.id)
		if r.Expiry != 0 {
			expiry = min(expiry, r.Expiry)
		}
		if r.Avoid == b.Executor {
			require.Equal(t, []queue.ExecutorID{b.Executor}, w.usable(b.Model), "an avoided executor, though there are others")
		}
		rows += int(r.Rows)
		if r.Level == first.Level {
			own, ownEarliest = own+int(r.Rows), min(ownEarliest, r.Deadline)
		}
		oldest, earliest = min(oldest, r.Arrival), min(earliest, r.Deadline)
	}
	table, limit := m.table(svc), m.limit(svc)
	require.Equal(t, rows, b.Rows)
	require.LessOrEqual(t, rows, limit, "more rows than the limit")
	require.Equal(t, w.now+table.At(rows), b.Finish)
	if p.preempted > 0 {
		require.Equal(t, "flex", m.discipline)
		require.GreaterOrEqual(t, rows, 3*p.preempted, "too small to preempt")
		p.preempted = 0
	}

	if m.discipline == "earliest-latest" && table != nil && !b.Late && rows == len(b.Requests) {
		require.Contains(t, []int{1, 2, 4, 8}, rows, "no size of the list")
	}
	before := w.lane(first)
	for _, r := range b.Requests {
		w.of(r).state = running
	}
	p.batch = b
	if b.Late {
		require.True(t, m.spec.Late == queue.LateServe || w.expired(b.Requests[0]))
		return
	}
	bounded := table != nil && m.drop != "none"
	if bounded {
		require.LessOrEqual(t, b.Finish, earliest, "started after latest")
	}
	rest := w.checkOrder(before, b, m, table, limit, bounded)
	for _, r := range w.requests {
		r.gaveWay = false
	}
	if table == nil || first.Avoid != queue.NoExecutor || b.Hurried || hastened {
		require.True(t, !b.Hurried || m.discipline == "adaptive" || w.behind(first), "hurried")
		return
	}
	full := own >= limit
	if rest != nil {
		more := own + int(rest.Rows)
		full = full || more > limit || bounded && w.now+table.At(more) > min(ownEarliest, rest.Deadline)
	}
	switch {
	case full:
	case m.discipline == "deferred": // adaptive starts as well when a size of its own is there: see TestAdaptiveSize
		require.True(t, ownEarliest == queue.Never || w.now >= min(expiry, ownEarliest-table.At(own+1)), "started before exec")
	case m.discipline == "timeout":
		require.GreaterOrEqual(t, w.now, oldest+m.delay, "started before exec")
	}
}

// Preempt implements queue.Preemptor: the requests are queued again.
func (w *world) Preempt(b *queue.Batch) {
	w.log = append(w.log, fmt.Sprintf("%d preempt model %d on %d", w.now, b.Model, b.Executor))
	require.False(w.t, w.changing, "a decision in the middle of a reconfiguration")
	p := w.executors[b.Executor]
	require.Same(w.t, p.batch, b, "it does not run")
	require.True(w.t, p.up && !p.draining)
	require.Equal(w.t, "flex", w.models[b.Model].discipline)
	p.preempted, p.batch = b.Rows, nil
	for i := len(b.Requests) - 1; i >= 0; i-- {
		r := w.of(b.Requests[i])
		require.Equal(w.t, running, r.state)
		w.front--
		r.state, r.seq, r.gaveWay = queued, w.front, true
	}
}

// checkOrder verifies that a batch is a run of its lane, and that requests
// ahead of it were left only because this executor could not serve them.
// It returns the first request behind the batch.
func (w *world) checkOrder(before []*mirrorRequest, b *queue.Batch, m *mirrorModel, table queue.Table, limit int, bounded bool) *mirrorRequest {
	if m.spec.Late == queue.LateServe {
		// The queue does not report which requests it has given up; a request
		// that is queued behind the last one is still a bound.
		last := w.of(b.Requests[len(b.Requests)-1])
		i := slices.Index(before, last)
		for _, r := range before[i+1:] {
			if r.state == queued {
				return r
			}
		}
		return nil
	}
	i := slices.IndexFunc(before, func(r *mirrorRequest) bool { return r.state == running })
	for _, r := range before[:i] {
		here, faster := table.At(int(r.Rows)), false
		for _, p := range w.executors {
			if svc, ok := p.serves(b.Model); ok {
				faster = faster || m.table(svc).At(int(r.Rows)) < here
			}
		}
		passed := r.gaveWay || w.expired(&r.Request) || int(r.Rows) > limit || bounded && (w.now+here > r.Deadline || faster && (m.drop == "window" || m.drop == "thrift" || m.drop == "reserve"))
		require.True(w.t, passed, "request %d was overtaken", r.id)
	}
	for _, r := range before[i:] {
		if r.state == queued {
			return r
		}
	}
	return nil
}

func (w *world) Drop(r *queue.Request, why queue.DropReason) {
	o := w.of(r)
	w.log = append(w.log, fmt.Sprintf("%d drop request %d: %v", w.now, o.id, why))
	require.Equal(w.t, queued, o.state, "request %d is not queued", o.id)
	w.answer(o)
	m := w.models[o.model]
	switch why {
	case queue.DropModelRemoved:
		require.Nil(w.t, m)
		return
	case queue.DropClosed:
		require.True(w.t, m.spec.Closed)
		return
	case queue.DropTooLarge:
		return
	case queue.DropFull:
		require.GreaterOrEqual(w.t, w.inLevel(o), int(r.MaxQueue), "refused although there is room")
		return
	}
	require.False(w.t, w.changing, "a decision in the middle of a reconfiguration")
	if why == queue.DropExpired {
		require.Equal(w.t, queue.LateDrop, r.Expired)
		require.True(w.t, w.expired(r), "dropped before its expiry")
		return
	}
	require.Equal(w.t, queue.LateDrop, m.spec.Late)
	require.NotEqual(w.t, "none", m.drop)
	// The fastest that it could run: on the classes in use, if there are any.
	alone, anywhere := queue.Never, queue.Never
	for _, c := range m.spec.Classes {
		anywhere = min(anywhere, c.At(int(r.Rows)))
	}
	for _, p := range w.executors {
		if svc, ok := p.serves(o.model); ok {
			alone = min(alone, m.table(svc).At(int(r.Rows)))
		}
	}
	if alone == queue.Never {
		alone = anywhere
	}
	if why == queue.DropLate {
		require.Greater(w.t, w.now+alone, r.Deadline, "dropped although it could make it alone")
	} else {
		require.Contains(w.t, []string{"window", "thrift", "reserve"}, m.drop)
	}
}

func (w *world) answer(r *mirrorRequest) {
	r.state = answered
	r.answers++
	require.Equal(w.t, 1, r.answers, "request %d answered again", r.id)
}

// check holds after every event.
func (w *world) check() {
	require.Greater(w.t, w.s.Next(), w.now, "something was due and did not happen")
	perModel, late := make(map[queue.ModelID]int), make(map[queue.ModelID]int)
	for _, r := range w.requests {
		late[r.model] += r.late
		if r.state != queued {
			require.Zero(w.t, r.late, "request %d is kept no more", r.id)
		} else {
			perModel[r.model]++
			require.False(w.t, w.expired(&r.Request) && r.Expired == queue.LateDrop, "request %d waits although its expiry has passed", r.id)
		}
	}
	stats := w.s.Stats()
	all := 0
	for id, m := range w.models {
		n, rows := w.s.Queued(id)
		if m.spec.Closed {
			require.Zero(w.t, n, "a closed queue holds requests")
		}
		require.Equal(w.t, perModel[id], n, "queued requests of model %d", id)
		require.Equal(w.t, late[id], w.s.Late(id), "late requests of model %d", id)
		require.GreaterOrEqual(w.t, rows, n)
		all += n
	}
	require.Equal(w.t, all, stats.QueuedRequests+stats.LateRequests)
	free := 0
	for _, p := range w.executors {
		if p.up && !p.draining && p.batch == nil {
			free++
		}
	}
	require.Equal(w.t, free, stats.FreeExecutors)
	w.checkWorkConserving(stats)
}

// checkWorkConserving: under eager, and without a profile, no request waits beside
// an idle executor that could serve it. A request that its class cannot
// serve in time any more may wait for a faster one.
func (w *world) checkWorkConserving(stats queue.Stats) {
	if stats.LateRequests > 0 {
		return
	}
	for _, r := range w.requests {
		m := w.models[r.model]
		if r.state != queued || m == nil || r.Avoid != queue.NoExecutor {
			continue
		}
		for id, p := range w.executors {
			svc, ok := p.serves(r.model)
			if !ok || !p.up || p.draining || p.batch != nil || int(r.Rows) > m.limit(svc) {
				continue
			}
			table := m.table(svc)
			inTime := m.drop == "none" || w.now+table.At(int(r.Rows)) <= r.Deadline
			if table == nil || slices.Contains([]string{"eager", "duty-cycle", "earliest-latest", "flex"}, m.discipline) && inTime {
				require.Fail(w.t, "idle", "request %d of model %d waits beside idle executor %d", r.id, r.model, id)
			}
		}
	}
}
