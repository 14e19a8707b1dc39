// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merging

import (
	"cmp"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Clock is time as the book needs it.
type Clock interface {
	Now() time.Time
	// After fires once, d from now.
	After(d time.Duration) <-chan time.Time
}

type machine struct{}

func (machine) Now() time.Time                         { return time.Now() }
func (machine) After(d time.Duration) <-chan time.Time { return time.After(d) }

// What something else than a group may have failed is tried again: a scratch server that did not start or was lost, a full disk. The first
// pause is short, each further one twice as long.
const (
	firstPause = 10 * time.Second
	lastPause  = 10 * time.Minute
)

// retry says when something that failed is tried again. The zero value is due.
type retry struct {
	attempts int
	next     time.Time
}

func (r *retry) due(now time.Time) bool { return !r.next.After(now) }

// failed notes a failure, and returns when the next try is.
func (r *retry) failed(now time.Time) time.Time {
	pause := lastPause
	if r.attempts < 6 {
		pause = firstPause << r.attempts
	}
	r.attempts++
	r.next = now.Add(pause)
	return r.next
}

// passingError may not come again.
type passingError struct{ error }

func (e *passingError) Unwrap() error { return e.error }

func passing(err error) error { return &passingError{err} }

// ofFiles is passing for what the file system refused, and err for anything else.
func ofFiles(err error) error {
	var path *fs.PathError
	var system syscall.Errno
	if errors.As(err, &path) || errors.As(err, &system) {
		return passing(err)
	}
	return err
}

// untilNext is how long it is to the next try; false where nothing waits for one.
func (b *Book) untilNext() (time.Duration, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.files == nil {
		return 0, false
	}
	var all []time.Time
	if b.wish.Auto && b.looked != b.content() && !b.looking.next.IsZero() {
		all = append(all, b.looking.next)
	}
	for _, g := range b.groups() {
		e := b.entry(g)
		if e == nil || e.made || b.has(e) || e.refusal != "" || e.making.next.IsZero() || e.analysed && !b.make[e.recipe.GetName()] {
			continue
		}
		all = append(all, e.making.next)
	}
	if len(all) == 0 {
		return 0, false
	}
	return max(0, slices.MinFunc(all, time.Time.Compare).Sub(b.o.Clock.Now())), true
}

// State is how far a group is.
type State struct {
	Group string
	// Made: the files have it. Busy: it is analysed, made or verified now. Wanted: a plan wants it.
	Made, Busy, Wanted bool
	// Failure is why the last try failed, of which Attempts in a row have, and Next when the next one is; zero: when a member changes.
	Failure  string
	Attempts int
	Next     time.Time
}

// States are those of the groups that an operator, or the search, wants, sorted by name.
func (b *Book) States() []State {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.files == nil {
		return nil
	}
	var all []State
	for _, g := range b.groups() {
		e := b.entry(g)
		if e == nil {
			continue
		}
		s := State{
			Group: e.recipe.GetName(), Made: b.has(e), Busy: e.busy, Wanted: b.make[e.recipe.GetName()],
			Failure: cmp.Or(e.refusal, e.failure), Attempts: e.making.attempts, Next: e.making.next,
		}
		switch {
		case s.Made:
			s.Failure, s.Attempts, s.Next = "", 0, time.Time{}
		case e.refusal != "":
			s.Next = time.Time{}
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b State) int { return strings.Compare(a.Group, b.Group) })
	return slices.Compact(all)
}
