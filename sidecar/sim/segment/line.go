// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package segment

import (
	"cmp"
	"slices"
)

// line is the queries that wait, by model, each model's in the order of arrival. What is at the head of a model is found and taken without a look at the
// rest: Abacus never asks for more, and under overload the rest is most of what there is.
type line struct {
	by [][]task
	// begun are the queries of the group that runs that it leaves unfinished. Each is before all others of its model.
	begun []task
	// looked counts the queries that were looked at or moved, so that a test sees how work grows.
	looked int
}

func newLine(models int) *line { return &line{by: make([][]task, models)} }

// push adds a query that has just arrived.
func (l *line) push(t task) {
	l.by[t.Model] = append(l.by[t.Model], t)
	l.looked++
}

// empty reports whether nothing waits and nothing is left unfinished.
func (l *line) empty() bool {
	return len(l.begun) == 0 && !slices.ContainsFunc(l.by, func(own []task) bool { return len(own) > 0 })
}

// heads are the first task of each model: a model's process executes one query at a time, in the order of arrival (section 6.1).
func (l *line) heads() []task {
	first := slices.Clone(l.begun)
	for model, own := range l.by {
		if len(own) > 0 && !slices.ContainsFunc(l.begun, func(t task) bool { return t.Model == model }) {
			first = append(first, own[0])
		}
	}
	return l.inOrder(first)
}

// all are the tasks of every model.
func (l *line) all() []task {
	return l.inOrder(append(slices.Concat(l.by...), l.begun...))
}

// inOrder sorts tasks by arrival; queries are numbered so.
func (l *line) inOrder(tasks []task) []task {
	l.looked += len(tasks)
	slices.SortFunc(tasks, func(a, b task) int { return cmp.Compare(a.id, b.id) })
	return tasks
}

// remove takes queries out, by their numbers; those that do not wait are left alone.
func (l *line) remove(queries []Query, ids []int) {
	others := make(map[int]map[int]bool) // of each model, what is not at its head
	for _, id := range slices.Sorted(slices.Values(ids)) {
		model := queries[id].Model
		l.looked++
		if own := l.by[model]; len(own) > 0 && own[0].id == id {
			l.by[model] = own[1:]
			continue
		}
		if others[model] == nil {
			others[model] = make(map[int]bool)
		}
		others[model][id] = true
	}
	for model, gone := range others {
		if own := l.by[model]; len(own) > 0 && slices.ContainsFunc(ids, func(id int) bool { return gone[id] && id > own[0].id }) {
			l.looked += len(own)
			l.by[model] = slices.DeleteFunc(own, func(t task) bool { return gone[t.id] })
		}
	}
}
