// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"math"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// QueuePolicy is what the author of a model asks of its queue: which requests go first, how many may wait, for how long, and what becomes of them then
// (Triton's model configuration, "Dynamic Batcher": "Priority Levels" and "Queue Policy"; model_config.proto: ModelDynamicBatching and ModelQueuePolicy).
// It is immutable.
type QueuePolicy struct {
	levels    uint64 // 1 goes first; 0: all requests are equal
	otherwise uint64 // the level of requests that name none of these
	all       *tritonpb.ModelQueuePolicy
	of        map[uint64]*tritonpb.ModelQueuePolicy // of a level
}

// NewQueuePolicy reads the policy out of a model's dynamic_batching as its author wrote it; nil: there is none, and every request waits for its turn
// however long that takes. Served is the configuration that the servers have: where theirs has a policy, they keep it.
func NewQueuePolicy(written, served *tritonpb.ModelConfig) *QueuePolicy {
	d := written.GetDynamicBatching()
	if d == nil || !asksForQueue(d) || asksForQueue(served.GetDynamicBatching()) {
		return nil
	}
	p := &QueuePolicy{levels: d.GetPriorityLevels(), all: d.GetDefaultQueuePolicy()}
	if p.levels > 0 { // Triton looks at the rest with priorities alone
		p.otherwise, p.of = d.GetDefaultPriorityLevel(), d.GetPriorityQueuePolicy()
	}
	return p
}

// Stay is what a policy makes of one request's stay in the queue.
type Stay struct {
	// Level is its priority level: 1 goes first. Zero: the model has no levels.
	Level int32
	// MaxQueue is how many requests of the level may be queued, this one included (max_queue_size); zero: any number.
	MaxQueue int32
	// Timeout is for how long it may wait; zero: as long as it takes.
	Timeout time.Duration
	// Delay: after the timeout it is served behind the others (timeout_action DELAY), and not refused (REJECT).
	Delay bool
}

// Stay returns what the policy makes of a request; of a nil policy, no rule at all.
func (p *QueuePolicy) Stay(r *Request) (s Stay) {
	if p == nil {
		return s
	}
	level := r.priority()
	if level == 0 || level > p.levels {
		level = p.otherwise
	}
	policy, ok := p.of[level]
	if !ok {
		policy = p.all
	}
	s.Level = int32(min(level, math.MaxInt32))                       //nolint:gosec // bounded
	s.MaxQueue = int32(min(policy.GetMaxQueueSize(), math.MaxInt32)) //nolint:gosec // bounded
	s.Timeout = time.Duration(min(policy.GetDefaultTimeoutMicroseconds(), math.MaxInt64/uint64(time.Microsecond))) * time.Microsecond
	if asked, ok := r.Timeout(); ok && policy.GetAllowTimeoutOverride() {
		s.Timeout = min(s.Timeout, asked) // a caller can wait for less, not for more, and not for less where the policy has no timeout
	}
	s.Delay = policy.GetTimeoutAction() == tritonpb.ModelQueuePolicy_DELAY
	return s
}

// priority returns Triton's `priority` parameter; zero: the request names none.
func (r *Request) priority() uint64 {
	p, ok := FindParameter(r.Parameters, ParameterPriority)
	if !ok {
		return 0
	}
	if v, ok := p.Uint64(); ok {
		return v
	}
	v, _ := p.Int64()
	return uint64(max(0, v)) //nolint:gosec // not negative
}

// Exiting is the answer to a request that comes once no new ones are accepted. Nothing of it was executed.
const Exiting = "Server is exiting: no new requests are accepted"

// NotReady is the answer to a request that comes before the first route table. Nothing of it was executed.
const NotReady = "Server not ready: no route table yet"

// ErrFull is Triton's answer to a request whose level has no room for it.
func ErrFull(r *Request) error {
	return status.Error(codes.Unavailable, requestPrefix(r.ID)+"Exceeds maximum queue size")
}
