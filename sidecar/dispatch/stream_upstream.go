// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// upstream is the stream of a call to one partition, for requests of decoupled
// models. It keeps the partition from draining only while it owes answers.
type upstream struct {
	partition *router.Partition
	stream    grpc.ClientStream
	sending   sync.Mutex // it takes one message at a time
	cancel    context.CancelFunc
	idle      chan struct{}   // signals that nothing is owed; one signal at most
	pending   []pendingAnswer // guarded by inferStream.mu
	ended     bool            // guarded by inferStream.mu
}

// pendingAnswer is a request whose last answer has not come.
type pendingAnswer struct {
	*ticket
	lease router.Lease // held until then
	id    string
	// empty is whether the caller receives an empty last answer, too.
	empty     bool
	failed    bool   // an answer, though perhaps not the last, was an error
	errorText string // of the first such answer
}

// owe counts a request in that has no turn.
func (s *inferStream) owe(size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owed++
	s.bytes += size
}

// forward sends a request of a decoupled model, which is owed an answer, to a
// partition. Its answers have no place in the order of the others.
func (s *inferStream) forward(c *call) error {
	c.due = time.Time{} // it may be answered any number of times: no answer is late
	p := pendingAnswer{ticket: &c.ticket, id: c.req.ID}
	wish, given := batch.FindParameter(c.req.Parameters, batch.ParameterEmptyFinalResponse)
	empty, valid := wish.Bool()
	p.empty = empty
	up, err := s.hand(c.req, p)
	if err != nil {
		p.failed = true
		result, reason := s.fate(&p)
		s.end(&p, result, reason)
		if s.mute() {
			return err
		}
		return s.refuse(c.req, true, forward.Status(err).Err()) // the call may have requests for other models
	}
	f := batch.Frame{Data: c.req.Marshal()}
	if !empty && (valid || !given) { // Triton refuses a value that is not valid
		f.Data = batch.AskForFinalResponse(f.Data)
	}
	up.sending.Lock()
	defer up.sending.Unlock()
	if err := up.stream.SendMsg(&f); err != nil {
		f.Data.Free() // unless it was handed over, which empties it
	}
	return nil // relay reports a broken upstream
}

// hand finds or opens the upstream for a request and adds the request to those
// that it owes answers to. If a partition is lost before its upstream is open,
// nothing was sent. Another partition may then serve the request, unless it is of
// a sequence, whose state was lost too.
func (s *inferStream) hand(r *batch.Request, p pendingAnswer) (*upstream, error) {
	h := router.Hints{Sequence: router.SequenceOf(r)}
	for {
		lease, none := p.ticket.lease(r.Model, h)
		if none.err != nil {
			return nil, s.d.unserved(r, none.err)
		}
		up, err := s.upstream(lease.Partition())
		if err != nil {
			lease.Release()
			if forward.Lost(err) && h.Avoid == nil && h.Sequence == nil && s.ctx.Err() == nil {
				h.Avoid = lease.Partition()
				continue
			}
			return nil, err
		}
		s.mu.Lock()
		if !up.ended {
			p.lease = lease
			up.pending = append(up.pending, p)
			s.mu.Unlock()
			return up, nil
		}
		s.mu.Unlock()
		lease.Release()
	}
}

// upstream finds or opens the stream to a partition.
func (s *inferStream) upstream(p *router.Partition) (*upstream, error) {
	if up := s.opened(p); up != nil {
		return up, nil
	}
	s.opening.Lock()
	defer s.opening.Unlock()
	if up := s.opened(p); up != nil {
		return up, nil
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(onward(s.ctx)))
	stream, err := p.Conn().NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, methodStream)
	if err != nil {
		cancel()
		if forward.Lost(err) {
			s.d.router.Lost(p, err)
		}
		return nil, err
	}
	up := &upstream{partition: p, stream: stream, cancel: cancel, idle: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed { // the call has ended meanwhile
		cancel()
		return nil, context.Cause(s.ctx)
	}
	s.ups[p] = up
	s.tasks.Add(1)
	s.run(func() { s.relay(up) })
	return up, nil
}

// opened is the stream to a partition; nil: there is none.
func (s *inferStream) opened(p *router.Partition) *upstream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ups[p]
}

// lastWord is how long a server may go on answering a call whose caller has gone
// before the call is cancelled. Triton 2.51 may crash when a stream is cancelled
// while it sends answers, so answers that end soon are left to end. Longer ones,
// such as generated text, are cancelled, because no caller receives them.
const lastWord = time.Second

// part ends an upstream when the call has ended: as soon as nothing is owed, or
// after lastWord.
func (s *inferStream) part(up *upstream, ended <-chan struct{}) {
	defer up.cancel()
	passed := make(chan struct{})
	defer s.d.clock.After(lastWord, func() { close(passed) }).Stop()
	for {
		s.mu.Lock()
		owes := len(up.pending) > 0
		s.mu.Unlock()
		if !owes {
			return
		}
		select {
		case <-up.idle:
		case <-ended:
			return
		case <-passed:
			return
		}
	}
}

// relay handles an upstream's answers until it ends.
func (s *inferStream) relay(up *upstream) {
	ended := make(chan struct{})
	defer close(ended)
	defer up.cancel()
	defer context.AfterFunc(s.ctx, func() { s.part(up, ended) })()
	err := relay(up.stream, s.down, func(f *batch.Frame) error { s.answered(up, f); return nil })
	s.mu.Lock()
	up.ended = true
	var over []pendingAnswer
	if err == nil {
		// The server ends a call when all its requests have been answered: only the
		// mark of their end can be missing.
		over, up.pending = up.pending, nil
	}
	owes := len(up.pending) > 0
	delete(s.ups, up.partition)
	if owes {
		s.finished = append(s.finished, up)
	}
	s.mu.Unlock()
	for i := range over {
		result, reason := s.fate(&over[i])
		s.end(&over[i], result, reason)
	}
	if err == nil {
		return
	}
	if forward.Lost(err) && s.ctx.Err() == nil && !s.d.router.Retired(up.partition) {
		s.d.router.Lost(up.partition, err)
	}
	if !forward.Lost(err) || owes {
		s.cancel(err)
	}
	// Otherwise no answer was lost: the next request opens another upstream.
}

// answered passes an answer on, but an empty last one only if the caller asked
// for that.
func (s *inferStream) answered(up *upstream, f *batch.Frame) {
	a, err := batch.ReadStreamAnswer(f.Data)
	if err != nil {
		s.pass(f)
		return
	}
	s.mu.Lock()
	i := up.find(a)
	if i < 0 {
		s.mu.Unlock()
		s.pass(f)
		return
	}
	p := &up.pending[i]
	if a.Failed && !p.failed {
		p.failed, p.errorText = true, a.Error
	}
	after := *p
	if a.Last {
		up.pending = slices.Delete(up.pending, i, i+1)
	}
	if len(up.pending) == 0 {
		select {
		case up.idle <- struct{}{}:
		default: // a signal waits to be read
		}
	}
	s.mu.Unlock()
	if a.Last {
		result, reason := s.fate(&after)
		s.end(&after, result, reason)
	}
	if a.Last && a.Empty && !after.empty {
		f.Data.Free()
		return
	}
	if after.ticket.asked.target.Answer != nil && a.Model != "" {
		more := &batch.Response{}
		after.ticket.asked.target.Answer(more)
		f.Data = batch.AmendStreamAnswer(f.Data, more)
	}
	s.pass(f)
}

// mute reports whether nothing more is sent to the caller: the call has ended, and not because a drain has seen the end of the last request. The answer to
// that one may still be on its way.
func (s *inferStream) mute() bool {
	return s.ctx.Err() != nil && !errors.Is(context.Cause(s.ctx), errDraining)
}

// pass sends a message to the caller, unless the call is mute. Later
// messages are still read, for lastWord, and discarded.
func (s *inferStream) pass(f *batch.Frame) {
	if s.mute() {
		f.Data.Free()
		return
	}
	if err := s.write(f); err != nil {
		s.cancel(err)
	}
}

// fate returns the result and the reason of a request that has its last answer.
func (s *inferStream) fate(p *pendingAnswer) (Result, string) {
	if s.down.Context().Err() != nil {
		return Cancelled, s.whyGone()
	}
	return p.result(), ""
}

// find finds the request that an answer is to: the oldest one of its model with
// its id. A refusal names no model.
func (up *upstream) find(a batch.StreamAnswer) int {
	return slices.IndexFunc(up.pending, func(p pendingAnswer) bool {
		return p.id == a.ID && (a.Model == p.model.name || a.Model == "")
	})
}

func (p *pendingAnswer) result() Result {
	if p.failed {
		return Failed
	}
	return OK
}

// end counts a request out whose last answer has come, or will not come.
func (s *inferStream) end(p *pendingAnswer, result Result, reason string) {
	if p.lease.Valid() {
		p.report(result)
		p.lease.Release()
	}
	s.d.finishStreamed(p, result, reason)
	s.mu.Lock()
	s.discharge(p.size)
	s.mu.Unlock()
}

// report says to the place of a request how its execution went. Errors on a stream are text without a code. The request is not tried again elsewhere:
// a part of its answers may have been sent.
func (p *pendingAnswer) report(result Result) {
	cause := status.Error(codes.Internal, p.errorText)
	switch {
	case result == OK || result == Cold:
		p.lease.Worked()
	case result == Failed && p.errorText != "" && !forward.GaveUpText(p.errorText):
		p.faulted(p.lease, cause, p.errorText, 1, false)
	}
}

// abandon ends the requests that never got their last answer, because the caller
// has gone or the server ended the call. It frees the messages that were not sent.
func (s *inferStream) abandon() {
	result, reason := Failed, ""
	if s.down.Context().Err() != nil {
		result, reason = Cancelled, s.whyGone()
	}
	s.mu.Lock()
	var left []pendingAnswer
	for _, up := range s.finished { // all that owe: the relays have ended
		left = append(left, up.pending...)
		up.pending = nil
	}
	for _, t := range s.turns {
		s.d.admission.hold(-sizeOf(t.message))
		discard(t.message)
		t.message = nil
	}
	s.turns, s.over = nil, true // receive may still refuse a request until this call has returned
	s.mu.Unlock()
	for i := range left {
		s.end(&left[i], result, reason)
	}
}

// closeSend half-closes the upstreams, once the requests that wait have been
// forwarded.
func (s *inferStream) closeSend() {
	s.waiting.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, up := range s.ups {
		_ = up.stream.CloseSend()
	}
}

// finishStreamed reports the outcome of a request that was passed through on a
// stream, whose errors are text without a code.
func (d *Dispatcher) finishStreamed(p *pendingAnswer, result Result, reason string) {
	o, now := p.ticket.end(&answer{result: result, reason: reason, started: p.begins, rows: p.rows, passed: true})
	v := verdictOf(&o, nil, "", false)
	if result == Failed && p.errorText != "" {
		if v = uncounted; !forward.RefusalText(p.errorText) {
			v = verdictOfError(status.Error(codes.Internal, p.errorText), p.model.backend())
		}
	}
	partition, _ := p.lease.Attached().(*partitionSeries)
	p.model.count(p.tally, partition, &o, v)
	if v == succeeded || v == failedCanceled {
		p.tally.asked.Add(1)
	}
	if p.span != nil {
		var err error
		if result != OK {
			err = errors.New(cmp.Or(p.errorText, result.String()))
		}
		p.span.End(now, o.Result.String(), o.Reason, true, false, err)
	}
}
