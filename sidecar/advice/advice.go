// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
)

// Window is what was measured over a length of time. Windows that are handed to
// one State follow each other and do not overlap.
type Window struct {
	Seconds float64
	// Requests are those that got an answer or were dropped, Bad those of them that
	// were late or dropped.
	Requests, Bad uint64
	// GPUs are those of which a partition is up, in any order.
	GPUs []GPU
	// Spare are GPUs that could serve and have no partition.
	Spare []string
}

// GPU is one GPU over a window.
type GPU struct {
	ID string
	// Rank is the smallest of its partitions': the queue uses small ranks first.
	Rank uint32
	// IdleShare is the part of the window in which it executed nothing; where it is
	// cut into partitions, their mean, weighted by their shares.
	IdleShare float64
}

// ByRank orders GPUs as the queue uses them.
func ByRank(a, b GPU) int { return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.ID, b.ID)) }

// Rule holds the numbers of the rule; zero values stand for the defaults.
type Rule struct {
	// BadRate is what is tolerated; 0 means .01.
	BadRate float64
	// Requests that a judgement needs; 0 means 100. Windows with fewer are joined,
	// for at most Patience (0: a minute); with fewer still there is no advice.
	Requests uint64
	Patience time.Duration
	// Allocate and Release are for how long a shortage and a surplus must hold before
	// they count; 0 means 10 s and a minute.
	Allocate, Release time.Duration
}

func (r Rule) withDefaults() Rule {
	r.BadRate = cmp.Or(r.BadRate, .01)
	r.Requests = cmp.Or(r.Requests, 100)
	r.Patience = cmp.Or(r.Patience, time.Minute)
	r.Allocate = cmp.Or(r.Allocate, 10*time.Second)
	r.Release = cmp.Or(r.Release, time.Minute)
	return r
}

// State is what is known from the windows before. The zero value knows nothing. It
// is a value: Next does not change the one that it is given.
type State struct {
	gpus   string // of the windows before
	joined joined
	// want is what the windows say, for held seconds: GPUs to add, or to give back
	// if below 0. least is the smallest of it, of the present period of Rule.Allocate
	// or Rule.Release.
	want, least int
	held        float64
	short       shortage
	advice      *policy.Advice
}

// joined sums windows up.
type joined struct {
	seconds, idle float64 // idle is GPU seconds over GPUs
	requests, bad uint64
}

// shortage is a number of GPUs that was too few, and for what: requests a second,
// of which the good ones kept so many GPUs busy. It is remembered for keep seconds,
// of which there are left.
type shortage struct {
	gpus       int
	rate, busy float64
	left, keep float64
}

const (
	// A shortage is forgotten when the rate has fallen by this part, or the load
	// takes this part less of GPUs' time: then it is another load.
	rateFell, busyFell = .05, .15
	// A shortage is also forgotten after keepFirst seconds, because a burst or a fault
	// may have caused it; after twice as long each time that it is found again, up to
	// keepMost.
	keepFirst, keepMost = 1800, 86400
	// significant is by how many standard deviations of a Poisson count bad requests
	// must exceed the tolerated number.
	significant = 2
)

// Next judges one more window. The advice is nil as long as there is nothing to
// judge by: too few requests, or no GPU that serves. It must not be changed.
func (r Rule) Next(s State, w Window) (State, *policy.Advice) {
	r = r.withDefaults()
	if key := w.key(); key != s.gpus {
		// What was measured was another cluster.
		s = State{gpus: key, short: s.short}
	}
	if len(w.GPUs) == 0 || !(w.Seconds > 0) {
		s.advice = nil
		return s, nil
	}
	s.joined.add(w)
	if s.joined.requests < r.Requests {
		if s.joined.seconds < r.Patience.Seconds() {
			return s, s.advice
		}
		return State{gpus: s.gpus, short: s.short}, nil
	}
	m := s.joined
	s.joined = joined{}
	s.advice = r.judge(&s, m, w)
	return s, s.advice
}

func (j *joined) add(w Window) {
	j.seconds += w.Seconds
	j.idle += w.Seconds * w.idle()
	j.requests += w.Requests
	j.bad += min(w.Bad, w.Requests)
}

func (w Window) idle() float64 {
	sum := 0.0
	for _, g := range w.GPUs {
		sum += min(1, max(0, g.IdleShare))
	}
	return sum / float64(len(w.GPUs))
}

// key names the GPUs.
func (w Window) key() string {
	ids := make([]string, 0, len(w.GPUs)+len(w.Spare)+1)
	for _, g := range w.GPUs {
		ids = append(ids, g.ID)
	}
	slices.Sort(ids)
	ids = append(ids, "")
	spare := slices.Sorted(slices.Values(w.Spare))
	return strings.Join(append(ids, spare...), "\x00")
}

// judge is the rule over what was joined; w is its last window.
func (r Rule) judge(s *State, m joined, w Window) *policy.Advice {
	n, bad, idle := len(w.GPUs), float64(m.bad)/float64(m.requests), m.idle/m.seconds
	a := &policy.Advice{Gpus: uint32(n), BadRate: bad, IdleShare: idle, Requests: m.requests, Seconds: m.seconds}
	rate, busy := float64(m.requests)/m.seconds, float64(n)*(1-idle)
	tolerated := r.BadRate * float64(m.requests)
	noise := significant * math.Sqrt(tolerated)
	var want int
	var hold string
	short := float64(m.bad) > tolerated+noise
	if short {
		lack := float64(n)
		if good := m.requests - m.bad; good > 0 {
			lack *= float64(m.bad) / float64(good)
		}
		want = max(0, max(1, roundUp(lack))-len(w.Spare))
		hold = fmt.Sprintf("%s of the requests are bad, and %s no partition yet", percent(bad), have(w.Spare))
	} else {
		var surplus float64
		want, surplus = s.surplus(n, max(0, float64(m.bad)-noise)/tolerated, idle, rate, busy)
		hold = fmt.Sprintf("%s of the requests are bad and the GPUs are idle for %s of the time, which is %.1f of %s", percent(bad), percent(idle), surplus, gpus(n))
		if surplus >= 1 && s.short.stands(rate, busy) {
			hold += fmt.Sprintf("; %d were too few for this load", s.short.gpus)
		}
		want = -(want + len(w.Spare))
	}
	s.short.left -= m.seconds
	r.settle(s, a, want, m.seconds, hold, w)
	if a.GetAllocateGpus() > 0 {
		s.short.found(n, rate, busy)
	}
	return a
}

// surplus is how many whole GPUs of n could go, and N*f. Used is how much of what is
// tolerated is bad for sure: where that is all, nothing goes.
func (s *State) surplus(n int, used, idle, rate, busy float64) (whole int, all float64) {
	all = float64(n) * idle
	whole = int(all * max(0, 1-used))
	whole = min(whole, n-1)
	if s.short.stands(rate, busy) {
		whole = min(whole, max(0, n-s.short.gpus-1))
	}
	return whole, all
}

// like reports whether a load is still the one that was too much.
func (s shortage) like(rate, busy float64) bool {
	return s.gpus > 0 && rate >= (1-rateFell)*s.rate && busy >= (1-busyFell)*s.busy
}

// stands reports whether the number is still too small.
func (s shortage) stands(rate, busy float64) bool { return s.left > 0 && s.like(rate, busy) }

// found notes that n GPUs are too few for a load; of two numbers that are, the
// larger stays.
func (s *shortage) found(n int, rate, busy float64) {
	keep := float64(keepFirst)
	switch again := s.gpus == n && s.like(rate, busy); {
	case s.gpus > n && s.stands(rate, busy):
		return
	case again && s.left > 0:
		keep = s.keep
	case again:
		keep = min(2*s.keep, keepMost)
	}
	*s = shortage{gpus: n, rate: rate, busy: busy, left: keep, keep: keep}
}

// settle lets a number count once it has held for long enough.
func (r Rule) settle(s *State, a *policy.Advice, want int, seconds float64, hold string, w Window) {
	if sign(want) != sign(s.want) {
		s.held, s.least = 0, want
	}
	s.want = want
	s.held += seconds
	if want == 0 {
		a.Reason = "hold: " + hold
		return
	}
	if abs(want) < abs(s.least) {
		s.least = want
	}
	number, needed := s.least, r.Allocate.Seconds()
	if want < 0 {
		needed = r.Release.Seconds()
	}
	before := int(s.advice.GetAllocateGpus()) - int(s.advice.GetReleaseGpus())
	switch {
	case s.held >= needed:
		s.held, s.least = 0, want // the next period
	case sign(before) != sign(want):
		a.Reason = fmt.Sprintf("hold: %s for %.0f s; counts once it has been so for %.0f s", finding(want, a), s.held, needed)
		return
	default: // it counted before, and goes down at once
		number = sign(want) * min(abs(before), abs(number))
	}
	if number > 0 {
		a.AllocateGpus = float64(number)
		a.Reason = fmt.Sprintf("allocate %d: %s, N*r/(1-r) = %.1f more are wanted", number, finding(want, a), float64(a.GetGpus())*a.GetBadRate()/max(1e-9, 1-a.GetBadRate()))
		return
	}
	a.ReleaseGpus = float64(-number)
	a.Release = order(w)[:-number]
	a.Reason = fmt.Sprintf("release %d (%s): %s", -number, strings.Join(a.GetRelease(), ", "), finding(want, a))
	if len(w.Spare) > 0 {
		a.Reason += fmt.Sprintf("; %s no partition", have(w.Spare))
	}
}

func finding(want int, a *policy.Advice) string {
	if want > 0 {
		return fmt.Sprintf("%s of the requests are bad on %s", percent(a.GetBadRate()), gpus(int(a.GetGpus())))
	}
	return fmt.Sprintf("%s idle for %s of the time, with %s bad", gpus(int(a.GetGpus())), percent(a.GetIdleShare()), percent(a.GetBadRate()))
}

// order is in which order GPUs are given back: those without a partition, then the
// highest ranks.
func order(w Window) []string {
	all := slices.SortedFunc(slices.Values(w.GPUs), ByRank)
	ids := slices.Sorted(slices.Values(w.Spare))
	for _, g := range slices.Backward(all) {
		ids = append(ids, g.ID)
	}
	return ids
}

func roundUp(v float64) int { return int(math.Ceil(min(v, math.MaxInt32) - 1e-9)) }

func have(ids []string) string {
	if len(ids) == 1 {
		return ids[0] + " has"
	}
	return strings.Join(ids, ", ") + " have"
}

func gpus(n int) string {
	if n == 1 {
		return "1 GPU"
	}
	return fmt.Sprintf("%d GPUs", n)
}

func percent(share float64) string { return fmt.Sprintf("%.1f%%", 100*share) }

func sign(n int) int { return cmp.Compare(n, 0) }

func abs(n int) int { return max(n, -n) }
