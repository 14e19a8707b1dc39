// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// admission bounds what is under way, over all models.
type admission struct {
	maxRequests, maxBytes int64

	draining atomic.Bool
	requests atomic.Int64 // requests and streams that are not finished
	bytes    atomic.Int64 // of those requests

	mu   sync.Mutex
	idle chan struct{} // closed when nothing is under way; nil: no drain waits
}

// Errors of admit, with the reason that an Outcome gives.
const (
	reasonDraining = "draining"
	reasonRequests = "queue_requests"
	reasonBytes    = "queue_bytes"
)

var errDraining = status.Error(codes.Unavailable, "Server is exiting: no new requests are accepted")

// admit counts a request in, or refuses it with a reason and an error. Own is how
// many of the counted ones are the caller's: this request, and its stream or an
// earlier count of the request, which was admitted before.
func (a *admission) admit(r *batch.Request, own int64) (size int64, reason string, err error) {
	size = int64(r.Wire.Len())
	if size == 0 {
		for i := range r.Inputs {
			size += int64(r.Inputs[i].Data.Len())
		}
	}
	n, total := a.requests.Add(1), a.bytes.Add(size)
	switch {
	case own == 1 && a.draining.Load():
		reason, err = reasonDraining, errDraining
	case n > a.maxRequests:
		reason, err = reasonRequests, status.Errorf(codes.Unavailable, "Exceeds maximum queue size: %d requests are under way", a.maxRequests)
	case total > a.maxBytes && n > own:
		reason, err = reasonBytes, status.Errorf(codes.Unavailable, "Exceeds maximum queue size: %d bytes of requests are under way", a.maxBytes)
	default:
		return size, "", nil
	}
	a.leave(size)
	return 0, reason, err
}

// admitStream counts a stream in, or refuses it with a reason and an error.
func (a *admission) admitStream() (reason string, err error) {
	n := a.requests.Add(1)
	switch {
	case a.draining.Load():
		reason, err = reasonDraining, errDraining
	case n > a.maxRequests:
		reason, err = reasonRequests, status.Errorf(codes.Unavailable, "Exceeds maximum queue size: %d requests are under way", a.maxRequests)
	default:
		return "", nil
	}
	a.leave(0)
	return reason, err
}

// leave counts a request of so many bytes, or a stream, out.
func (a *admission) leave(size int64) {
	a.bytes.Add(-size)
	if a.requests.Add(-1) > 0 || !a.draining.Load() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.idle != nil {
		close(a.idle)
		a.idle = nil
	}
}

// drain refuses new requests and waits until nothing is under way.
func (a *admission) drain(ctx context.Context) error {
	a.draining.Store(true)
	for {
		a.mu.Lock()
		if a.requests.Load() == 0 {
			a.mu.Unlock()
			return nil
		}
		if a.idle == nil {
			a.idle = make(chan struct{})
		}
		idle := a.idle
		a.mu.Unlock()
		select {
		case <-idle:
		case <-ctx.Done():
			return fmt.Errorf("drain: %d requests are still under way: %w", a.requests.Load(), ctx.Err())
		}
	}
}
