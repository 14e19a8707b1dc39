// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package handon

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
)

// Owner is the replica that executes.
type Owner struct {
	// Name is its Pod's. GRPC and HTTP are its doors, host:port; empty where one is off.
	Name, GRPC, HTTP string
}

// Times of the way to an owner.
const (
	// connectPatience bounds one attempt to reach it.
	connectPatience = 2 * time.Second
	// A connection on which nothing comes for pingAfter, and no answer to a ping for pingPatience, is lost: its node may be gone.
	pingAfter, pingPatience = 10 * time.Second, 5 * time.Second
	// window is Triton's own.
	window = 4 << 20
)

// reign is the time for which one replica owns.
type reign struct {
	Owner
	// over ends when another owns.
	over      context.Context
	end       context.CancelFunc
	conn      *grpc.ClientConn // nil where GRPC is empty
	transport *http.Transport
}

func newReign(o Owner) (*reign, error) {
	r := &reign{Owner: o, transport: &http.Transport{
		DialContext:        (&net.Dialer{Timeout: connectPatience, Control: bounded(pingAfter + pingPatience)}).DialContext,
		DisableCompression: true, MaxIdleConnsPerHost: 256, IdleConnTimeout: time.Minute,
	}}
	r.over, r.end = context.WithCancel(context.Background())
	if o.GRPC == "" {
		return r, nil
	}
	conn, err := grpc.NewClient("passthrough:///"+o.GRPC,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), forward.UnsentIsLost(),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(4*window),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingAfter, Timeout: pingPatience}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: firstPause, Multiplier: 2, MaxDelay: longestPause}, MinConnectTimeout: connectPatience,
		}),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(batch.Codec{}), grpc.MaxCallRecvMsgSize(math.MaxInt32), grpc.MaxCallSendMsgSize(math.MaxInt32)),
	)
	if err != nil {
		r.end()
		return nil, fmt.Errorf("the owner %s: %w", o.Name, err)
	}
	r.conn = conn
	return r, nil
}

// during is ctx for as long as the reign is not over.
func (r *reign) during(ctx context.Context) (context.Context, context.CancelFunc) {
	within, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(r.over, cancel)
	return within, func() { stop(); cancel() }
}

// finish ends what is under way with this owner.
func (r *reign) finish() error {
	r.end()
	r.transport.CloseIdleConnections()
	if r.conn == nil {
		return nil
	}
	return r.conn.Close()
}

// followed is who owns now.
type followed struct {
	mu      sync.Mutex
	now     *reign        // nil: nobody is known
	changed chan struct{} // closed at the next change
	ended   bool          // nobody is followed any more
	// answered is when an owner last answered.
	answered time.Time
}

// look is who owns, and what is closed when that changes.
func (f *followed) look() (now *reign, changed <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.now, f.changed
}

// follow has requests go to another owner.
func (f *followed) follow(o Owner) error {
	next, err := newReign(o)
	if err != nil {
		return err
	}
	f.mu.Lock()
	if f.ended {
		f.mu.Unlock()
		return next.finish()
	}
	before := f.now
	f.now = next
	close(f.changed)
	f.changed = make(chan struct{})
	f.mu.Unlock()
	if before == nil {
		return nil
	}
	return before.finish()
}

// close ends the way to the owner, for good.
func (f *followed) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended = true; f.now == nil {
		return nil
	}
	return f.now.finish()
}

func (f *followed) heard() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answered = time.Now()
}

// fresh is nil where an owner has answered lately.
func (f *followed) fresh(within time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.now == nil:
		return errors.New("no replica is known to own the release's servers yet")
	case f.answered.IsZero():
		return fmt.Errorf("%s owns the release's servers, and does not serve yet", f.now.Name)
	case time.Since(f.answered) > within:
		return fmt.Errorf("%s owns the release's servers, and no owner has answered for %s", f.now.Name, time.Since(f.answered).Round(time.Second))
	}
	return nil
}

// Pauses between attempts: the first, and the longest that they grow to.
const firstPause, longestPause = 20 * time.Millisecond, 200 * time.Millisecond

// wait is the waiting of one request for an owner that takes it.
type wait struct {
	ctx   context.Context
	until time.Time
	pause time.Duration
}

// more waits until the owner has changed, or a little; false: the request has waited for long enough, or nobody wants its answer any more.
func (w *wait) more(changed <-chan struct{}) bool {
	left := time.Until(w.until)
	if left <= 0 || w.ctx.Err() != nil {
		return false
	}
	w.pause = min(max(2*w.pause, firstPause), longestPause)
	timer := time.NewTimer(min(w.pause, left))
	defer timer.Stop()
	select {
	case <-w.ctx.Done():
		return false
	case <-changed:
		w.pause = 0
	case <-timer.C:
	}
	return true
}
