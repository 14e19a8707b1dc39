// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package discipline has the dispatch disciplines that a simulation can choose: the
// queue's own, and those of other systems that a Triton cannot run. Clockwork's plans
// with executions of fixed sizes that nothing disturbs; Shepherd's preempts, and a
// Triton cannot end an execution. Abacus's, segment, is in sidecar/sim/segment: it
// schedules operators, not batches.
package discipline

import (
	"fmt"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// Kinds are the disciplines, the queue's default first.
func Kinds() []queue.Kind { return append(queue.Kinds(), earliestLatestKind(), flexKind()) }

// Names lists the disciplines, the queue's default first.
func Names() []string { return queue.NamesOf(Kinds()) }

// New makes a discipline by name, as queue.NewDiscipline does. The contract's "segment" is none of a queue of batches, and is refused with the place
// that has it.
func New(name string, params map[string]string) (queue.Discipline, error) {
	if name == "segment" {
		return nil, fmt.Errorf("discipline %q: %w among those of batches; it schedules the operators of all models of a GPU together: a scenario has it for all of its models (dispatch), a single model or a policy's plan does not", name, queue.ErrUnknown)
	}
	return queue.NewOf(Kinds(), name, params)
}
