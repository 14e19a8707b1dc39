// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package grpc

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/gate"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// admit admits a call, or refuses it, before anything of it is read.
func admit(stream grpc.ServerStream) (*gate.Request, error) {
	ctx := stream.Context()
	return gate.Caller(ctx).Admit(func(cause error) {
		// Only the transport can end a call whose handler waits for a message. If
		// it could not, the call would go on, uncounted, until its client ends it.
		if w, ok := grpc.ServerTransportStreamFromContext(ctx).(statusWriter); ok {
			_ = w.WriteStatus(status.Convert(cause)) // fails if the call has ended
		}
	})
}

// stage runs the handler of a call of many messages. Refused is called for a call that is not admitted, and for messages that the handler never
// receives. It is nil for calls whose messages are no inference requests.
func stage(stream grpc.ServerStream, refused func(context.Context, string, error), handle func(grpc.ServerStream) error) error {
	r, err := admit(stream)
	if err != nil {
		if refused != nil {
			refused(stream.Context(), "", err)
		}
		return err
	}
	defer r.End()
	if r == nil && refused == nil {
		return handle(stream)
	}
	return handle(bounded{stream, r, compressed(stream), refused})
}

// bounded counts the messages of a stream.
type bounded struct {
	grpc.ServerStream
	r          *gate.Request
	compressed bool
	refused    func(context.Context, string, error) // as of stage
}

// RecvMsg implements grpc.ServerStream.
func (b bounded) RecvMsg(m any) error {
	b.r.Receive()
	err := b.ServerStream.RecvMsg(m)
	n := 0
	f, ok := m.(*batch.Frame)
	if ok && err == nil && !b.compressed {
		n = f.Data.Len()
	}
	evicted := b.r.Received(n)
	if evicted != nil {
		if ok && err == nil { // it was refused before it was whole
			f.Data.Free()
			f.Data = nil
		}
		err = evicted
	}
	if b.refused != nil && err != nil && !errors.Is(err, io.EOF) {
		switch status.Code(err) {
		case codes.Canceled, codes.DeadlineExceeded: // no request is lost with a call that ends between two messages
		default:
			b.refused(b.Context(), "", err)
		}
	}
	return err
}

// SendMsg implements grpc.ServerStream.
func (b bounded) SendMsg(m any) error { return send(b.ServerStream, b.r, m) }

// receive reads the one message of a unary call.
func receive(stream grpc.ServerStream, r *gate.Request, into *batch.Frame) error {
	b := bounded{stream, r, compressed(stream), nil}
	err := b.RecvMsg(into)
	if errors.Is(err, io.EOF) {
		return status.Error(codes.Internal, "the call ended without a request")
	}
	return err
}

// send sends an answer, counted until the client has taken it.
func send(stream grpc.ServerStream, r *gate.Request, m any) error {
	data, err := (batch.Codec{}).Marshal(m)
	if err != nil {
		return err
	}
	f := batch.Frame{Data: r.Sent(data)}
	if err := stream.SendMsg(&f); err != nil {
		f.Data.Free() // unless it was handed over, which empties it
		return err
	}
	if stream.Context().Err() != nil {
		r.Undelivered()
	}
	return nil
}

// compressed reports whether the call's messages are shorter on the wire than
// they will be here.
func compressed(stream grpc.ServerStream) bool {
	s, ok := grpc.ServerTransportStreamFromContext(stream.Context()).(interface{ RecvCompress() string })
	if !ok {
		return true // unknown, so their size on the wire is unknown too
	}
	encoding := s.RecvCompress()
	return encoding != "" && encoding != "identity"
}

// staged makes a service of which every method is a stream to grpc-go, which then
// calls the handler before it reads a message and not after. Handlers replaces
// generated ones.
func staged(service *grpc.ServiceDesc, handlers map[string]grpc.StreamHandler) *grpc.ServiceDesc {
	all := &grpc.ServiceDesc{ServiceName: service.ServiceName, HandlerType: service.HandlerType, Metadata: service.Metadata}
	for _, m := range service.Methods {
		handler := handlers[m.MethodName]
		if handler == nil {
			handler = unary(m)
		}
		// With ClientStreams grpc-go waits for the client's first message only,
		// and not for the end of its messages.
		all.Streams = append(all.Streams, grpc.StreamDesc{StreamName: m.MethodName, ClientStreams: true, Handler: handler})
	}
	for _, m := range service.Streams {
		if h := handlers[m.StreamName]; h != nil {
			m.Handler = h
		} else {
			handle := m.Handler
			m.Handler = func(srv any, stream grpc.ServerStream) error {
				return stage(stream, nil, func(stream grpc.ServerStream) error { return handle(srv, stream) })
			}
		}
		all.Streams = append(all.Streams, m)
	}
	return all
}

// unary makes the handler of a generated unary method one of streams.
func unary(m grpc.MethodDesc) grpc.StreamHandler {
	return func(srv any, stream grpc.ServerStream) error {
		r, err := admit(stream)
		if err != nil {
			return err
		}
		defer r.End()
		answer, err := m.Handler(srv, stream.Context(), func(into any) error {
			var f batch.Frame
			if err := receive(stream, r, &f); err != nil {
				return err
			}
			defer f.Data.Free()
			if err := (batch.Codec{}).Unmarshal(f.Data, into); err != nil {
				return unreadable(err)
			}
			return nil
		}, nil)
		if err != nil {
			return err
		}
		return send(stream, r, answer)
	}
}

// modelInfer is the handler of ModelInfer on messages as they were received.
func (f *front) modelInfer(_ any, stream grpc.ServerStream) error {
	r, err := admit(stream)
	if err != nil {
		f.refused(stream.Context(), "", err)
		return err
	}
	defer r.End()
	var frame batch.Frame
	if err := receive(stream, r, &frame); err != nil {
		f.refused(stream.Context(), "", err)
		return err
	}
	request, err := batch.ReadRequest(frame.Data)
	if err != nil {
		f.refused(stream.Context(), "", err)
		return unreadable(err)
	}
	var answer *batch.Response
	answered := make(chan struct{})
	f.inferer.Begin(stream.Context(), nil, request, func(_ *wire.Turn, a *batch.Response, failure error) {
		answer, err = a, failure
		close(answered)
	})
	if <-answered; err != nil {
		return err
	}
	defer answer.Free()
	return send(stream, r, &batch.Frame{Data: answer.Marshal()})
}
