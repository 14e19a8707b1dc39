// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

const methodStream = tritonpb.GRPCInferenceService_ModelStreamInfer_FullMethodName

// Stream passes a gRPC call of any kind through to one partition, message by
// message, until both sides have ended. It counts as one request.
func (d *Dispatcher) Stream(method string, downstream grpc.ServerStream) error {
	t := new(ticket)
	t.open(downstream.Context(), d, 0)
	if a, ok := t.admit(0, 0); !ok {
		return a.err
	}
	defer t.withdraw()
	if err := d.Ready(); err != nil {
		return err
	}
	lease, _, err := d.router.Acquire("", router.Hints{})
	if err != nil {
		return err
	}
	defer lease.Release()
	ctx, cancel := context.WithCancel(onward(downstream.Context()))
	defer cancel()
	up, err := lease.Partition().Conn().NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return forward.Status(err).Err()
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
				return // RecvMsg returns the reason
			}
		}
	}()
	// The goroutine above ends at the latest when this handler has returned,
	// because its RecvMsg then fails.
	return relay(up, downstream, func(f *batch.Frame) error { return sendDown(downstream, f) })
}

// sendDown consumes a message.
func sendDown(downstream grpc.ServerStream, f *batch.Frame) error {
	err := downstream.SendMsg(f)
	if err != nil {
		f.Data.Free() // unless it was handed over, which empties it
	}
	return err
}

// relay sets upstream's header and trailer on downstream and hands its messages to
// pass, which consumes them, until upstream ends.
func relay(up grpc.ClientStream, downstream grpc.ServerStream, pass func(*batch.Frame) error) error {
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
		if err := pass(&f); err != nil {
			return err
		}
	}
}

// inferStream is one ModelStreamInfer call. Its requests are queued or passed
// through one by one, like unary ones. Only those of decoupled models go to their
// partition by a stream, which is opened when it is needed. Triton (2.51 and
// later) may write to the record of an answered request of a stream after it has
// reused the record for the next one, unless the model is decoupled. A request of
// a decoupled model that gets such a record is taken for answered too early, and a
// second answer crashes the server. The two requests may be on different streams.
type inferStream struct {
	d       *Dispatcher
	down    grpc.ServerStream
	ctx     context.Context
	cancel  context.CancelCauseFunc
	tasks   sync.WaitGroup // relays, and requests that are answered one by one
	waiting sync.WaitGroup // requests that may yet be forwarded
	opening sync.Mutex     // held while a stream to a partition is opened: there is one for each
	send    sync.Mutex     // downstream takes one message at a time
	ended   bool           // write has returned the error that ends the call, and sends nothing more; guarded by send
	less    chan struct{}  // signals that less is owed; one signal at most
	// statuses: the caller wants the errors of models as the status that ends the
	// call (Triton's header triton_grpc_error), and not as messages.
	statuses bool
	// whyGone returns the Gone reason of the caller, as of its first call.
	whyGone func() string

	mu       sync.Mutex
	ups      map[*router.Partition]*upstream
	finished []*upstream
	steps    map[any]chan struct{} // by sequenceKey or lineKey: closed once the last request of it is over
	closed   bool                  // no further tasks
	over     bool                  // nothing is sent any more
	turns    []*turn               // what is owed in order, oldest first
	sending  bool                  // a goroutine sends the messages of the first turns
	owed     int                   // requests without their last answer, or with one that waits for its turn
	bytes    int64                 // of those requests, and of answers that wait for their turn
}

// sequenceKey is a sequence of a model.
type sequenceKey struct {
	model string
	id    router.SequenceID
}

// InferStream serves ModelStreamInfer. A request that may share an execution is
// queued, together with those of other callers, and taken out of the queue when
// the call is cancelled. Any other request goes to a partition that serves its
// model; those of a sequence go one after the other. As in Triton, answers of
// models that are not decoupled keep the order of their requests, and so do
// refusals; answers of decoupled models have no order. That holds across the queue
// and all partitions.
//
// No further message of a call is read while the call owes more than its share of
// what may be under way.
func (d *Dispatcher) InferStream(downstream grpc.ServerStream) error {
	if reason, err := d.admission.open(); err != nil {
		t := new(ticket)
		t.open(downstream.Context(), d, 0)
		a := refusal(reason, err)
		t.end(&a) // the requests on it are not known
		return err
	}
	defer d.admission.close()
	ctx, cancel := context.WithCancelCause(downstream.Context())
	s := &inferStream{d: d, down: downstream, ctx: ctx, cancel: cancel, ups: make(map[*router.Partition]*upstream), steps: make(map[any]chan struct{}), less: make(chan struct{}, 1)}
	s.statuses = slices.Contains(metadata.ValueFromIncomingContext(downstream.Context(), headerStatuses), "true")
	began := d.clock.Now()
	s.whyGone = sync.OnceValue(func() string { return goneReason(downstream.Context(), began, d.clock.Now()) })
	defer context.AfterFunc(downstream.Context(), func() { s.whyGone() })()
	defer cancel(nil)

	// One goroutine receives; tasks send. A task that fails cancels ctx, but that
	// does not interrupt RecvMsg: only the return of this handler does.
	received := make(chan error, 1)
	go func() {
		err := errFault
		defer func() { received <- err }()
		defer func() { recovered(d.o.Logger, "reading a stream", recover()) }()
		err = s.receive()
	}()
	var err error
	select {
	case err = <-received:
		if err == nil {
			s.tasks.Wait()
			if cause := context.Cause(ctx); cause != nil {
				err = cause
			}
		}
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-d.admission.quiet:
		err = errDraining // all that was accepted is answered, and nothing more will be
	}
	cancel(err)
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.tasks.Wait()
	s.abandon()
	switch {
	case expired(downstream.Context(), d.clock.Now()): // the context's timer may not have fired yet
		return status.FromContextError(context.DeadlineExceeded).Err()
	case err == nil || errors.Is(err, io.EOF):
		return nil
	}
	return forward.Status(err).Err()
}

// receive takes the caller's requests until it has no more.
func (s *inferStream) receive() error {
	for {
		if err := s.takesMore(); err != nil {
			return err
		}
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
			s.d.Refused(s.ctx, "", err)
			s.closeSend()
			return nil // Triton ends the stream without an answer
		}
		err = s.take(r)
		r.Free()
		if err != nil {
			return err
		}
	}
}

// take queues one request, or forwards or refuses it. It does not block: a request
// that has to wait must not delay the reading of the next one.
func (s *inferStream) take(r *batch.Request) error {
	d := s.d
	c := d.newCall(s.ctx, r)
	defer func() {
		if fault := recover(); fault != nil { // which ends the call
			c.closed()
			panic(fault)
		}
	}()
	f := d.look(r, &c.asked)
	switch {
	case f.inactive != nil:
		return s.awaitVariant(c, f)
	case f.route == nil:
		return s.refuse(r, false, d.early(c, &f.refusal))
	}
	route := f.route
	queueable := d.arrive(c, route)
	decoupled := route.decoupled()
	if err := d.hazard(r, route.rules); err != nil {
		_, err = d.finish(c, answer{err: err, result: Refused, reason: reasonInvalid})
		return s.refuse(r, decoupled, err)
	}
	a, ok := c.admitted()
	switch {
	case !ok:
		_, err := d.finish(c, a)
		return s.refuse(r, decoupled, err)
	case !decoupled:
		return s.alone(c, s.way(c, route, queueable))
	case route.spec.Cold || s.inLine(route.name):
		return s.forwardLater(c, route.spec.Cold)
	}
	s.owe(c.size)
	return s.forward(c)
}

// decoupled reports whether a model may answer a request any number of times.
func (r *route) decoupled() bool { return r.spec.Config.GetModelTransactionPolicy().GetDecoupled() }

// way returns how a request of a model that is not decoupled gets its answer:
// begin starts it, and the function that begin returns waits for the answer.
func (s *inferStream) way(c *call, route *route, queueable bool) (begin func() (await func() answer)) {
	d := s.d
	switch {
	case route.spec.Cold:
		return func() func() answer {
			before, answered := s.step(c) // in order, because a load ends for all requests at once
			return func() answer {
				loaded, a, ok := d.awaitLoad(c)
				if ok && !c.queueable(loaded) && !c.whole {
					before()
					defer answered()
					return d.passThrough(c)
				}
				s.tasks.Go(func() { // what follows in its sequence still follows what was before
					before()
					answered()
				})
				if !ok {
					return a
				}
				return d.serve(c, loaded, !c.whole)
			}
		}
	case queueable:
		return func() func() answer {
			await := c.awaited()
			d.enqueue(nil, c, route)
			return await
		}
	case c.whole:
		return func() func() answer { return func() answer { return d.serve(c, route, false) } }
	}
	return func() func() answer { return s.passThrough(c) }
}

// enter reports whether the call is not over. Run has to be called then.
func (s *inferStream) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.tasks.Add(1)
	}
	return !s.closed
}

// run runs f beside the reading of the stream.
func (s *inferStream) run(f func()) {
	go func() {
		defer s.tasks.Done()
		defer func() {
			if recovered(s.d.o.Logger, "answering on a stream", recover()) {
				s.cancel(errFault)
			}
		}()
		f()
	}()
}

// task runs f beside the reading of the stream, unless the call is over.
func (s *inferStream) task(f func()) bool {
	if !s.enter() {
		return false
	}
	s.run(f)
	return true
}

// alone answers one request in its turn. Begin is called here, so that requests
// begin in their order. The function that it returns waits for the answer on
// another goroutine.
func (s *inferStream) alone(c *call, begin func() (await func() answer)) error {
	if !s.enter() {
		_, err := s.d.finish(c, answer{err: context.Cause(s.ctx), result: Cancelled})
		return err
	}
	t, begun := s.nextTurn(c.size), false
	defer func() {
		if !begun { // it has panicked
			s.tasks.Done()
		}
	}()
	await := begin()
	begun = true
	c.req.Ref()
	s.run(func() {
		s.conclude(c, t, await)
		c.req.Free()
	})
	return nil
}

// conclude waits for the answer to a request and delivers it in its turn.
func (s *inferStream) conclude(c *call, t *turn, await func() answer) {
	a := s.d.safely(await)
	resp, err := s.d.finish(c, a)
	s.deliver(t, s.streamed(c, &a, resp, err))
}

// passThrough forwards a request, once the one before it in its sequence has been
// answered: only on a stream would Triton keep their order.
func (s *inferStream) passThrough(c *call) (await func() answer) {
	before, answered := s.step(c)
	return func() answer {
		defer answered()
		before()
		return s.d.passThrough(c)
	}
}

// step gives a request its place in its sequence, if it has one. Before waits
// until the previous request of the sequence has been answered; answered marks
// this one as answered.
func (s *inferStream) step(c *call) (before, answered func()) {
	sequence := router.SequenceOf(c.req)
	if sequence == nil {
		return func() {}, func() {}
	}
	return s.follow(sequenceKey{c.req.Model, sequence.ID})
}

// follow puts a request behind the last one of the same key. Before waits until
// that request is over, or until the call ends. Over marks this request as over,
// and is to be called after before.
func (s *inferStream) follow(key any) (before, over func()) {
	done := make(chan struct{})
	s.mu.Lock()
	last := s.steps[key]
	s.steps[key] = done
	s.mu.Unlock()
	before = func() {
		if last == nil {
			return
		}
		select {
		case <-last:
		case <-s.ctx.Done():
		}
	}
	return before, func() {
		close(done)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.steps[key] == done {
			delete(s.steps, key)
		}
	}
}

// headerStatuses is Triton's.
const headerStatuses = "triton_grpc_error"

// callEnd is the error of a model that ends a call in its turn.
type callEnd struct{ error }

// streamed returns the message of the stream that answers a request, or the ending
// of the call.
func (s *inferStream) streamed(c *call, a *answer, resp *batch.Response, err error) any {
	if err == nil {
		defer resp.Free()
		err = resp.Err()
	}
	if err == nil {
		return &batch.Frame{Data: batch.StreamResponse(resp)}
	}
	m := &tritonpb.ModelStreamInferResponse{ErrorMessage: status.Convert(err).Message(), InferResponse: &tritonpb.ModelInferResponse{Id: c.req.ID}}
	// An error of the model, or of its queue after the request was queued, is an
	// answer of the model: Triton names the model in it and marks it as the last
	// answer.
	if a.result == Dropped || a.series != nil && !forward.Refused(err) {
		if s.statuses {
			return callEnd{err}
		}
		m.InferResponse.ModelName = c.nameOf()
		m.InferResponse.Parameters = map[string]*tritonpb.InferParameter{
			batch.ParameterFinalResponse: {ParameterChoice: &tritonpb.InferParameter_BoolParam{BoolParam: true}},
		}
	}
	return m
}

// refuse answers one request of the stream with an error, as Triton does: in its
// turn, unless its model is decoupled. The stream goes on.
func (s *inferStream) refuse(r *batch.Request, decoupled bool, cause error) error {
	if decoupled {
		return s.write(refused(r, cause))
	}
	s.deliver(s.nextTurn(0), refused(r, cause))
	return nil
}

// refused returns the message of the stream for a request that was refused.
func refused(r *batch.Request, cause error) *tritonpb.ModelStreamInferResponse {
	return &tritonpb.ModelStreamInferResponse{
		ErrorMessage:  status.Convert(cause).Message(),
		InferResponse: &tritonpb.ModelInferResponse{Id: r.ID},
	}
}
