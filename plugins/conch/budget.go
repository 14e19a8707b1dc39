// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conch

import (
	"fmt"
	"strings"

	"github.com/conch-serving/conch/plugins/policy"
)

// budget bounds the policy's own work in steps: a step is a model that is tried in a place, or put there. How many there may be follows from the snapshot's
// planning budget and not from a clock, so that equal snapshots get equal plans; what others evaluate is not in it.
type budget struct {
	// most is 0 where there is no bound.
	most, spent uint64
	// out are the beginnings that were left out, and refused the evaluations that were not asked for, because of it.
	out     []string
	refused uint32
}

// each is how many steps a microsecond of the planning budget is worth: about as many as a core takes in it at the least.
const each = 3

func newBudget(s *policy.Snapshot) *budget {
	return &budget{most: each * uint64(max(0, s.GetPlanningBudgetUs()))}
}

// spend counts steps.
func (b *budget) spend(steps int) { b.spent += uint64(max(0, steps)) }

// over reports that so many steps more are too many.
func (b *budget) over(steps int) bool { return b.most > 0 && b.spent+uint64(max(0, steps)) > b.most }

// without notes a beginning that takes so many steps, and reports whether it has to be left out.
func (b *budget) without(from string, steps int) bool {
	if !b.over(steps) {
		return false
	}
	b.out = append(b.out, from)
	return true
}

// limit is what is left of the evaluations: none once the steps are spent.
func (b *budget) limit(left uint32) uint32 {
	if left == 0 || !b.over(0) {
		return left
	}
	b.refused += left
	return 0
}

// reason says what the budget left out; nil where that is nothing.
func (b *budget) reason(s *policy.Snapshot) *policy.Reason {
	if len(b.out) == 0 && b.refused == 0 {
		return nil
	}
	text := fmt.Sprintf("the search was limited to %d steps, which the planning budget of %.4g s allows", b.most, float64(s.GetPlanningBudgetUs())/1e6)
	if b.refused > 0 {
		text += fmt.Sprintf("; %d of %d evaluations were not asked for", b.refused, s.GetEvaluations())
	}
	if len(b.out) > 0 {
		text += "; plans not begun with: " + strings.Join(b.out, ", ")
	}
	return &policy.Reason{Text: text + ". A longer policy.deadline allows more"}
}
