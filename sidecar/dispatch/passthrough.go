// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// passThrough forwards one request alone and at once, outside the queue. A
// request whose partition was lost is tried once more elsewhere; one of a
// sequence is not, because its state was lost too.
func (d *Dispatcher) passThrough(c *call, route *route) answer {
	sequence := sequenceOf(c.req)
	var avoid *partition
	for {
		if err := c.ctx.Err(); err != nil { // before its sequence counts as going on, or as ended
			return answer{err: status.FromContextError(err).Err(), passed: true, retried: avoid != nil}
		}
		place, err := d.acquire(c.ctx, c.req.Model, route, avoid, sequence)
		if err != nil {
			return answer{err: err, passed: true, retried: avoid != nil}
		}
		a := answer{place: place, started: d.clock.Now(), rows: c.rows, passed: true, retried: avoid != nil}
		var got *forward.Answer
		frame := batch.Frame{Data: c.req.Marshal()}
		begun := place.partition.alone()
		got, a.err = place.partition.conn.Call(outgoing(c.ctx, c.ctx), methodInfer, &frame)
		if c.batch && a.err == nil && begun > 0 && begun == place.partition.alone() {
			d.observeAlone(c, place, a.started)
		}
		place.release(d)
		if forward.Lost(a.err) && c.ctx.Err() == nil {
			d.reportLost(place.partition, a.err)
			if avoid == nil && sequence == nil {
				avoid = place.partition
				continue
			}
		}
		if avoid == nil && sequence == nil && len(route.places) > 1 && c.ctx.Err() == nil && unloadedThere(a.err, c.req.Model) {
			avoid = place.partition
			continue
		}
		c.tally.answered(a.err, c.model.backend())
		if a.err != nil {
			a.err = answerStatus(a.err)
			return a
		}
		passBack(c.ctx, got)
		if a.resp, err = batch.ReadResponse(got.Frame.Data); err != nil {
			a.err = status.Errorf(codes.Internal, "the answer of the partition cannot be read: %v", err)
		}
		return a
	}
}

// unloadedThere tells that a partition does not have the model, which others may
// have unloaded before the route table knows: who has it is asked instead.
func unloadedThere(err error, model string) bool {
	if err == nil {
		return false
	}
	s := status.Convert(answerStatus(err))
	rest, ok := strings.CutPrefix(s.Message(), "Request for unknown model: '"+model+"' ")
	return ok && s.Code() == codes.NotFound && (rest == "has no available versions" || rest == "is not found")
}

// alone is not 0 while one call only is under way on the partition, and another
// number after any other has begun.
func (p *partition) alone() uint32 {
	if p.running.Load() != 1 {
		return 0
	}
	return p.begun.Load()
}

// observeAlone reports a request that was passed through and had the partition to
// itself as the execution that it was: so profiles are learnt where nothing is
// batched yet.
func (d *Dispatcher) observeAlone(c *call, l *placement, started time.Time) {
	p := l.partition
	d.o.Observer.Executed(Execution{
		Model: l.model, Partition: p.spec.ID, GPUType: p.spec.GPUType, ThreadPercentage: p.spec.ThreadPercentage,
		Rows: c.rows, Requests: 1, Start: started, End: d.clock.Now(),
	})
}

func (d *Dispatcher) reportLost(p *partition, cause error) {
	d.mu.Lock()
	defer d.unlock()
	if !d.broken.Load() {
		d.markDown(d.now(), p, cause.Error())
	}
}

// answerStatus keeps gRPC status errors as they are and drops our wrapping.
func answerStatus(err error) error {
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &s) {
		return s.GRPCStatus().Err()
	}
	return status.FromContextError(err).Err()
}

// acquire chooses the partition for something that runs outside the queue, and
// waits for one if none is up: the one that a sequence is on, or else the one
// with the fewest calls under way. The route may be an old one; when its
// partitions have gone the table in force counts.
func (d *Dispatcher) acquire(ctx context.Context, model string, r *route, avoid *partition, sequence *sequenceID) (*placement, error) {
	picked := d.choose(r, avoid, sequence)
	if picked != nil {
		return picked, nil
	}
	var failed error
	err := d.awaitChange(ctx, func() bool {
		for {
			if picked = d.choose(r, avoid, sequence); picked != nil {
				return true
			}
			current, err := d.route(model)
			if err != nil || current == r {
				if err != nil && len(r.places) == 0 {
					failed = err
				}
				break
			}
			r = current
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if failed == nil && (r.interrupted || r.removed || d.closed) {
			failed = r.outageError()
		}
		return failed != nil
	})
	switch {
	case failed != nil:
		return nil, failed
	case err != nil:
		return nil, status.FromContextError(err).Err()
	}
	return picked, nil
}

// choose is acquire without waiting; it returns nil when no partition is up. One
// chooses at a time: of those who come together each sees where the one before
// went.
func (d *Dispatcher) choose(r *route, avoid *partition, sequence *sequenceID) *placement {
	d.choosing.Lock()
	defer d.choosing.Unlock()
	for {
		var best *placement
		if sequence != nil {
			best = d.sequences.find(sequence, r, d.clock.Now())
		}
		if best == nil {
			if best = leastBusy(r.places, avoid); best == nil {
				return nil
			}
			if sequence != nil {
				d.sequences.put(sequence, r, best.partition, d.clock.Now())
			}
		}
		if best.acquire(d) {
			return best
		}
	}
}

// leastBusy picks among the partitions that are up; the one to avoid only if it
// is the last.
func leastBusy(places []*placement, avoid *partition) (best *placement) {
	var least int32
	for _, l := range places {
		p := l.partition
		if !p.up.Load() || p.retired.Load() {
			continue
		}
		n := p.running.Load()
		if best == nil || best.partition == avoid || (n < least && p != avoid) {
			best, least = l, n
		}
	}
	return best
}

// acquire counts a call outside the queue; it fails if the partition has been
// retired meanwhile.
func (l *placement) acquire(d *Dispatcher) bool {
	l.begin(d)
	l.partition.outside.Add(1)
	if l.partition.retired.Load() {
		l.release(d)
		return false
	}
	return true
}

func (l *placement) release(d *Dispatcher) {
	l.partition.outside.Add(-1)
	l.end(d)
}

// Pick chooses a partition for a request that runs outside the queue: the one
// that serves the model with the fewest calls under way, or any partition when
// model is empty. Release must be called when the request has ended. Errors
// are gRPC status errors in Triton's words.
func (d *Dispatcher) Pick(model string) (e router.Endpoint, release func(), err error) {
	l, err := d.pick("", model)
	if err != nil {
		return router.Endpoint{}, nil, err
	}
	return l.partition.spec.Endpoint, func() { l.release(d) }, nil
}

// pick is acquire without waiting: a partition by name, or one that serves the
// model, or any.
func (d *Dispatcher) pick(name, model string) (*placement, error) {
	d.choosing.Lock()
	defer d.choosing.Unlock()
	for {
		t := d.routes.Load()
		if t == nil {
			return nil, status.Error(codes.Unavailable, "Server not ready: no route table yet")
		}
		var places []*placement
		switch r := t.models[model]; {
		case name != "":
			for _, p := range t.partitions {
				if p.spec.ID == name {
					places = append(places, p.place(model))
				}
			}
			if places == nil {
				return nil, status.Errorf(codes.NotFound, "partition '%s' does not exist", name)
			}
		case model == "":
			for _, p := range t.partitions {
				places = append(places, p.place(""))
			}
		case r == nil:
			return nil, t.table.Unknown(model, "")
		default:
			places = r.places
		}
		l := leastBusy(places, nil)
		if l == nil {
			return nil, status.Errorf(codes.Unavailable, "no partition is up%s", forModel(model))
		}
		if l.acquire(d) {
			return l, nil
		}
	}
}

func forModel(model string) string {
	if model == "" {
		return ""
	}
	return " for model '" + model + "'"
}

// Call passes one unary gRPC method through: to the partition named, or else to
// a partition that serves the model, or else, with both empty, to any. The
// request frame is consumed; incoming metadata is passed on. The caller frees
// the answer.
func (d *Dispatcher) Call(ctx context.Context, partition, model, method string, request *batch.Frame) (*batch.Frame, error) {
	l, err := d.pick(partition, model)
	if err != nil {
		request.Data.Free()
		return nil, err
	}
	defer l.release(d)
	got, err := l.partition.conn.Call(outgoing(ctx, ctx), method, request)
	if err != nil {
		if forward.Lost(err) && ctx.Err() == nil {
			d.reportLost(l.partition, err)
		}
		return nil, answerStatus(err)
	}
	passBack(ctx, got)
	return &got.Frame, nil
}

// outgoing puts the metadata that came in with a call on its way to Triton,
// without what belongs to one connection.
func outgoing(ctx, caller context.Context) context.Context {
	md, ok := metadata.FromIncomingContext(caller)
	if !ok {
		return ctx
	}
	out := make(metadata.MD, len(md))
	for k, v := range md {
		switch k {
		case ":authority", "content-type", "user-agent", "te", "host", "connection":
		default:
			if len(k) > 5 && k[:5] == "grpc-" {
				continue
			}
			out[k] = v
		}
	}
	return metadata.NewOutgoingContext(ctx, out)
}

// passBack returns Triton's metadata to a gRPC caller; for others it does
// nothing.
func passBack(ctx context.Context, a *forward.Answer) {
	if h := incoming(a.Header); len(h) > 0 {
		_ = grpc.SetHeader(ctx, h) // fails for callers that are not gRPC
	}
	if t := incoming(a.Trailer); len(t) > 0 {
		_ = grpc.SetTrailer(ctx, t)
	}
}

func incoming(md metadata.MD) metadata.MD {
	out := make(metadata.MD, len(md))
	for k, v := range md {
		if k != "content-type" && (len(k) < 5 || k[:5] != "grpc-") {
			out[k] = v
		}
	}
	return out
}
