// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package recent

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

const (
	// slotLength divides the statistics window. Slots cover it, the one that is being filled, and the next: what ends while it is counted overwrites nothing
	// of the window.
	slotLength = 500 * time.Millisecond
	slots      = 12
	// MinutesKept are the minutes of an hour that have ended; minutes covers them and the one that is being filled.
	MinutesKept = 60
	minutes     = MinutesKept + 1
	// mostOutcomes bounds the ways to end that are counted apart; further ones have the reason "other".
	mostOutcomes = 32
)

// Request is a request that ended.
type Request struct {
	Model          string
	Result, Reason string
	// InTime: it was answered in time. Answered: it was answered, in time or not. Left: its caller left before. Cold: it waited for its model to be loaded, so
	// that it has no SLO.
	InTime, Answered, Left, Cold bool
	Ended                        time.Time
	// Latency, and the parts of it; the rest is Conch's own.
	Latency, Wait, Gather, Execute time.Duration
	// Deadline from its arrival; 0: it has none.
	Deadline  time.Duration
	Partition string
	// Rows of the request, BatchRows that ran together; 0: it was not executed.
	Rows, BatchRows int
	Retried         bool
	// Identity is asked only of requests that are among the slowest, before Finished returns.
	Identity Identity
}

// Identity is how a client finds a request again.
type Identity interface {
	ID() string
	TraceID() string
}

// Recorder keeps what happened. Its methods are safe for concurrent use.
type Recorder struct {
	window  time.Duration
	began   time.Time
	elapsed func(since, at time.Time) time.Duration
	models  sync.Map // of *model by name
	executions
}

// Options of New.
type Options struct {
	// Window is the statistics window, at most 5 s.
	Window time.Duration
	// Now is when the recorder begins.
	Now time.Time
	// Elapsed is the time between two times, however the machine's clock was set between them; nil: that of time.Time, which has a second clock for it.
	Elapsed func(since, at time.Time) time.Duration
}

// New makes a recorder.
func New(o Options) *Recorder {
	r := &Recorder{window: min(o.Window, (slots-2)*slotLength), began: o.Now, elapsed: o.Elapsed}
	if r.elapsed == nil {
		r.elapsed = func(since, at time.Time) time.Duration { return at.Sub(since) }
	}
	return r
}

// steady is a time on the clock that the machine had when the recorder began: periods are numbered by it, so that none is counted twice, or not at all, where the
// machine's clock is set.
func (r *Recorder) steady(at time.Time) time.Time {
	return r.began.Add(r.elapsed(r.began, at))
}

// tally counts requests of a period.
type tally struct {
	at                              int64 // number of the period
	requests, inTime, answered      uint64
	wait, gather, execute, overhead time.Duration
	others                          []api.OutcomeCount
}

func (t *tally) begin(at int64) { *t = tally{at: at, others: t.others[:0]} }

func (t *tally) count(result, reason string, n uint64) {
	for i := range t.others {
		if o := &t.others[i]; o.Result == result && o.Reason == reason {
			o.Count += n
			return
		}
	}
	if len(t.others) >= mostOutcomes {
		reason = "other"
		if i := slices.IndexFunc(t.others, func(o api.OutcomeCount) bool { return o.Result == result && o.Reason == reason }); i >= 0 {
			t.others[i].Count += n
			return
		}
		if len(t.others) >= 2*mostOutcomes {
			return // there are not so many results
		}
	}
	t.others = append(t.others, api.OutcomeCount{Result: result, Reason: reason, Count: n})
}

func (t *tally) add(o *tally) {
	t.requests, t.inTime, t.answered = t.requests+o.requests, t.inTime+o.inTime, t.answered+o.answered
	t.wait, t.gather, t.execute, t.overhead = t.wait+o.wait, t.gather+o.gather, t.execute+o.execute, t.overhead+o.overhead
	for _, c := range o.others {
		t.count(c.Result, c.Reason, c.Count)
	}
}

// model is what happened to a model's requests.
type model struct {
	mu    sync.Mutex
	since time.Time
	slots [slots]tally
	// hour has the minutes; the slots of the last of them are added when the next begins.
	hour [minutes]tally
	slow slowest
}

func slotOf(at time.Time) int64   { return at.UnixNano() / int64(slotLength) }
func minuteOf(slot int64) int64   { return slot / int64(time.Minute/slotLength) }
func place(number, n int64) int64 { return (number%n + n) % n }

// Finished takes a request in.
func (r *Recorder) Finished(q *Request) {
	if q.Model == "" || q.Left {
		return
	}
	found, known := r.models.Load(q.Model)
	at := r.steady(q.Ended)
	if !known {
		r.forget(at)
		found, _ = r.models.LoadOrStore(q.Model, &model{since: at})
	}
	m := found.(*model)
	m.mu.Lock()
	defer m.mu.Unlock()
	if !q.Cold {
		m.slot(slotOf(at)).take(q)
	}
	m.slow.add(q, at)
}

func (t *tally) take(q *Request) {
	t.requests++
	if q.InTime {
		t.inTime++
	} else {
		t.count(q.Result, q.Reason, 1)
	}
	if q.Answered {
		t.answered++
		t.wait, t.gather, t.execute = t.wait+q.Wait, t.gather+q.Gather, t.execute+q.Execute
		t.overhead += q.overhead()
	}
}

func (q *Request) overhead() time.Duration { return max(0, q.Latency-q.Wait-q.Gather-q.Execute) }

// slot is the tally of a half second. What ended longer ago than the ring reaches is counted in the slot that its place has now.
func (m *model) slot(number int64) *tally {
	t := &m.slots[place(number, slots)]
	if t.at < number {
		m.settle(t)
		t.begin(number)
	}
	return t
}

// settle adds a slot to its minute, once.
func (m *model) settle(t *tally) {
	if t.requests == 0 {
		return
	}
	minute := minuteOf(t.at)
	of := &m.hour[place(minute, minutes)]
	if of.at < minute {
		of.begin(minute)
	}
	if of.at == minute {
		of.add(t)
	}
}

// forget drops models that have had no request for an hour.
func (r *Recorder) forget(now time.Time) {
	last := minuteOf(slotOf(now)) - minutes
	r.models.Range(func(name, found any) bool {
		m := found.(*model)
		m.mu.Lock()
		defer m.mu.Unlock()
		for i := range m.slots {
			if t := &m.slots[i]; t.requests > 0 && minuteOf(t.at) >= last {
				return true
			}
		}
		for i := range m.hour {
			if t := &m.hour[i]; t.requests > 0 && t.at >= last {
				return true
			}
		}
		for i := range m.slow.spans { // of requests that waited for a load nothing else is left
			if p := &m.slow.spans[i]; len(p.kept) > 0 && p.at*int64(spanLength)/int64(time.Minute) >= last {
				return true
			}
		}
		r.models.Delete(name)
		return true
	})
}

// Models are those that had requests in the last hour, with their requests, by name. SLOs are left to the caller.
func (r *Recorder) Models(now time.Time) []api.ModelRequests {
	now = r.steady(now)
	r.forget(now)
	var all []api.ModelRequests
	r.models.Range(func(name, found any) bool {
		all = append(all, found.(*model).requests(name.(string), r.window, now))
		return true
	})
	slices.SortFunc(all, func(a, b api.ModelRequests) int { return cmp.Compare(a.Model, b.Model) })
	return all
}

func (m *model) requests(name string, window time.Duration, now time.Time) api.ModelRequests {
	m.mu.Lock()
	defer m.mu.Unlock()
	last := slotOf(now)
	first, hour := last-int64(window/slotLength), minuteOf(last)-minutes+1
	var short, long tally
	for i := range m.slots {
		t := &m.slots[i]
		if t.at >= first && t.at <= last {
			short.add(t)
		}
		if minuteOf(t.at) >= hour {
			long.add(t)
		}
	}
	for i := range m.hour {
		if t := &m.hour[i]; t.at >= hour {
			long.add(t)
		}
	}
	// Whole minutes: it is not to change all the time by itself.
	age := min(time.Hour, now.Sub(m.since).Truncate(time.Minute)+time.Minute)
	if short.requests > 0 { // the slot that is being filled counts for what of it has passed
		window = now.Sub(time.Unix(0, first*int64(slotLength))).Round(time.Millisecond)
	}
	return api.ModelRequests{Model: name, Now: short.attainment(window), Hour: long.attainment(age)}
}

func (t *tally) attainment(over time.Duration) api.Attainment {
	out := api.Attainment{Seconds: over.Seconds(), Requests: t.requests, InTime: t.inTime, Outcomes: t.others}
	slices.SortStableFunc(out.Outcomes, func(a, b api.OutcomeCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Result, b.Result), cmp.Compare(a.Reason, b.Reason))
	})
	if n := t.answered; n > 0 {
		mean := func(sum time.Duration) float64 { return sum.Seconds() / float64(n) }
		out.Spent = &api.Spent{Wait: mean(t.wait), Gather: mean(t.gather), Execute: mean(t.execute), Conch: mean(t.overhead)}
	}
	return out
}
