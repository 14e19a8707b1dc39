// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	simulated "github.com/conch-serving/conch/sidecar/sim/discipline"
)

// twins are two worlds that receive the same calls, to check that they decide the same.
type twins [2]*world

func (tw twins) both(f func(w *world)) {
	for _, w := range tw {
		f(w)
	}
	a, b := tw[0], tw[1]
	require.Equal(a.t, a.log, b.log, "the same events gave different decisions")
	a.log, b.log = a.log[:0], b.log[:0]
	if !a.changing {
		a.check()
	}
}

func newTwins(t *rapid.T) twins {
	var tw twins
	for i := range tw {
		w := &world{t: t, models: map[queue.ModelID]*mirrorModel{}, executors: map[queue.ExecutorID]*mirrorExecutor{}}
		w.s = queue.New(w, queue.Options{RateWindow: 50, Late: func(r *queue.Request, more int) { w.of(r).late += more }})
		tw[i] = w
	}
	return tw
}

func drawModel(t *rapid.T) mirrorModel {
	m := mirrorModel{
		discipline: rapid.SampledFrom(simulated.Names()).Draw(t, "discipline"),
		drop:       rapid.SampledFrom(queue.DropPolicyNames()).Draw(t, "drop"),
	}
	params := map[string]string{}
	if m.discipline == "timeout" {
		m.delay = queue.Time(rapid.IntRange(0, 30).Draw(t, "delay"))
		params["max_queue_delay"] = time.Duration(m.delay).String()
	}
	if m.discipline == "duty-cycle" && rapid.Bool().Draw(t, "cycle") {
		params["cycle"] = "30ns"
	}
	var err error
	m.spec.Discipline, err = simulated.New(m.discipline, params)
	require.NoError(t, err)
	m.spec.Drop, err = queue.NewDropPolicy(m.drop)
	require.NoError(t, err)
	m.spec.MaxBatch = rapid.IntRange(1, 8).Draw(t, "max batch")
	m.spec.Closed = rapid.IntRange(0, 7).Draw(t, "closed") == 0
	m.spec.SLO = queue.Time(rapid.IntRange(10, 60).Draw(t, "slo"))
	m.spec.Late = rapid.SampledFrom([]queue.Late{queue.LateDrop, queue.LateServe}).Draw(t, "late")
	for range rapid.IntRange(0, 2).Draw(t, "classes") {
		alpha, beta := rapid.IntRange(0, 4).Draw(t, "alpha"), rapid.IntRange(1, 12).Draw(t, "beta")
		m.spec.Classes = append(m.spec.Classes, queue.Linear(queue.Time(alpha), queue.Time(beta), m.spec.MaxBatch))
	}
	return m
}

func (tw twins) drawExecutor(t *rapid.T) queue.ExecutorSpec {
	p := queue.ExecutorSpec{Rank: int32(rapid.IntRange(0, 3).Draw(t, "rank"))}
	for _, id := range slices.Sorted(maps.Keys(tw[0].models)) {
		if rapid.IntRange(0, 3).Draw(t, "served") > 0 {
			p.Serves = append(p.Serves, queue.Service{
				Model: id, Class: int32(rapid.IntRange(0, 1).Draw(t, "class")), MaxBatch: rapid.SampledFrom([]int{0, 0, 0, 2}).Draw(t, "limit"),
			})
		}
	}
	return p
}

// pick draws one of the keys of a map that pass, or skips the action.
func pick[K ~int32, V any](t *rapid.T, of map[K]V, pass func(V) bool) K {
	var keys []K
	for _, k := range slices.Sorted(maps.Keys(of)) {
		if pass(of[k]) {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		t.Skip("nothing to do this to")
	}
	return rapid.SampledFrom(keys).Draw(t, "which")
}

func any1[V any](V) bool { return true }

func busy(p *mirrorExecutor) bool { return p.batch != nil }

func (tw twins) addModel(t *rapid.T) {
	if len(tw[0].models) >= 4 {
		t.Skip("enough")
	}
	m := drawModel(t)
	tw.both(func(w *world) { c := m; w.models[w.s.AddModel(w.now, m.spec)] = &c })
}

func (tw twins) setModel(t *rapid.T) {
	id, m := pick(t, tw[0].models, any1), drawModel(t)
	tw.both(func(w *world) { c := m; w.models[id] = &c; require.NoError(t, w.s.SetModel(w.now, id, m.spec)) })
}

func (tw twins) removeModel(t *rapid.T) {
	id := pick(t, tw[0].models, any1)
	tw.both(func(w *world) { delete(w.models, id); require.NoError(t, w.s.RemoveModel(w.now, id)) })
}

func (tw twins) addExecutor(t *rapid.T) {
	if len(tw[0].executors) >= 6 {
		t.Skip("enough")
	}
	spec := tw.drawExecutor(t)
	tw.both(func(w *world) {
		w.added++ // identifiers count up from 1; a batch may start within the call
		id := queue.ExecutorID(w.added)
		w.executors[id] = &mirrorExecutor{spec: spec, up: true}
		require.Equal(t, id, w.s.AddExecutor(w.now, spec))
	})
}

func (tw twins) setExecutor(t *rapid.T) {
	id, spec := pick(t, tw[0].executors, any1), tw.drawExecutor(t)
	tw.both(func(w *world) {
		p := w.executors[id]
		p.spec, p.draining = spec, false
		require.NoError(t, w.s.SetExecutor(w.now, id, spec))
	})
}

func (tw twins) drain(t *rapid.T) {
	id := pick(t, tw[0].executors, any1)
	tw.both(func(w *world) { w.executors[id].draining = true; require.NoError(t, w.s.DrainExecutor(w.now, id)) })
}

func (tw twins) removeExecutor(t *rapid.T) {
	id := pick(t, tw[0].executors, any1)
	tw.both(func(w *world) {
		if w.executors[id].batch != nil {
			require.ErrorIs(t, w.s.RemoveExecutor(w.now, id), queue.ErrBusy)
			return
		}
		delete(w.executors, id)
		require.NoError(t, w.s.RemoveExecutor(w.now, id))
	})
}

func (tw twins) setUp(t *rapid.T) {
	id, up := pick(t, tw[0].executors, any1), rapid.Bool().Draw(t, "up")
	tw.both(func(w *world) { w.executors[id].up = up; require.NoError(t, w.s.SetUp(w.now, id, up)) })
}

func (tw twins) enqueue(t *rapid.T) {
	id := pick(t, tw[0].models, any1)
	rows := int32(rapid.SampledFrom([]int{1, 1, 1, 1, 2, 3, 9}).Draw(t, "rows"))
	key := uint64(rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "key"))
	own := rapid.SampledFrom([]queue.Time{0, 0, 0, 5, 25, 100, queue.Never}).Draw(t, "deadline")
	policy := drawPolicy(t)
	tw.both(func(w *world) {
		w.seq++
		r := &mirrorRequest{id: len(w.requests), seq: w.seq, model: id}
		r.Request = policy
		r.Arrival, r.Deadline, r.Rows, r.Key, r.Tag = w.now, w.now+w.models[id].spec.SLO, rows, key, r
		if r.Expiry > 0 {
			r.Expiry += w.now
		}
		switch own {
		case 0:
		case queue.Never:
			r.Deadline = queue.Never
		default:
			r.Deadline = w.now + own
		}
		w.requests = append(w.requests, r)
		w.s.Enqueue(w.now, id, &r.Request)
	})
}

// drawPolicy draws what a queue policy makes of a request, or of every second one nothing. The Expiry counts from its arrival.
func drawPolicy(t *rapid.T) (r queue.Request) {
	if rapid.Bool().Draw(t, "no policy") {
		return r
	}
	r.Level = int32(rapid.IntRange(0, 3).Draw(t, "level"))
	r.MaxQueue = rapid.SampledFrom([]int32{0, 0, 1, 3}).Draw(t, "max queue")
	r.Expiry = rapid.SampledFrom([]queue.Time{0, 1, 10, 40}).Draw(t, "expiry")
	r.Expired = rapid.SampledFrom([]queue.Late{queue.LateDrop, queue.LateServe}).Draw(t, "expired")
	return r
}

func (tw twins) cancel(t *rapid.T) {
	if len(tw[0].requests) == 0 {
		t.Skip("none")
	}
	i := rapid.IntRange(0, len(tw[0].requests)-1).Draw(t, "request")
	tw.both(func(w *world) {
		r := w.requests[i]
		was := r.state == queued
		if was {
			w.answer(r) // before the call, which may dispatch others
		}
		require.Equal(t, was, w.s.Cancel(w.now, &r.Request))
	})
}

// complete ends a batch well, or fails it and tries every second request once
// more elsewhere.
func (tw twins) complete(t *rapid.T) {
	id := pick(t, tw[0].executors, busy)
	failed, down := rapid.IntRange(0, 3).Draw(t, "failed") == 0, rapid.Bool().Draw(t, "down")
	completeFirst := rapid.Bool().Draw(t, "complete first")
	tw.both(func(w *world) {
		p := w.executors[id]
		requests := slices.Clone(p.batch.Requests)
		complete := func() { p.batch = nil; w.s.Complete(w.now, id) }
		if failed && down {
			p.up = false
			require.NoError(t, w.s.SetUp(w.now, id, false))
		}
		if completeFirst {
			complete()
		}
		for i, q := range requests {
			r := w.of(q)
			if failed && i%2 == 0 && r.Avoid == queue.NoExecutor {
				w.seq++
				r.Avoid, r.state, r.seq = id, queued, w.seq
				w.s.Requeue(w.now, r.model, q)
			} else {
				w.answer(r)
			}
		}
		if !completeFirst {
			complete()
		}
	})
}

func (tw twins) wait(t *rapid.T) {
	d := queue.Time(rapid.IntRange(0, 40).Draw(t, "time"))
	exactly := rapid.IntRange(0, 3).Draw(t, "exactly") > 0
	tw.both(func(w *world) {
		until := w.now + d
		for exactly && w.s.Next() <= until {
			w.now = w.s.Next()
			w.s.Advance(w.now)
		}
		w.now = until // or late, if not exactly
		w.s.Advance(w.now)
	})
}

// reconfigure makes several changes as one.
func (tw twins) reconfigure(t *rapid.T) {
	id, m := pick(t, tw[0].models, any1), drawModel(t)
	part := pick(t, tw[0].executors, any1)
	spec := tw.drawExecutor(t)
	cancelled := rapid.IntRange(0, len(tw[0].requests)).Draw(t, "cancelled") // or none
	tw.both(func(w *world) {
		w.s.Advance(w.now)
		w.s.Reconfigure(w.now, func() {
			w.changing = true
			if cancelled < len(w.requests) && w.requests[cancelled].state == queued {
				w.answer(w.requests[cancelled])
				require.True(t, w.s.Cancel(w.now, &w.requests[cancelled].Request))
			}
			c := m
			w.models[id] = &c
			require.NoError(t, w.s.SetModel(w.now, id, m.spec))
			p := w.executors[part]
			p.spec, p.draining = spec, false
			require.NoError(t, w.s.SetExecutor(w.now, part, spec))
			p.up = true
			require.NoError(t, w.s.SetUp(w.now, part, true))
			w.seq++
			r := &mirrorRequest{id: len(w.requests), seq: w.seq, model: id}
			r.Request = queue.Request{Arrival: w.now, Deadline: w.now + m.spec.SLO, Rows: 1, Tag: r}
			w.requests = append(w.requests, r)
			w.s.Enqueue(w.now, id, &r.Request)
			w.changing = false
		})
	})
}

// finish gives every model an executor and lets everything end.
func (tw twins) finish(t *rapid.T) {
	tw.both(func(w *world) {
		for _, id := range slices.Sorted(maps.Keys(w.executors)) {
			p := w.executors[id]
			p.draining = false
			p.spec = queue.ExecutorSpec{}
			for _, m := range slices.Sorted(maps.Keys(w.models)) {
				p.spec.Serves = append(p.spec.Serves, queue.Service{Model: m})
			}
			require.NoError(t, w.s.SetExecutor(w.now, id, p.spec))
			p.up = true
			require.NoError(t, w.s.SetUp(w.now, id, true))
		}
	})
	for range 10000 {
		id := queue.NoExecutor
		end := queue.Never
		for _, k := range slices.Sorted(maps.Keys(tw[0].executors)) {
			if b := tw[0].executors[k].batch; b != nil && b.Finish < end {
				id, end = k, b.Finish
			}
		}
		due := min(end, tw[0].s.Next())
		if due == queue.Never {
			break
		}
		require.Less(t, due-tw[0].now, queue.Time(100_000), "the next event is beyond what any request waits for")
		tw.both(func(w *world) {
			w.now = max(w.now, due)
			if due < end {
				w.s.Advance(w.now)
				return
			}
			p := w.executors[id]
			for _, r := range p.batch.Requests {
				w.answer(w.of(r))
			}
			p.batch = nil
			w.s.Complete(w.now, id)
		})
	}
	if len(tw[0].executors) > 0 {
		for _, r := range tw[0].requests {
			require.Equal(t, 1, r.answers, "request %d was lost", r.id)
		}
	}
}

// TestInvariants drives two Schedulers through the same random events, five
// times as many runs as rapid does by default.
func TestInvariants(t *testing.T) {
	for i := range 5 {
		t.Run(strconv.Itoa(i), func(t *testing.T) { rapid.Check(t, machine) })
	}
}

func machine(t *rapid.T) {
	tw := newTwins(t)
	for range 2 {
		tw.addModel(t)
		tw.addExecutor(t)
	}
	t.Repeat(map[string]func(*rapid.T){
		"enqueue": tw.enqueue, "enqueue more": tw.enqueue, "enqueue still more": tw.enqueue,
		"complete": tw.complete, "complete another": tw.complete,
		"wait": tw.wait, "cancel": tw.cancel, "reconfigure": tw.reconfigure,
		"add model": tw.addModel, "set model": tw.setModel, "remove model": tw.removeModel,
		"add executor": tw.addExecutor, "set executor": tw.setExecutor,
		"drain": tw.drain, "remove executor": tw.removeExecutor, "set up": tw.setUp,
	})
	tw.finish(t)
}
