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

	"github.com/conch-serving/conch/sidecar/dispatch/queue/adaptive"
)

// Load is the input of a discipline and a drop policy: a batch that could start, its
// model and the pool that it competes in. See package adaptive.
type Load = adaptive.Load

// Discipline chooses when a candidate may start. It holds no state, so one
// value may serve any number of models.
type Discipline interface {
	// Exec returns the moment from which the candidate may start; now or
	// earlier means at once. It is called whenever the candidate changes.
	Exec(now Time, l *Load) Time
	// DefaultDrop names the drop policy that suits the discipline.
	DefaultDrop() string
}

// ErrUnknown is wrapped by errors about names that do not exist.
var ErrUnknown = errors.New("unknown name")

// Parameter documents one parameter of a discipline. An empty default is none.
type Parameter struct {
	Name, Default, Help string
}

// Description documents a discipline; it becomes CLI help.
type Description struct {
	Name, Help  string
	DefaultDrop string
	Parameters  []Parameter
}

// Kind is a discipline by name. New makes it from parameters that Description has.
type Kind struct {
	Description
	New func(params map[string]string) (Discipline, error)
}

// Kinds are the disciplines that a Triton can serve, the default first. The simulator
// has more.
func Kinds() []Kind {
	return []Kind{adaptiveKind(), deferredKind(), eagerKind(), timeoutKind(), dutyCycleKind(), targetKind()}
}

// Names lists the disciplines, the default first.
func Names() []string { return NamesOf(Kinds()) }

// NamesOf lists the names of kinds.
func NamesOf(kinds []Kind) []string {
	var names []string
	for _, k := range kinds {
		names = append(names, k.Name)
	}
	return names
}

// NewDiscipline makes a discipline by name; an empty name means the default.
// Unknown names and parameters and malformed values are errors.
func NewDiscipline(name string, params map[string]string) (Discipline, error) {
	return NewOf(Kinds(), name, params)
}

// NewOf makes a discipline of one of the kinds, the first of which is the default.
func NewOf(kinds []Kind, name string, params map[string]string) (Discipline, error) {
	for i, k := range kinds {
		if name != k.Name && (name != "" || i != 0) {
			continue
		}
		for _, p := range slices.Sorted(maps.Keys(params)) {
			if !slices.ContainsFunc(k.Parameters, func(q Parameter) bool { return q.Name == p }) {
				return nil, fmt.Errorf("discipline %q has no parameter %q: %w; it has %s", k.Name, p, ErrUnknown, parameterNames(k.Parameters))
			}
		}
		return k.New(params)
	}
	return nil, fmt.Errorf("discipline %q: %w; there are %s", name, ErrUnknown, strings.Join(NamesOf(kinds), ", "))
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

// durationParameter reads a Go duration such as "2ms"; 0 where there is none.
func durationParameter(params map[string]string, name string) (Time, error) {
	text, ok := params[name]
	if !ok {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("parameter %s=%q is not a duration such as 2ms, zero or more", name, text)
	}
	return Time(d), nil
}
