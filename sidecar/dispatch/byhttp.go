// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"errors"
	"time"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// A request that came over HTTP and is executed alone goes on to its server's HTTP port, as it came: that port is faster than Triton's gRPC port for small
// requests, and the answer is passed on as it is. It is one way of several for an attempt, which keeps its lease until the server's last word there, too.
//
// It goes there if it is at most batch.MostHTTP long, no memory is lent for it, it belongs to no sequence and runs as a row of no merge group, it asks for no
// classes, its model's executions are brief (Options.Brief), the port's address is known, and a connection to it is there (forward.Conn.StartHTTP). Any other
// request goes over gRPC. Classes of an output without elements, which a request does not show, crash a Triton (2.51) that is asked for them over HTTP.
const (
	// brief is the default of Options.Brief. Triton does not notice at its HTTP port that a caller has left, so what takes longer goes over gRPC, where it is
	// cancelled with its caller; and what the HTTP port saves is a small part of it.
	brief = 10 * time.Millisecond
)

// took notes how long an execution has taken, which was the last of so many of its model at its server when it began. Those outside the queue wait there for what
// came before, and each is taken to have lasted its part of the time: else 64 callers of a model of 0.2 ms would seem to be callers of one of 13 ms. What
// came after it, and other models, tell nothing of it: a model of 100 ms beside 64 callers of others is not one of 1.5 ms.
func (m *model) took(d time.Duration, of int) { m.lately.Store(int64(d) / int64(max(1, of))) }

// tookAtMost reports whether executions take so long at most, as far as is known from the last one.
func (m *model) tookAtMost(most time.Duration) bool {
	last := m.lately.Load()
	return last > 0 && last <= int64(most)
}

// byHTTP reports whether an attempt's request may go to its server's HTTP port.
func (d *Dispatcher) byHTTP(a *attempt) bool {
	h := a.joined.HTTP
	return h != nil && len(a.calls) == 1 && a.loan == nil && a.calls[0].member == nil && h.Body.Len() <= batch.MostHTTP && a.model.tookAtMost(d.o.Brief) &&
		pathSegment(a.joined.Model) && router.SequenceOf(a.joined) == nil && !a.joined.AsksForClasses()
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

// askHTTP sends the attempt's request to its server's HTTP port, if a connection is there. The attempt is another goroutine's from then on.
func (d *Dispatcher) askHTTP(a *attempt) (sent bool) {
	r := &forward.HTTPRequest{Model: a.joined.Model, Version: a.joined.Version, HTTP: a.joined.HTTP}
	return a.partition.Conn().StartHTTP(a.span.Onward(a.context(d.background)), r, func(t *wire.Turn, got *forward.Answer, err error) {
		if errors.Is(err, forward.ErrForeign) {
			d.o.Logger.Warn("requests go to the server's gRPC port only, for a while", "partition", a.partition.ID(), "error", err)
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

// answerByHTTP is the answer of a server's HTTP port to the one call of an attempt.
func answerByHTTP(h *batch.HTTP) []*batch.Response { return []*batch.Response{{HTTP: h}} }
