// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

// preempt lets waiting batches take the place of running ones, where the
// discipline preempts and the sink can end a batch. The loop ends, because every
// turn runs more rows than the one before.
func (s *Scheduler) preempt(pl *pool, now Time) {
	for _, g := range pl.cohorts {
		for g.nfree == 0 && len(g.ready) > 0 {
			c := g.ready[0].s.cand
			if c.lane.m.preempter == nil || c.svc.Table == nil {
				break
			}
			if c.svc.bounded && c.Latest < now {
				s.refresh(c.lane, now)
				s.retime(c.lane, now)
				s.park(c.lane, now)
				continue
			}
			p := s.victim(c)
			if p == nil {
				break
			}
			s.takeOver(c, p, now)
		}
	}
}

// victim returns the executor whose batch c preempts: the smallest, of equal
// ones the one that started last. Nil if there is none.
func (s *Scheduler) victim(c *candidate) *executor {
	var best *executor
	for _, p := range c.svc.cohort.members {
		if !p.busy || !p.usable() || p.server == c.lane.avoid {
			continue
		}
		m := s.model(p.batch.Model)
		if m == nil || m.preempter == nil || !c.lane.m.preempter.Preempts(c.Rows, p.batch.Rows) {
			continue
		}
		if best == nil || p.batch.Rows < best.batch.Rows || p.batch.Rows == best.batch.Rows && p.batch.Start > best.batch.Start {
			best = p
		}
	}
	return best
}

// takeOver ends the batch on p, starts c there and queues the requests of the
// first again, behind what c takes with it.
func (s *Scheduler) takeOver(c *candidate, p *executor, now Time) {
	l, lost := c.lane, s.model(p.batch.Model)
	s.lost = append(s.lost[:0], p.batch.Requests...)
	s.stats.Preempted++
	s.stats.PreemptedRequests += uint64(len(s.lost))
	s.preemptor.Preempt(&p.batch)
	p.cohort.pool.runs(p, -1)
	p.busy, p.experiment = false, experimentNone
	clear(p.batch.Requests)
	l.waiting.cut(c.first, c.last)
	s.count(l, -c.Requests, -c.Rows)
	s.dispatch(p, l, c.svc, c.first, now, false, false)

	if lost.spec.Closed { // since the batch began
		for _, r := range s.lost {
			s.drop(r, DropClosed)
		}
		clear(s.lost)
		s.match(l, now)
		return
	}
	back := lost.laneFor(laneKey{s.lost[0].Key, s.lost[0].Avoid, s.lost[0].Level})
	for i := len(s.lost) - 1; i >= 0; i-- { // backwards: each goes ahead of equal deadlines
		s.insert(back, s.lost[i], true)
	}
	clear(s.lost)
	s.match(back, now)
	if l != back {
		s.match(l, now)
	}
}
