// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package handon

import (
	"context"
	"errors"
	"io"
	"math"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/gate"
)

// The mark of a request that was handed on, which names the replica that did, and the mark of the answer of a replica that owns nothing. Both are metadata of gRPC
// and headers of HTTP.
const (
	markHandedOn = "conch-handed-on"
	markNotOwner = "conch-not-owner"
)

// healthPatience is how long a question for health waits for an owner.
const healthPatience = time.Second

const (
	service       = "/inference.GRPCInferenceService/"
	maxHeaderList = 16 << 10
	// pings more frequent than this are a flood.
	pingInterval = 10 * time.Millisecond
)

// unary are the methods that have one request and one answer, with how long they wait for an owner; 0: Options.Patience.
var unary = methods()

func methods() map[string]time.Duration {
	all := map[string]time.Duration{"/grpc.health.v1.Health/Check": healthPatience}
	for _, m := range tritonpb.GRPCInferenceService_ServiceDesc.Methods {
		all[service+m.MethodName] = 0
	}
	all[service+"ServerLive"], all[service+"ServerReady"] = healthPatience, healthPatience
	return all
}

func (f *Front) newGRPC() *grpc.Server {
	return grpc.NewServer(
		grpc.ForceServerCodecV2(batch.Codec{}),
		grpc.MaxRecvMsgSize(f.o.MessageBytes), grpc.MaxSendMsgSize(math.MaxInt32), grpc.MaxHeaderListSize(maxHeaderList),
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(4*window), experimental.BufferPool(&f.pool),
		grpc.Creds(gate.Credentials(insecure.NewCredentials())),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingInterval, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
		grpc.UnknownServiceHandler(func(_ any, down grpc.ServerStream) error {
			f.counts.underWay.Add(1)
			defer f.counts.underWay.Add(-1)
			outcome, err := f.relay(down)
			f.counts.requests.WithLabelValues("grpc", string(outcome)).Inc()
			return err
		}),
	)
}

// relay hands a call on.
func (f *Front) relay(down grpc.ServerStream) (Outcome, error) {
	method, ok := grpc.MethodFromServerStream(down)
	if !ok {
		return Refused, status.Error(codes.Internal, "a call without a method")
	}
	in, _ := metadata.FromIncomingContext(down.Context())
	if by := in.Get(markHandedOn); len(by) > 0 {
		down.SetTrailer(metadata.Pairs(markNotOwner, f.o.Name))
		return SecondHop, status.Error(codes.Unavailable, f.secondHop(by[0]))
	}
	admitted, err := gate.Caller(down.Context()).Admit(func(cause error) {
		// Only the transport can end a call whose handler waits for a message.
		if w, ok := grpc.ServerTransportStreamFromContext(down.Context()).(statusWriter); ok {
			_ = w.WriteStatus(status.Convert(cause)) // fails if the call has ended
		}
	})
	if err != nil {
		return Refused, err
	}
	defer admitted.End()
	c := &call{Front: f, down: down, method: method, admitted: admitted, wait: wait{until: time.Now().Add(f.o.Patience)}}
	c.ctx = metadata.NewOutgoingContext(down.Context(), f.marked(in))
	c.wait.ctx = c.ctx
	if patience, is := unary[method]; !is {
		return c.stream()
	} else if patience > 0 {
		c.wait.until = time.Now().Add(patience)
	}
	return c.unary()
}

// statusWriter ends a call whose handler goes on: the transport's stream, whose public interface lacks the method.
type statusWriter interface {
	WriteStatus(*status.Status) error
}

func (f *Front) secondHop(by string) string {
	return "replica " + f.o.Name + " owns no models, and replica " + by + " has handed this request on already"
}

// marked is the metadata of a request that is handed on.
func (f *Front) marked(in metadata.MD) metadata.MD {
	out := in.Copy()
	for key := range out {
		if strings.HasPrefix(key, ":") || strings.HasPrefix(key, "grpc-") || key == "content-type" || key == "user-agent" || key == "te" {
			delete(out, key)
		}
	}
	out.Set(markHandedOn, f.o.Name)
	return out
}

// call is one call of a client.
type call struct {
	*Front
	down     grpc.ServerStream
	method   string
	admitted *gate.Request
	ctx      context.Context
	wait     wait
	lost     *reign // may have executed it, and is sent it again only if it still serves; nil: none may
}

// receive reads a message of the client's.
func (c *call) receive() (mem.BufferSlice, error) {
	var f batch.Frame
	c.admitted.Receive()
	err := c.down.RecvMsg(&f)
	if evicted := c.admitted.Received(f.Data.Len()); evicted != nil {
		f.Data.Free()
		return nil, evicted
	}
	return f.Data, err
}

// unary hands a call with one request on, until an owner has answered it.
func (c *call) unary() (Outcome, error) {
	request, err := c.receive()
	switch {
	case errors.Is(err, io.EOF):
		return Refused, status.Error(codes.Internal, "the call ended without a request")
	case err != nil:
		return Refused, err
	}
	defer request.Free()
	conn := gate.Caller(c.down.Context())
	n := request.Len()
	if err := conn.Hold(n); err != nil {
		return Refused, err
	}
	defer conn.Release(n)
	answer, outcome, err := c.hand(request)
	if outcome == Answered {
		return outcome, c.give(answer, err)
	}
	return outcome, err
}

// hand sends a request until an owner has answered it. The answer, which may be an error, is to be freed.
func (c *call) hand(request mem.BufferSlice) (reply, Outcome, error) {
	for sent := false; ; {
		now, changed := c.owner.look()
		if now != nil && now.conn != nil && (c.lost != now || c.serves(c.ctx, now)) {
			if sent {
				c.counts.again.Inc()
			}
			sent = true
			request.Ref()
			answer, err := c.invoke(now, batch.Frame{Data: append(mem.BufferSlice(nil), request...)})
			switch outcome := c.judge(now, answer.trailer, err, func() bool { return inSequence(request) }); outcome {
			case Answered:
				return answer, outcome, err
			case Lost:
				return reply{}, outcome, status.Error(codes.Unavailable, unknown(now.Name))
			case Cancelled:
				if err == nil { // the answer came as the caller left
					answer.Data.Free()
					_, err = c.spent()
				}
				return reply{}, outcome, err
			}
		}
		if !c.wait.more(changed) {
			outcome, err := c.spent()
			return reply{}, outcome, err
		}
	}
}

type reply struct {
	batch.Frame
	header, trailer metadata.MD
}

// invoke sends a request to an owner.
func (c *call) invoke(now *reign, request batch.Frame) (a reply, err error) {
	ctx, done := now.during(c.ctx)
	defer done()
	err = now.conn.Invoke(ctx, c.method, &request, &a.Frame, grpc.Header(&a.header), grpc.Trailer(&a.trailer))
	return a, err
}

// judge says whether an error is an answer, or the request is to be sent again, which is Unavailable as long as it waits.
func (c *call) judge(now *reign, trailer metadata.MD, err error, sequence func() bool) Outcome {
	said := status.Convert(err)
	switch {
	case c.ctx.Err() != nil:
		return Cancelled
	case err == nil:
		c.owner.heard()
		return Answered
	case len(trailer.Get(markNotOwner)) > 0:
		return Unavailable
	case said.Code() == codes.Unavailable && (said.Message() == batch.Exiting || said.Message() == batch.NotReady):
		return Unavailable
	case now.over.Err() == nil && !forward.Lost(err):
		c.owner.heard()
		return Answered
	case strings.HasPrefix(said.Message(), "connection error"), strings.HasPrefix(said.Message(), "last connection error"):
		// It was never sent. One that was on a connection that broke says "closing transport due to: connection error", if the owner had begun to end.
		return Unavailable
	case c.lost != nil || sequence():
		return Lost
	}
	c.lost = now
	return Unavailable
}

// unknown says that an owner may have executed a request that it has not answered.
func unknown(name string) string {
	return "replica " + name + ", which owned the models, ended or was cut off before it answered; whether it executed the request is not known"
}

// spent is the end of a request that has waited for long enough.
func (c *call) spent() (Outcome, error) {
	if err := c.ctx.Err(); err != nil {
		return Cancelled, status.FromContextError(err).Err()
	}
	return Unavailable, status.Error(codes.Unavailable, c.nobody())
}

// nobody says why nobody took a request.
func (f *Front) nobody() string {
	if now, _ := f.owner.look(); now != nil {
		return "replica " + now.Name + ", which owns the models, took no request in time"
	}
	return "no replica is known to own the models"
}

// give gives a client the owner's answer.
func (c *call) give(a reply, err error) error {
	a.header.Delete("content-type")
	c.down.SetTrailer(a.trailer)
	if err != nil {
		return err
	}
	if err := c.down.SetHeader(a.header); err != nil {
		a.Data.Free()
		return err
	}
	return c.send(a.Data)
}

// send sends a message to the client.
func (c *call) send(data mem.BufferSlice) error {
	err := c.down.SendMsg(&batch.Frame{Data: c.admitted.Sent(data)})
	if err == nil && c.ctx.Err() != nil {
		c.admitted.Undelivered()
	}
	return err
}

// inSequence says whether a request may belong to a sequence, which no other request does that has no such word in it.
func inSequence(request mem.BufferSlice) bool {
	return strings.Contains(string(request.Materialize()), "sequence_id")
}

// stream hands on a call of any other form. It begins once an owner serves, and ends with it.
func (c *call) stream() (Outcome, error) {
	var now *reign
	for {
		var changed <-chan struct{}
		if now, changed = c.owner.look(); now != nil && now.conn != nil && c.serves(c.ctx, now) {
			break
		}
		if !c.wait.more(changed) {
			return c.spent()
		}
	}
	ctx, done := now.during(c.ctx)
	defer done()
	up, err := now.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, c.method)
	if err != nil {
		return c.ends(now, err)
	}
	c.running.Go(func() {
		for {
			message, err := c.receive()
			if errors.Is(err, io.EOF) {
				_ = up.CloseSend() // its error is what up receives
				return
			}
			if err != nil || up.SendMsg(&batch.Frame{Data: message}) != nil {
				done()
				return
			}
		}
	})
	for first := true; ; first = false {
		var f batch.Frame
		if err = up.RecvMsg(&f); err != nil {
			break
		}
		if first {
			if header, err := up.Header(); err == nil {
				header.Delete("content-type")
				_ = c.down.SetHeader(header) // the message would fail, too
			}
		}
		if err = c.send(f.Data); err != nil {
			return Cancelled, err
		}
	}
	trailer := up.Trailer()
	trailer.Delete(markNotOwner)
	c.down.SetTrailer(trailer)
	return c.ends(now, err)
}

// ends is the end of a stream.
func (c *call) ends(now *reign, err error) (Outcome, error) {
	switch {
	case errors.Is(err, io.EOF):
		return Answered, nil
	case c.ctx.Err() != nil:
		return Cancelled, status.FromContextError(c.ctx.Err()).Err()
	case now.over.Err() != nil || forward.Lost(err):
		return Lost, status.Error(codes.Unavailable, "replica "+now.Name+", which owned the models of this stream, has ended; begin another stream")
	}
	return Answered, err
}

// serves asks an owner whether it serves: it is alive, and says not that it owns nothing.
func (f *Front) serves(ctx context.Context, now *reign) bool {
	ctx, cancel := context.WithTimeout(ctx, connectPatience)
	defer cancel()
	ctx, done := now.during(metadata.NewOutgoingContext(ctx, metadata.Pairs(markHandedOn, f.o.Name)))
	defer done()
	if now.conn == nil {
		return f.servesHTTP(ctx, now)
	}
	_, err := tritonpb.NewGRPCInferenceServiceClient(now.conn).ServerLive(ctx, &tritonpb.ServerLiveRequest{})
	return err == nil
}
