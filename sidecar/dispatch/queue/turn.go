// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

// inTurn returns the candidate of the next model, in the order of the models,
// that has one for p: those that have none are skipped.
func (g *cohort) inTurn(p *executor) *candidate {
	n := len(g.cycle)
	allowed := func(l *lane) bool { return l.allows(p) }
	for k := 1; k <= n; k++ {
		var best *candidate
		for _, l := range g.cycle[(p.turn+k)%n].lanes {
			if l.n == 0 || !allowed(l) {
				continue
			}
			for i := range l.cands {
				if c := &l.cands[i]; c.in == &g.ready && (best == nil || c.Latest < best.Latest) {
					best = c
				}
			}
		}
		if best != nil {
			return best.lane.m.first(best, allowed)
		}
	}
	return nil
}

// took notes that a model has had its turn on p.
func (g *cohort) took(p *executor, m *model) {
	for i, o := range g.cycle {
		if o == m {
			p.turn = i
			return
		}
	}
}

// order sets the cycle of a cohort, which is empty unless all its models take turns.
func (s *Scheduler) order(g *cohort) {
	g.cycle = g.cycle[:0]
	for _, sv := range g.serves {
		m := s.model(sv.Model)
		switch {
		case m == nil:
		case m.cycles:
			g.cycle = append(g.cycle, m)
		default:
			g.cycle = nil
			return
		}
	}
}
