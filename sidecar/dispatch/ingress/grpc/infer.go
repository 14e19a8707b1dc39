// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package grpc

import (
	"context"
	"log/slog"
	"sync"

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
	calls   *workers
	log     *slog.Logger
}

// Begin implements wire.Handler.
func (u *unaryInfer) Begin(c *wire.Call) error {
	r, err := gate.Caller(c.Context()).Begin(c.Evict)
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
	u.calls.begin(call{u, c, r, request})
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
	u       *unaryInfer
	c       *wire.Call
	r       *gate.Request
	request *batch.Request
}

// serve answers the call.
func (k call) serve() {
	defer k.u.end(k.c, k.r)
	defer func() {
		if fault := recover(); fault != nil {
			k.c.Fail(nil, panicked(k.u.log, k.c.Method(), fault))
		}
	}()
	answer, err := k.u.inferer.Infer(k.c.Context(), k.request)
	if err = atDeadline(k.c.Context(), err); err != nil {
		if answer != nil {
			answer.Free()
		}
		k.c.Fail(nil, err)
		return
	}
	k.c.Reply(nil, k.r.Sent(answer.Marshal()))
	answer.Free()
}

// workers serve calls: on a goroutine that has just served another one, if there is one.
type workers struct {
	next    chan call
	running sync.WaitGroup
	once    sync.Once
	ended   chan struct{}
	idle    chan struct{} // holds one for each goroutine that waits for a call
}

func newWorkers() *workers {
	return &workers{next: make(chan call), ended: make(chan struct{}), idle: make(chan struct{}, streamWorkers)}
}

func (w *workers) begin(k call) {
	select {
	case w.next <- k:
	default:
		w.running.Go(func() { w.work(k) })
	}
}

func (w *workers) work(k call) {
	for {
		k.serve()
		select {
		case w.idle <- struct{}{}:
		default:
			return // enough of them wait
		}
		select {
		case k = <-w.next:
			<-w.idle
		case <-w.ended:
			return
		}
	}
}

// close ends the goroutines. No call is begun any more.
func (w *workers) close() {
	w.once.Do(func() { close(w.ended) })
	w.running.Wait()
}

// newWire makes the server of ModelInfer.
func newWire(o Options, u *unaryInfer) *wire.Server {
	return wire.New(wire.Options{
		Method: tritonpb.GRPCInferenceService_ModelInfer_FullMethodName, Handler: u,
		Credentials: gate.Credentials(o.Credentials), MaxMessage: o.MaxMessage, Window: window, MaxStreams: maxStreams, MaxHeaderList: maxHeaderList,
		Handshake: handshake, PingInterval: pingInterval,
		Ahead: reserved, Exceeded: errExceeded, Pool: o.Pool, Logger: o.Logger,
	})
}
