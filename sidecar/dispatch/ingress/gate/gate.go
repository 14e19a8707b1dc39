// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Options of New.
type Options struct {
	// Requests bounds the requests and streams under way on all connections.
	Requests int
	// Bytes bounds what is held for clients: the result of Held, requests that are
	// being received, and answers that wait to be taken.
	Bytes int64
	// Held returns what the dispatcher holds of the same Bytes: the requests that
	// it has accepted. Nil means nothing. It must be cheap.
	Held func() int64
	// Connections bounds the open connections. One more closes that which has been
	// without a request for longest; if all have one, the new connection is
	// refused.
	Connections int
	// Stall is how long a client may take nothing of an answer, or send nothing of
	// a request that it began.
	Stall time.Duration
	// Logger logs connections that were closed; nil discards.
	Logger *slog.Logger
}

// Gate counts what clients hold. Close it when the fronts have ended.
type Gate struct {
	o        Options
	requests atomic.Int64
	bytes    atomic.Int64
	refused  [reasons]atomic.Uint64

	mu          sync.Mutex
	connections map[*Conn]struct{}
	relieved    time.Time // when relieve last looked for what to evict

	stop chan struct{}
	done chan struct{}
}

// Reason is why something was refused: a stable word for metrics.
type Reason int

// Reasons, in the order of Refused.
const (
	TooManyRequests Reason = iota
	TooManyBytes
	Evicted
	TooManyConnections
	Displaced
	Stalled
	reasons
)

// String is the word.
func (r Reason) String() string {
	return [reasons]string{"requests", "bytes", "evicted", "connections", "displaced", "stalled"}[r]
}

// New makes a gate.
func New(o Options) *Gate {
	if o.Held == nil {
		o.Held = func() int64 { return 0 }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	g := &Gate{o: o, connections: map[*Conn]struct{}{}, stop: make(chan struct{}), done: make(chan struct{})}
	go g.sweep()
	return g
}

// Close ends the gate's goroutine. It closes no connection.
func (g *Gate) Close() {
	close(g.stop)
	<-g.done
}

// Stats is what is held now.
type Stats struct {
	Connections int
	// Requests under way, and bytes of requests that are not whole and answers that
	// were not taken.
	Requests, Bytes int64
	// Refused counts by Reason.
	Refused [reasons]uint64
}

// Stats reads the counters.
func (g *Gate) Stats() Stats {
	s := Stats{Requests: g.requests.Load(), Bytes: g.bytes.Load()}
	for i := range s.Refused {
		s.Refused[i] = g.refused[i].Load()
	}
	g.mu.Lock()
	s.Connections = len(g.connections)
	g.mu.Unlock()
	return s
}

func (g *Gate) refuse(r Reason) error {
	g.refused[r].Add(1)
	switch r {
	case TooManyRequests:
		return &refusal{status.Newf(codes.Unavailable, "Exceeds maximum queue size: %d requests are under way", g.o.Requests), r}
	default:
		return &refusal{status.Newf(codes.Unavailable, "Exceeds maximum queue size: %d bytes of requests are under way", g.o.Bytes), r}
	}
}

// refusal is the answer to a request for which there is no room.
type refusal struct {
	status *status.Status
	reason Reason
}

// Error implements error.
func (r *refusal) Error() string { return r.status.Err().Error() }

// GRPCStatus makes it a gRPC status error.
func (r *refusal) GRPCStatus() *status.Status { return r.status }

// Limit is which limit was met: the reason of the request's outcome.
func (r *refusal) Limit() string {
	switch r.reason {
	case TooManyRequests:
		return "queue_requests"
	case Evicted:
		return "evicted"
	default:
		return "queue_bytes"
	}
}

// over reports whether more is held than may be.
func (g *Gate) over() bool { return g.bytes.Load()+g.o.Held() > g.o.Bytes }

// small is the largest piece of a body that may use the last eighth of what may be
// held. Large bodies that never end must not block all other clients.
const small = 64 << 10

// crowded reports whether only the room for small pieces is left.
func (g *Gate) crowded() bool { return g.bytes.Load()+g.o.Held() > g.o.Bytes-g.o.Bytes/8 }

// hold counts n bytes in. It fails, with nothing counted, if that is too much.
func (g *Gate) hold(n int64) error {
	limit := g.o.Bytes
	if n > small {
		limit -= limit / 8
	}
	if g.bytes.Add(n)+g.o.Held() > limit {
		g.bytes.Add(-n)
		return g.refuse(TooManyBytes)
	}
	return nil
}

// relieveEvery bounds how often connections are searched for one to evict from.
const relieveEvery = time.Millisecond

// relieve evicts the requests that are being received on the connection that
// holds most of such.
func (g *Gate) relieve() {
	now := time.Now()
	g.mu.Lock()
	if now.Sub(g.relieved) < relieveEvery {
		g.mu.Unlock()
		return
	}
	g.relieved = now
	var most *Conn
	for c := range g.connections {
		if most == nil || c.received.Load() > most.received.Load() {
			most = c
		}
	}
	g.mu.Unlock()
	if most != nil {
		most.evict()
	}
}

// sweep closes connections that stall.
func (g *Gate) sweep() {
	defer close(g.done)
	ticker := time.NewTicker(max(g.o.Stall/8, 10*time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-g.stop:
			return
		case now := <-ticker.C:
			g.closeStalled(now)
		}
	}
}

func (g *Gate) closeStalled(now time.Time) {
	var stalled []*Conn
	g.mu.Lock()
	for c := range g.connections {
		if c.stalled(now) {
			stalled = append(stalled, c)
		}
	}
	g.mu.Unlock()
	for _, c := range stalled {
		g.stall(c)
	}
}

// stall closes a connection that takes nothing.
func (g *Gate) stall(c *Conn) {
	if c.ended() {
		return
	}
	g.refused[Stalled].Add(1)
	g.o.Logger.Info("a connection is closed: its client takes no answers", "client", c.RemoteAddr().String(), "for", g.o.Stall.String())
	_ = c.Close() // the connection is gone whatever the error
}
