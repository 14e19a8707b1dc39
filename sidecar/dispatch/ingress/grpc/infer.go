// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package grpc

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/gate"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// unaryInfer is ModelInfer on package wire.
type unaryInfer struct {
	inferer Inferer
	refused func(ctx context.Context, model string, cause error)
	log     *slog.Logger
}

// Begin implements wire.Handler.
func (u *unaryInfer) Begin(c *wire.Call) error {
	r, err := gate.Caller(c.Context()).Admit(c.Evict)
	if err != nil {
		u.refused(c.Context(), "", err)
		return err
	}
	c.State = r // before it may be evicted
	r.Receive()
	return nil
}

// Lost implements wire.Handler.
func (u *unaryInfer) Lost(c *wire.Call, err error) {
	r := c.State.(*gate.Request)
	_ = r.Received(0) // an eviction is err
	u.refused(c.Context(), "", err)
	r.End()
}

// Serve implements wire.Handler.
func (u *unaryInfer) Serve(c *wire.Call, message mem.BufferSlice) {
	r := c.State.(*gate.Request)
	request, err := u.read(c, r, message)
	if err != nil {
		c.Fail(c.Turn(), err)
		u.end(c, r)
		return
	}
	k := &call{u: u, c: c, r: r}
	defer k.rescue(c.Turn())
	u.inferer.Begin(c.Context(), c.Turn(), request, k.answer)
}

// read reads the request of a call.
func (u *unaryInfer) read(c *wire.Call, r *gate.Request, message mem.BufferSlice) (*batch.Request, error) {
	if evicted := r.Received(message.Len()); evicted != nil { // it was refused before it was whole
		message.Free()
		u.refused(c.Context(), "", evicted)
		return nil, evicted
	}
	request, err := batch.ReadRequest(message)
	if err != nil {
		u.refused(c.Context(), "", err)
		return nil, unreadable(err)
	}
	return request, nil
}

func (u *unaryInfer) end(c *wire.Call, r *gate.Request) {
	r.End()
	c.Done()
}

// call is a call of ModelInfer whose request is whole.
type call struct {
	u *unaryInfer
	c *wire.Call
	r *gate.Request

	answered atomic.Bool
}

// rescue answers the call with an error if there is a panic, which would end the process on a goroutine that reads. Call it deferred.
func (k *call) rescue(t *wire.Turn) {
	if fault := recover(); fault != nil {
		err := panicked(k.u.log, k.c.Method(), fault)
		if !k.answered.Swap(true) {
			k.c.Fail(t, err)
			k.u.end(k.c, k.r)
		}
	}
}

// answer answers the call.
func (k *call) answer(t *wire.Turn, answer *batch.Response, err error) {
	if k.answered.Swap(true) { // with an error: what began it has panicked since
		if answer != nil {
			answer.Free()
		}
		return
	}
	defer k.u.end(k.c, k.r)
	defer func() {
		if fault := recover(); fault != nil {
			k.c.Fail(t, panicked(k.u.log, k.c.Method(), fault))
		}
	}()
	if err = atDeadline(k.c.Context(), err); err != nil {
		if answer != nil {
			answer.Free()
		}
		k.c.Fail(t, err)
		return
	}
	k.c.Reply(t, k.r.Sent(answer.Marshal()))
	answer.Free()
}

// newWire makes the server of ModelInfer.
func newWire(o Options, u *unaryInfer) *wire.Server {
	return wire.New(wire.Options{
		Method: tritonpb.GRPCInferenceService_ModelInfer_FullMethodName, Handler: u,
		Credentials: gate.Credentials(o.Credentials), MaxMessage: o.MaxMessage, Window: window, MaxStreams: maxStreams, MaxHeaderList: maxHeaderList,
		Handshake: handshake, PingInterval: pingInterval, Grace: o.Grace,
		MaxAge: func() time.Duration { // spread as in grpc-go, so that not all clients come again at once
			return time.Duration(float64(o.MaxAge) * (.9 + .2*rand.Float64()))
		},
		Ahead: reserved, Exceeded: errExceeded, Pool: o.Pool, Logger: o.Logger,
	})
}
