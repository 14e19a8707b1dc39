// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"io"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
)

// upstream is the part of a call that is on one partition. It keeps the
// partition from draining only while it owes answers.
type upstream struct {
	partition *partition
	stream    grpc.ClientStream
	pending   []pendingAnswer // guarded by inferStream.mu
	ended     bool            // guarded by inferStream.mu
}

// pendingAnswer is a request whose last answer has not come.
type pendingAnswer struct {
	place   *placement // held until then
	turn    *turn      // nil: the answers of a decoupled model have no place in the order
	size    int64      // of the request
	model   *model
	id      string
	tally   *tally
	arrived time.Time
	due     time.Time // zero: no deadline, as for all answers of a decoupled model together
	rows    int
	// asked is whether the caller wants to see an empty last answer.
	asked  bool
	failed bool   // an answer, though perhaps not the last, was an error
	said   string // that error
}

// forward sends a request that is not queued straight to a partition.
func (s *inferStream) forward(c *call, route *route, decoupled bool, size int64) error {
	p := pendingAnswer{size: size, model: c.model, id: c.req.ID, tally: c.tally, arrived: c.arrived, rows: c.rows}
	wish, said := batch.FindParameter(c.req.Parameters, batch.ParameterEmptyFinalResponse)
	asked, valid := wish.Bool()
	p.asked = asked
	if !decoupled {
		p.due = c.due
		p.turn = s.begin(size)
	} else {
		s.mu.Lock()
		s.owed++
		s.bytes += size
		s.mu.Unlock()
	}
	up, err := s.hand(c.req, route, p)
	if err != nil {
		s.end(&p, Failed, "")
		return err
	}
	f := batch.Frame{Data: c.req.Marshal()}
	if decoupled && !asked && (valid || !said) { // what is not valid Triton refuses
		f.Data = batch.AskForFinalResponse(f.Data)
	}
	if err := up.stream.SendMsg(&f); err != nil {
		f.Data.Free() // unless it was handed over, which empties it
	}
	return nil // a broken upstream is the relay's to report
}

// hand finds or opens the upstream for a request and makes it owe the answer.
func (s *inferStream) hand(r *batch.Request, route *route, p pendingAnswer) (*upstream, error) {
	sequence := sequenceOf(r)
	for {
		s.mu.Lock()
		last := s.last
		s.mu.Unlock()
		// Stay where the request before it went, if that can be.
		if last != nil && sequence == nil && last.partition.up.Load() {
			i := slices.IndexFunc(route.places, func(l *placement) bool { return l.partition == last.partition })
			if i >= 0 && route.places[i].acquire(s.d) {
				p.place = route.places[i]
			}
		}
		if p.place == nil {
			var err error
			if p.place, err = s.d.acquire(s.ctx, r.Model, route, nil, sequence); err != nil {
				return nil, err
			}
		}
		up, err := s.upstream(p.place.partition)
		if err != nil {
			p.place.release(s.d)
			return nil, err
		}
		s.mu.Lock()
		if !up.ended {
			up.pending = append(up.pending, p)
			if p.turn != nil {
				s.last = up
			}
			s.mu.Unlock()
			return up, nil
		}
		s.mu.Unlock()
		p.place.release(s.d)
		p.place = nil
	}
}

// upstream finds or opens the way to a partition.
func (s *inferStream) upstream(p *partition) (*upstream, error) {
	s.mu.Lock()
	up := s.ups[p]
	s.mu.Unlock()
	if up != nil {
		return up, nil
	}
	stream, err := p.conn.NewStream(outgoing(s.ctx, s.ctx), &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, methodStream)
	if err != nil {
		if forward.Lost(err) {
			s.d.reportLost(p, err)
		}
		return nil, err
	}
	up = &upstream{partition: p, stream: stream}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed { // the call has ended meanwhile, and with it the context
		return nil, context.Cause(s.ctx)
	}
	s.ups[p] = up
	s.tasks.Go(func() { s.relay(up) })
	return up, nil
}

// relay deals with an upstream's answers until it ends.
func (s *inferStream) relay(up *upstream) {
	err := relay(up.stream, s.down, func(f *batch.Frame) error { return s.answered(up, f) })
	s.mu.Lock()
	up.ended = true
	var over []pendingAnswer
	if err == nil {
		over = up.concluded()
	}
	owes := len(up.pending) > 0
	delete(s.ups, up.partition)
	s.finished = append(s.finished, up)
	s.mu.Unlock()
	for i := range over {
		s.end(&over[i], over[i].result(), "")
	}
	switch {
	case err == nil && owes:
		s.cancel(io.EOF) // the server ended the call: so does Conch
	case err != nil:
		if forward.Lost(err) && s.ctx.Err() == nil && !up.partition.retired.Load() {
			s.d.reportLost(up.partition, err)
		}
		if !forward.Lost(err) || owes {
			s.cancel(err)
		}
		// Otherwise nothing was lost with it: the next request goes elsewhere.
	}
}

// concluded takes out what decoupled models owed when the server ended the call:
// it ends a call when all its requests have been answered, so that only the mark
// of their end can be missing. Guarded by inferStream.mu.
func (up *upstream) concluded() (over []pendingAnswer) {
	up.pending = slices.DeleteFunc(up.pending, func(p pendingAnswer) bool {
		if p.turn == nil {
			over = append(over, p)
		}
		return p.turn == nil
	})
	return over
}

// answered passes an answer on in its turn, but an empty last one only if the
// caller asked for that.
func (s *inferStream) answered(up *upstream, f *batch.Frame) error {
	a, err := batch.ReadStreamAnswer(f.Data)
	if err != nil {
		return s.write(f)
	}
	s.mu.Lock()
	i := up.find(a)
	if i < 0 {
		s.mu.Unlock()
		return s.write(f)
	}
	p := &up.pending[i]
	if a.Failed && !p.failed {
		p.failed, p.said = true, a.Error
	}
	its := *p
	if a.Last {
		up.pending = slices.Delete(up.pending, i, i+1)
	}
	s.mu.Unlock()
	if a.Last {
		s.end(&its, its.result(), "")
	}
	switch {
	case its.turn != nil:
		s.deliver(its.turn, f, a.Last)
		return nil
	case a.Last && a.Empty && !its.asked:
		f.Data.Free()
		return nil
	default:
		return s.write(f)
	}
}

// find finds the request that an answer is to: the oldest one of its model with
// its id. A refusal names no model. Where it could be to several it is taken for
// one that has a turn: answers behind a turn that never ended would never come,
// while a decoupled model's request without an end holds nobody up.
func (up *upstream) find(a batch.StreamAnswer) int {
	i := slices.IndexFunc(up.pending, func(p pendingAnswer) bool {
		return p.id == a.ID && (a.Model == p.model.name || a.Model == "" && p.turn != nil)
	})
	if i < 0 && a.Model == "" {
		return slices.IndexFunc(up.pending, func(p pendingAnswer) bool { return p.id == a.ID })
	}
	return i
}

func (p *pendingAnswer) result() Result {
	if p.failed {
		return Failed
	}
	return OK
}

// end counts a request out whose last answer has come, or will not come. One that
// has a turn is owed until that is over.
func (s *inferStream) end(p *pendingAnswer, result Result, reason string) {
	if p.place != nil {
		p.place.release(s.d)
	}
	s.d.finishStreamed(p, result, reason)
	s.d.leave(p.size)
	if p.turn == nil {
		s.mu.Lock()
		s.settle(p.size)
		s.mu.Unlock()
	}
}

// abandon reports what never got its last answer, because the caller has gone or
// the server ended the call, and frees what nobody was given.
func (s *inferStream) abandon() {
	result, reason := Failed, ""
	if s.down.Context().Err() != nil {
		result, reason = Cancelled, goneReason(s.down.Context(), s.d.clock.Now())
	}
	s.mu.Lock()
	var left []pendingAnswer
	for _, up := range s.finished { // all of them: the relays have ended
		left = append(left, up.pending...)
		up.pending = nil
	}
	turns := s.turns
	s.turns = nil
	s.mu.Unlock()
	for i := range left {
		s.end(&left[i], result, reason)
	}
	for _, t := range turns {
		for _, m := range t.messages {
			s.d.bytes.Add(-sizeOf(m))
			if f, ok := m.(*batch.Frame); ok {
				f.Data.Free()
			}
		}
	}
}

func (s *inferStream) closeSend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, up := range s.ups {
		_ = up.stream.CloseSend()
	}
}

// finishStreamed reports what became of a request that was passed through on a
// stream, whose errors are text without a code.
func (d *Dispatcher) finishStreamed(p *pendingAnswer, result Result, reason string) {
	now := d.clock.Now()
	if result == OK && after(now, p.due) {
		result = Late
	}
	o := Outcome{Model: p.model.name, Result: result, Latency: now.Sub(p.arrived), Rows: p.rows, Batch: p.rows, PassedThrough: true, Reason: reason}
	p.model.counts.add(&o, now)
	v := judge(&o, nil, "", false)
	if result == Failed && p.said != "" {
		if v = uncounted; !fromValidation(p.said) {
			v = judgeError(status.Error(codes.Internal, p.said), p.model.backend())
		}
	}
	p.model.count(p.tally, p.place, &o, v)
	if v == succeeded || v == failedCanceled {
		p.tally.asked.Add(1)
	}
	d.o.Observer.Finished(o)
}
