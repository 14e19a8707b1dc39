// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Candidate is the batch that a lane could run next on one profile class, as a
// discipline sees it (Symphony, Algorithm 1).
type Candidate struct {
	// Rows is |B|, Requests how many requests it is made of.
	Rows, Requests int
	// Full tells that nothing can join any more: the row limit is reached, or
	// the next queued request does not fit into the batch or its deadline.
	Full bool
	// Arrival is the earliest arrival in B.
	Arrival Time
	// Deadline is d, the earliest deadline in B.
	Deadline Time
	// Frontrun is d - l(|B|+1): from here on a further row would be too late.
	Frontrun Time
	// Latest is d - l(|B|): a later start misses the deadline.
	Latest Time
	// Target is the largest batch, in rows, that is within reach at the model's
	// present rate (see reach in rate.go).
	Target int
}

// Pressure is what goes on around a candidate: how much its model asks for on
// this profile class, and how busy the partitions are that its lane, or a lane
// that it competes with, can use.
type Pressure struct {
	// Reach is l(b) of the largest batch that can be gathered at the model's
	// present rate and then run within its SLO (see reach in rate.go).
	Reach Time
	// Worth is the smallest batch, in rows, that runs nearly as efficiently, the
	// more partitions there are to spare the less nearly (see weigh in
	// model.go); the row limit while the rate is not known yet.
	Worth int
	// Alone is l(1), and Saved the part of it that a row saves which joins a
	// batch: 1 less what a further row takes over l(1), the mean up to that reach.
	Alone Time
	Saved float64
	// Newest is the latest arrival in B.
	Newest Time
	// Dispersion is the variance of the model's rows that arrive within one SLO
	// over their mean: 1 for Poisson arrivals, more where they come in bursts.
	Dispersion float64
	// Need is how many partitions the model keeps busy with batches of that
	// reach (Symphony's n), zero while its rate is not known yet.
	Need float64

	// Free counts the idle partitions, Usable those that are idle or busy.
	Free, Usable int
	// AllNeed is the sum of Need over the models that share the partitions.
	AllNeed float64
	// Crowd is the part of AllNeed that models ask for which keep less than one
	// partition busy each.
	Crowd float64
	// Left is the work in flight, in batches: each batch that runs counts with
	// the time that it has left as a share of its model's Reach. Ebb is by how
	// much Left falls per nanosecond while nothing else happens.
	Left, Ebb float64
}

// Discipline chooses when a candidate may start. It holds no state, so one
// value may serve any number of models.
type Discipline interface {
	// Name is the name that NewDiscipline knows it by.
	Name() string
	// Exec returns the moment from which the candidate may start; now or
	// earlier means at once. It is called whenever the candidate changes.
	Exec(now Time, c *Candidate) Time
	// DefaultDrop names the drop policy that suits the discipline.
	DefaultDrop() string
}

// Hurrier is a Discipline that may start candidates before their exec.
type Hurrier interface {
	Discipline
	// Hurry returns the moment from which a candidate whose exec has not come
	// may start nevertheless, as things stand; now or earlier means at once. It
	// is called after every event for the most urgent such candidate while a
	// partition is free, and for its lane's on other profile classes, and again
	// when the moment that it returned has come. No other lane overtakes that
	// candidate before its own exec has come.
	Hurry(now Time, c *Candidate, p Pressure) Time
}

// ErrUnknown is wrapped by errors about names that do not exist.
var ErrUnknown = errors.New("unknown name")

// Parameter documents one parameter of a discipline. An empty default is none.
type Parameter struct {
	Name, Default, Help string
}

// Description documents a discipline or a drop policy; it becomes CLI help.
type Description struct {
	Name, Help  string
	DefaultDrop string
	Parameters  []Parameter
}

type disciplineKind struct {
	Description
	make func(params map[string]string) (Discipline, error)
}

func disciplineKinds() []disciplineKind {
	return []disciplineKind{
		adaptiveKind(), deferredKind(), eagerKind(), timeoutKind(),
		dutyCycleKind(), earliestLatestKind(), flexKind(), targetKind(),
	}
}

// Names lists the disciplines, the default first.
func Names() []string {
	var names []string
	for _, k := range disciplineKinds() {
		names = append(names, k.Name)
	}
	return names
}

// DescribeDisciplines documents every discipline, the default first.
func DescribeDisciplines() []Description {
	var all []Description
	for _, k := range disciplineKinds() {
		all = append(all, k.Description)
	}
	return all
}

// NewDiscipline makes a discipline by name; an empty name means the default.
// Unknown names and parameters and malformed values are errors.
func NewDiscipline(name string, params map[string]string) (Discipline, error) {
	kinds := disciplineKinds()
	for i, k := range kinds {
		if name != k.Name && (name != "" || i != 0) {
			continue
		}
		for _, p := range slices.Sorted(maps.Keys(params)) {
			if !slices.ContainsFunc(k.Parameters, func(q Parameter) bool { return q.Name == p }) {
				return nil, fmt.Errorf("discipline %q has no parameter %q: %w; it has %s", k.Name, p, ErrUnknown, parameterNames(k.Parameters))
			}
		}
		return k.make(params)
	}
	return nil, fmt.Errorf("discipline %q: %w; there are %s", name, ErrUnknown, strings.Join(Names(), ", "))
}

func parameterNames(ps []Parameter) string {
	if len(ps) == 0 {
		return "none"
	}
	var names []string
	for _, p := range ps {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}

// durationParameter reads a Go duration such as "2ms".
func durationParameter(params map[string]string, name string, fallback time.Duration) (Time, error) {
	text, ok := params[name]
	if !ok {
		return Time(fallback), nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("parameter %s=%q is not a duration such as 2ms, zero or more", name, text)
	}
	return Time(d), nil
}
