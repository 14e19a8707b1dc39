// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// policies are what dynamic_batching says about a model's queue (model configuration, "Priority Levels" and "Queue Policy"): how many
// requests of a priority may wait, for how long, and what becomes of them then. Nil is none: every request waits in one line for ever.
type policies struct {
	levels    uint64 // 1 is served first; 0 is one line for all
	otherwise uint64 // the level of requests that name none that there is
	all       *pb.ModelQueuePolicy
	own       map[uint64]*pb.ModelQueuePolicy
}

func newPolicies(d *pb.ModelDynamicBatching) *policies {
	if d.GetPriorityLevels() == 0 && d.GetDefaultQueuePolicy() == nil {
		return nil
	}
	p := &policies{levels: d.PriorityLevels, all: d.DefaultQueuePolicy}
	if p.levels > 0 {
		p.otherwise, p.own = d.DefaultPriorityLevel, d.PriorityQueuePolicy
	}
	return p
}

// of is the policy of a level; its getters know what nil says.
func (p *policies) of(level uint64) *pb.ModelQueuePolicy {
	if own, ok := p.own[level]; ok {
		return own
	}
	return p.all
}

// enter gives a request its level and the time until which it may wait. It refuses one whose queue is full.
func (p *policies) enter(r *request, waiting []*request) *Error {
	r.level = r.priority
	if r.level == 0 || r.level > p.levels {
		r.level = p.otherwise
	}
	policy := p.of(r.level)
	if most := policy.GetMaxQueueSize(); most > 0 {
		n := uint32(0)
		for _, w := range waiting {
			if w.level == r.level {
				n++
			}
		}
		if n >= most {
			return refuse(codes.Unavailable, "%sExceeds maximum queue size", requestPrefix(r.id))
		}
	}
	if limit := microseconds(policy.GetDefaultTimeoutMicroseconds()); limit > 0 {
		if policy.GetAllowTimeoutOverride() && r.timeout > 0 {
			limit = min(limit, r.timeout) // a caller can wait for less, not for more
		}
		r.expires = r.enqueued.Add(limit)
	}
	return nil
}

// insert puts a request into the line: behind all of its level, and behind those of it whose time is over only if its own is.
func insert(waiting []*request, r *request) []*request {
	i := slices.IndexFunc(waiting, func(w *request) bool {
		return w.level > r.level || w.level == r.level && w.late && !r.late
	})
	if i < 0 {
		i = len(waiting)
	}
	return slices.Insert(waiting, i, r)
}

// expire applies the policies to the requests whose time is over: they leave the line, or wait behind those of their level whose time is
// not. It returns the line, those that left it, and how long it is until the next one's time is over; 0 is never.
func (p *policies) expire(waiting []*request, now time.Time) (left, rejected []*request, next time.Duration) {
	var late []*request
	left = slices.DeleteFunc(waiting, func(r *request) bool {
		switch {
		case r.expires.IsZero() || r.late:
			return false
		case now.Before(r.expires):
			if wait := r.expires.Sub(now); next == 0 || wait < next {
				next = wait
			}
			return false
		case p.of(r.level).GetTimeoutAction() == pb.ModelQueuePolicy_REJECT:
			rejected = append(rejected, r)
		default:
			r.late = true
			late = append(late, r)
		}
		return true
	})
	for _, r := range late {
		left = insert(left, r)
	}
	return left, rejected, next
}

// checkPolicies refuses what Triton refuses of priorities before it loads anything.
func checkPolicies(d *pb.ModelDynamicBatching) error {
	if d.PriorityLevels == 0 {
		return nil // the rest is not used
	}
	if d.DefaultPriorityLevel == 0 || d.DefaultPriorityLevel > d.PriorityLevels {
		return fmt.Errorf("default priority level %d must be in 1..%d", d.DefaultPriorityLevel, d.PriorityLevels)
	}
	for level := range d.PriorityQueuePolicy {
		if level == 0 || level > d.PriorityLevels {
			return fmt.Errorf("priority queue policy of level %d, but the levels are 1..%d", level, d.PriorityLevels)
		}
	}
	if d.PreserveOrdering && d.PriorityLevels > 1 {
		return fmt.Errorf("ordering cannot be preserved with %d priority levels", d.PriorityLevels)
	}
	return nil
}

// ordering holds answers back until those of earlier requests have gone out (preserve_ordering).
type ordering struct {
	mu      sync.Mutex
	line    []*turn
	sending bool // by some goroutine, which sends what comes meanwhile too
}

// turn is one request's place in the order.
type turn struct {
	held []func()
	over bool // the last answer is among those held
}

// join gives a request the last place in the order. The caller makes sure that requests join in the order of their arrival.
func (o *ordering) join(r *request) {
	t := &turn{}
	respond := r.respond
	r.respond = func(resp *response, final bool) {
		o.mu.Lock()
		defer o.mu.Unlock()
		t.held, t.over = append(t.held, func() { respond(resp, final) }), t.over || final
		if !o.sending {
			o.sendLocked()
		}
	}
	o.mu.Lock()
	o.line = append(o.line, t)
	o.mu.Unlock()
}

// sendLocked sends what is not held back any more, without the lock.
func (o *ordering) sendLocked() {
	o.sending = true
	for len(o.line) > 0 {
		first := o.line[0]
		for len(first.held) > 0 {
			answer := first.held[0]
			first.held = first.held[1:]
			o.mu.Unlock()
			answer()
			o.mu.Lock()
		}
		if !first.over {
			break
		}
		o.line = o.line[1:]
	}
	o.sending = false
}
