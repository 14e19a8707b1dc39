// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package discipline has the dispatch disciplines that a simulation can choose: the
// queue's own, and those of other systems that a Triton cannot run. Clockwork's plans
// with executions of fixed sizes that nothing disturbs; Shepherd's preempts, and a
// Triton cannot end an execution.
package discipline

import "github.com/conch-serving/conch/sidecar/dispatch/queue"

// Kinds are the disciplines, the queue's default first.
func Kinds() []queue.Kind { return append(queue.Kinds(), earliestLatestKind(), flexKind()) }

// Names lists the disciplines, the queue's default first.
func Names() []string { return queue.NamesOf(Kinds()) }

// New makes a discipline by name, as queue.NewDiscipline does.
func New(name string, params map[string]string) (queue.Discipline, error) {
	return queue.NewOf(Kinds(), name, params)
}
