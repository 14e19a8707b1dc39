// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// What came over HTTP goes on to its server's HTTP port where that is faster than Triton's gRPC port: a request that is executed alone as it came, with the
// answer passed on as it is, and a large batch whose requests all came over HTTP (Triton's gRPC port copies what is large several times). It is one way of
// several for an attempt, which keeps its lease until the server's last word there, too.
//
// It goes there if it is at most mostByHTTP long, no memory is lent for it, it belongs to no sequence and runs as a row of no merge group, it asks for no
// classes, the executions of its model are brief (Options.Brief) where it is alone, the port's address is known, and a connection to it is there
// (forward.Conn.StartHTTP). All else goes over gRPC. Classes of an output without elements, which a request does not show, crash a Triton (2.51) that is asked for them over HTTP.
const (
	// brief is the default of Options.Brief. Triton does not notice there that a caller has left, so a lone request
	// that takes longer goes over gRPC, where it is cancelled with its caller; and what the HTTP port saves is a small part of it. A batch is not cancelled.
	brief = 10 * time.Millisecond
	// mostByHTTP is the size in bytes of the largest request for the HTTP port: newer Tritons take 64 MiB there unless they are set to more.
	mostByHTTP = 60 << 20
	// batchByHTTP is the size in bytes of the inputs of the smallest batch for the HTTP port: what is smaller costs a server less over gRPC.
	batchByHTTP = 64 << 10
)

// took notes how long an execution has taken.
func (m *model) took(d time.Duration) { m.lately.Store(int64(d)) }

// tookAtMost reports whether executions take so long at most, as far as is known from the last one.
func (m *model) tookAtMost(most time.Duration) bool {
	last := m.lately.Load()
	return last > 0 && last <= int64(most)
}

// byHTTP returns an attempt's request for its server's HTTP port; nil: it is not for that port.
func (d *Dispatcher) byHTTP(a *attempt) *forward.HTTPRequest {
	if a.loan != nil || a.calls[0].member != nil || a.calls[0].req.HTTP == nil || !pathSegment(a.joined.Model) ||
		router.SequenceOf(a.joined) != nil || a.joined.AsksForClasses() {
		return nil
	}
	r := &forward.HTTPRequest{Model: a.joined.Model, Version: a.joined.Version}
	if len(a.calls) == 1 {
		h := a.joined.HTTP
		if h == nil || h.Body.Len() > mostByHTTP || !a.model.tookAtMost(d.o.Brief) {
			return nil
		}
		r.Body, r.HeaderLength = mem.BufferSlice{h.Body}, h.HeaderLength
		return r
	}
	size := a.joined.DataSize()
	if size < batchByHTTP || size > mostByHTTP || slices.ContainsFunc(a.calls, func(c *call) bool { return c.req.HTTP == nil }) {
		return nil
	}
	document, ok := a.joined.MarshalHTTP()
	if !ok {
		return nil
	}
	r.Body, r.HeaderLength = append(make(mem.BufferSlice, 0, 1+len(a.calls)*len(a.joined.Inputs)), mem.SliceBuffer(document)), len(document)
	for i := range a.joined.Inputs {
		r.Body = append(r.Body, a.joined.Inputs[i].Data...)
	}
	if len(r.Body) > forward.MostPieces {
		return nil
	}
	return r
}

// pathSegment reports whether a name stands for itself in a path.
func pathSegment(name string) bool {
	for i := range len(name) {
		switch c := name[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '.', c == '_', c == '~':
		default:
			return false
		}
	}
	return name != ""
}

// askHTTP sends the attempt's request to its server's HTTP port, if it is for that port and a connection is there. The attempt is another goroutine's from then on.
func (d *Dispatcher) askHTTP(a *attempt) (sent bool) {
	r := d.byHTTP(a)
	if r == nil {
		return false
	}
	return a.process.Conn().StartHTTP(a.span.Onward(a.context(d.background)), r, func(t *wire.Turn, got *forward.Answer, err error) {
		if errors.Is(err, forward.ErrForeign) {
			d.o.Logger.Warn("requests go to the server's gRPC port only, for a while", "partition", a.process.ID(), "error", err)
			d.askAgain(t, a)
			return
		}
		d.received(t, a, got, err)
	})
}

// askAgain sends the attempt's request over gRPC, after the HTTP port has not taken it.
func (d *Dispatcher) askAgain(t *wire.Turn, a *attempt) {
	defer d.mend(a)
	d.ask(t, a, a.joined.Marshal())
}

// splitHTTP divides an answer of a server's HTTP port among the attempt's calls, and consumes it. That of one call is passed on as it came.
func (a *attempt) splitHTTP(h *batch.HTTP) ([]*batch.Response, error) {
	if len(a.calls) == 1 {
		return []*batch.Response{{HTTP: h}}, nil
	}
	resp, err := batch.ReadHTTP(h)
	if err != nil {
		return nil, err
	}
	defer resp.Free()
	return batch.Split(resp, a.requests())
}
