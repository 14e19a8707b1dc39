// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
)

const methodStream = tritonpb.GRPCInferenceService_ModelStreamInfer_FullMethodName

// Stream passes a gRPC call of any kind through to one partition, message by
// message, until both sides have ended.
func (d *Dispatcher) Stream(method string, downstream grpc.ServerStream) error {
	l, err := d.pick("", "")
	if err != nil {
		return err
	}
	defer l.release(d)
	ctx, cancel := context.WithCancel(outgoing(downstream.Context(), downstream.Context()))
	defer cancel()
	up, err := l.partition.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return answerStatus(err)
	}
	go func() {
		for {
			var f batch.Frame
			if err := downstream.RecvMsg(&f); err != nil {
				if errors.Is(err, io.EOF) {
					_ = up.CloseSend()
				} else {
					cancel()
				}
				return
			}
			if err := up.SendMsg(&f); err != nil {
				f.Data.Free()
				return // the reason comes out of RecvMsg
			}
		}
	}()
	// The goroutine above ends at the latest when this handler has returned,
	// because its RecvMsg then fails.
	return relay(up, downstream, func(*batch.Frame) bool { return true })
}

// relay copies those of upstream's messages down that pass says yes to, until
// upstream ends.
func relay(up grpc.ClientStream, downstream grpc.ServerStream, pass func(*batch.Frame) bool) error {
	if h, err := up.Header(); err == nil {
		if md := incoming(h); len(md) > 0 {
			_ = downstream.SetHeader(md) // too late if another upstream was first
		}
	}
	for {
		var f batch.Frame
		if err := up.RecvMsg(&f); err != nil {
			if errors.Is(err, io.EOF) {
				if md := incoming(up.Trailer()); len(md) > 0 {
					downstream.SetTrailer(md)
				}
				return nil
			}
			return err
		}
		if !pass(&f) {
			f.Data.Free()
			continue
		}
		if err := downstream.SendMsg(&f); err != nil {
			f.Data.Free()
			return err
		}
	}
}

// inferStream is one ModelStreamInfer call. Its requests may go to several
// partitions; each has a stream of its own, opened when it is needed.
type inferStream struct {
	d      *Dispatcher
	down   grpc.ServerStream
	ctx    context.Context
	cancel context.CancelCauseFunc
	relays sync.WaitGroup
	send   sync.Mutex // downstream takes one message at a time

	mu       sync.Mutex
	ups      map[*partition]*upstream
	finished []*upstream
	last     *upstream // of the last request whose answer has a place in the order
	closed   bool      // no further upstreams
	changed  chan struct{}
}

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
	model   *model
	id      string
	tally   *tally
	arrived time.Time
	rows    int
	// decoupled answers have no place in the order of the stream's answers.
	decoupled bool
	// asked is whether the caller wants to see an empty last answer.
	asked  bool
	failed bool   // an answer, though perhaps not the last, was an error
	said   string // that error
}

// InferStream serves ModelStreamInfer: every request of the stream goes to a
// partition that serves its model. As in Triton, answers of models that are not
// decoupled keep the order of their requests, and so do refusals; answers of
// decoupled models come when they come. That holds across partitions too:
// before a request goes to another partition than the one before it, the answers
// that are owed in order are waited for. Streams run outside the queue.
func (d *Dispatcher) InferStream(downstream grpc.ServerStream) error {
	n := d.accepted.Add(1)
	defer d.leave(0)
	if d.draining.Load() {
		return status.Error(codes.Unavailable, "Server is exiting: no new requests are accepted")
	}
	if n > int64(d.o.MaxQueuedRequests) {
		return status.Errorf(codes.Unavailable, "Exceeds maximum queue size: %d requests are under way", d.o.MaxQueuedRequests)
	}
	ctx, cancel := context.WithCancelCause(downstream.Context())
	s := &inferStream{d: d, down: downstream, ctx: ctx, cancel: cancel, ups: make(map[*partition]*upstream), changed: make(chan struct{})}
	defer cancel(nil)

	// Receive in this goroutine; relays send. A relay that fails cancels ctx, but
	// cannot interrupt RecvMsg: only returning does.
	received := make(chan error, 1)
	go func() { received <- s.receive() }()
	var err error
	select {
	case err = <-received:
		if err == nil {
			s.relays.Wait()
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
		}
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	cancel(err)
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.relays.Wait()
	s.abandon()
	if err == nil || errors.Is(err, io.EOF) {
		return nil
	}
	return answerStatus(err)
}

// receive forwards the caller's requests until it has no more.
func (s *inferStream) receive() error {
	for {
		var f batch.Frame
		if err := s.down.RecvMsg(&f); err != nil {
			if errors.Is(err, io.EOF) {
				s.closeSend()
				return nil
			}
			return err
		}
		r, err := batch.ReadRequest(f.Data)
		if err != nil {
			s.closeSend()
			return nil //nolint:nilerr // Triton ends the stream without an answer
		}
		err = s.forward(r)
		r.Free()
		if err != nil {
			return err
		}
	}
}

func (s *inferStream) forward(r *batch.Request) error {
	d := s.d
	route, err := d.route(r.Model)
	if err != nil {
		return s.refuse(r, d.unserved(r, err), false)
	}
	now := d.clock.Now()
	p := pendingAnswer{
		model: route.model, id: r.ID, tally: route.tallyOf(r.Version), arrived: now, rows: max(1, r.Rows()),
		decoupled: route.spec.Config.GetModelTransactionPolicy().GetDecoupled(),
	}
	wish, said := batch.FindParameter(r.Parameters, batch.ParameterEmptyFinalResponse)
	asked, valid := wish.Bool()
	p.asked = asked
	d.o.Observer.Arrived(r.Model, p.rows, now)
	if d.o.Recorder.Recording() {
		d.record(s.ctx, r, route, p.rows, now)
	}
	if err := route.rules.Refuse(r); err != nil {
		d.o.Observer.Finished(Outcome{Model: r.Model, Result: Rejected, Rows: p.rows, PassedThrough: true, Reason: "refused"})
		return s.refuse(r, err, p.decoupled)
	}
	up, err := s.hand(r, route, p)
	if err != nil {
		d.finishStreamed(p, Failed, "")
		return err
	}
	f := batch.Frame{Data: r.Marshal()}
	if p.decoupled && !asked && (valid || !said) { // what is not valid Triton refuses
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
		if last != nil && !p.decoupled && last.partition != p.place.partition {
			if err := s.settled(last); err != nil {
				p.place.release(s.d)
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
			if !p.decoupled {
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
	s.relays.Go(func() { s.relay(up) })
	return up, nil
}

// settled waits until an upstream owes no answer that has a place in the order.
func (s *inferStream) settled(up *upstream) error {
	for {
		s.mu.Lock()
		owes := slices.ContainsFunc(up.pending, func(p pendingAnswer) bool { return !p.decoupled })
		done, changed := up.ended || !owes, s.changed
		s.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-s.ctx.Done():
			return context.Cause(s.ctx)
		}
	}
}

// relay copies an upstream's answers down.
func (s *inferStream) relay(up *upstream) {
	err := relay(up.stream, lockedStream{s.down, &s.send}, func(f *batch.Frame) bool { return s.seen(up, f) })
	s.mu.Lock()
	up.ended = true
	if err == nil {
		s.concluded(up)
	}
	owes := len(up.pending) > 0
	delete(s.ups, up.partition)
	s.finished = append(s.finished, up)
	s.change()
	s.mu.Unlock()
	switch {
	case err == nil && owes:
		s.cancel(io.EOF) // the server ended the call: so does Conch
	case err != nil && forward.Lost(err) && up.partition.retired.Load() && !owes:
		// It drained, and its connection was closed: the next request goes elsewhere.
	case err != nil:
		if forward.Lost(err) && s.ctx.Err() == nil {
			s.d.reportLost(up.partition, err)
		}
		s.cancel(err)
	}
}

// concluded settles what decoupled models owed when the server ended the call:
// it ends a call when all its requests have been answered, so that only the mark
// of their end can be missing. Guarded by s.mu.
func (s *inferStream) concluded(up *upstream) {
	up.pending = slices.DeleteFunc(up.pending, func(p pendingAnswer) bool {
		if !p.decoupled {
			return false
		}
		result := OK
		if p.failed {
			result = Failed
		}
		p.place.release(s.d)
		s.d.finishStreamed(p, result, "")
		return true
	})
}

// seen takes note of an answer on its way down. It reports whether the caller is
// to see it: an empty last one only if it asked for that.
func (s *inferStream) seen(up *upstream, f *batch.Frame) bool {
	a, err := batch.ReadStreamAnswer(f.Data)
	if err != nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i := up.answered(a)
	if i < 0 {
		return true
	}
	p := &up.pending[i]
	if a.Failed && !p.failed {
		p.failed, p.said = true, a.Error
	}
	if !a.Last {
		return true
	}
	visible := !a.Empty || p.asked || !p.decoupled
	result := OK
	if p.failed {
		result = Failed
	}
	p.place.release(s.d)
	s.d.finishStreamed(*p, result, "")
	up.pending = slices.Delete(up.pending, i, i+1)
	s.change()
	return visible
}

// answered finds the request that an answer is to: the oldest one of its model
// with its id. An error names no model.
func (u *upstream) answered(a batch.StreamAnswer) int {
	return slices.IndexFunc(u.pending, func(p pendingAnswer) bool {
		return p.id == a.ID && (a.Model == "" || p.model.name == a.Model)
	})
}

// change wakes settled. Guarded by s.mu.
func (s *inferStream) change() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// abandon reports what never got its last answer: the caller has gone, or else
// the server ended the call.
func (s *inferStream) abandon() {
	result, reason := Failed, ""
	if s.down.Context().Err() != nil {
		result, reason = Cancelled, goneReason(s.down.Context(), s.d.clock.Now())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, up := range s.finished { // all of them: the relays have ended
		for _, p := range up.pending {
			p.place.release(s.d)
			s.d.finishStreamed(p, result, reason)
		}
		up.pending = nil
	}
}

func (s *inferStream) closeSend() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, up := range s.ups {
		_ = up.stream.CloseSend()
	}
}

// refuse answers one request of the stream with an error, as Triton does: in its
// place, and the stream goes on.
func (s *inferStream) refuse(r *batch.Request, cause error, decoupled bool) error {
	s.mu.Lock()
	last := s.last
	s.mu.Unlock()
	if last != nil && !decoupled {
		if err := s.settled(last); err != nil {
			return err
		}
	}
	s.send.Lock()
	defer s.send.Unlock()
	return s.down.SendMsg(&tritonpb.ModelStreamInferResponse{
		ErrorMessage:  status.Convert(cause).Message(),
		InferResponse: &tritonpb.ModelInferResponse{Id: r.ID},
	})
}

// finishStreamed reports what became of a request of a stream, whose errors are
// text without a code.
func (d *Dispatcher) finishStreamed(p pendingAnswer, result Result, reason string) {
	now := d.clock.Now()
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

// lockedStream lets several goroutines send.
type lockedStream struct {
	grpc.ServerStream
	mu *sync.Mutex
}

func (l lockedStream) SendMsg(m any) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ServerStream.SendMsg(m)
}
