// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import "sync"

// callers is how many goroutines hand requests in at once, as the goroutines of calls do live.
const callers = 64

// intake is a way in which requests reach the queue.
type intake interface {
	// arrive hands one request in, for a caller.
	arrive(caller, model int)
	// close takes in what still waits, and ends what runs in the background.
	close()
}

// intakeKind is an intake that is compared.
type intakeKind struct {
	name, note string
	make       func(models, partitions int, seed uint64) (intake, error)
	// pinned is for shards that make their own requests: one caller each, which calls nothing but its shard's models.
	pinned bool
}

// callers of an intake, and by how many models they move on from one request to the next.
func (k intakeKind) callers() (n, stride int) {
	if k.pinned {
		return shardCount, shardCount
	}
	return callers, 7
}

// shardCount is how many parts the models and the partitions are dealt out to.
const shardCount = 2

// intakes are what is compared.
//
// lock is how sidecar/dispatch does it: one scheduler behind one lock. stripes divide only the taking in: one goroutine gathers and matches. sharded,
// owned and pinned have two schedulers, each with half of the models and of the partitions. Behind locks (sharded) every core works on both, because
// callers call all models; owned gives each scheduler to one goroutine, which takes in what callers left for it, all at once, and takes no lock to
// schedule; pinned takes the callers away as well, as Symphony's own measurement does (section 5.5): what the schedulers themselves gain from a second core.
//
// None is Symphony's division (section 4.2), where model threads gather candidates and one rank thread matches them with all GPUs: queue.Scheduler
// gathers and matches in one call, on lanes and partitions that it holds together. Its discipline looks at the pool's free partitions and at the
// other models' need before it says when a candidate may start, so what a model thread could do without the matching one is less than Symphony's.
// owned and pinned are the nearest to it: model threads with partitions of their own, and so without anything to match between them.
func intakes() []intakeKind {
	locks := func(n int) func(m, p int, seed uint64) (intake, error) {
		return func(m, p int, seed uint64) (intake, error) { return newShards(n, m, p, seed) }
	}
	return []intakeKind{
		{name: "lock", note: "one scheduler behind one lock, as conch has it", make: locks(1)},
		{name: "stripes", note: "callers leave requests in stripes, one goroutine gathers and matches", make: newStripes},
		{name: "sharded", note: "two schedulers, each with half of the models and partitions, behind a lock each; every caller goes to both", make: locks(shardCount)},
		{name: "owned", note: "two schedulers, each with half of the models and partitions and a goroutine of its own, which drains its inbox; every caller goes to both", make: newOwned},
		{name: "pinned", note: "two schedulers, each with half of the models and partitions and a goroutine of its own, which makes its requests itself", make: newPinned, pinned: true},
	}
}

// shards are schedulers with a lock each.
type shards []*shard

type shard struct {
	mu sync.Mutex
	*crowd
	_ [64]byte // the next one's lock is on another cache line
}

// newCrowds makes n schedulers with an n-th of the models and of the partitions each.
func newCrowds(n, models, partitions int, seed uint64) ([]*crowd, error) {
	all := make([]*crowd, n)
	for i := range all {
		c, err := newCrowd(models/n, partitions/n, seed+uint64(i))
		if err != nil {
			return nil, err
		}
		all[i] = c
	}
	return all, nil
}

func newShards(n, models, partitions int, seed uint64) (intake, error) {
	crowds, err := newCrowds(n, models, partitions, seed)
	if err != nil {
		return nil, err
	}
	all := make(shards, n)
	for i, c := range crowds {
		all[i] = &shard{crowd: c}
	}
	return all, nil
}

func (all shards) arrive(_, model int) {
	s := all[model%len(all)]
	s.mu.Lock()
	s.arrive(model / len(all))
	s.mu.Unlock()
}

func (shards) close() {}

const (
	stripeCount = 8
	// stripeRoom is how many requests wait in a stripe before callers do.
	stripeRoom = 512
)

// stripes collect what callers hand in; one goroutine takes it from there.
type stripes struct {
	crowd *crowd
	all   [stripeCount]stripe
	// wake is sent to when a stripe that was empty has a request.
	wake  chan struct{}
	stop  chan struct{}
	ended sync.WaitGroup
}

type stripe struct {
	mu     sync.Mutex
	room   sync.Cond
	models []int32
	_      [64]byte // the next one's lock is on another cache line
}

func newStripes(models, partitions int, seed uint64) (intake, error) {
	c, err := newCrowd(models, partitions, seed)
	if err != nil {
		return nil, err
	}
	s := &stripes{crowd: c, wake: make(chan struct{}, 1), stop: make(chan struct{})}
	for i := range s.all {
		stripe := &s.all[i]
		stripe.models, stripe.room.L = make([]int32, 0, stripeRoom), &stripe.mu
	}
	s.ended.Go(s.match)
	return s, nil
}

func (s *stripes) arrive(caller, model int) {
	stripe := &s.all[caller%stripeCount]
	stripe.mu.Lock()
	for len(stripe.models) == cap(stripe.models) {
		stripe.room.Wait()
	}
	stripe.models = append(stripe.models, int32(model))
	first := len(stripe.models) == 1
	stripe.mu.Unlock()
	if first {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// match is the one goroutine that knows the scheduler.
func (s *stripes) match() {
	spare := make([]int32, 0, stripeRoom)
	for {
		select {
		case <-s.wake:
		case <-s.stop:
			s.take(spare)
			return
		}
		spare = s.take(spare)
	}
}

// take empties all stripes, and returns the space of the last.
func (s *stripes) take(spare []int32) []int32 {
	for i := range s.all {
		stripe := &s.all[i]
		stripe.mu.Lock()
		taken := stripe.models
		stripe.models = spare[:0]
		stripe.room.Broadcast()
		stripe.mu.Unlock()
		for _, model := range taken {
			s.crowd.arrive(int(model))
		}
		spare = taken
	}
	return spare
}

func (s *stripes) close() {
	close(s.stop)
	s.ended.Wait()
}

// owned are shards that a goroutine each owns.
type owned struct {
	all   []*owner
	ended sync.WaitGroup
}

// inboxRoom is how many requests wait for an owner before callers do.
const inboxRoom = 2048

// owner is a shard's inbox. Only its goroutine knows the scheduler.
type owner struct {
	crowd *crowd

	mu     sync.Mutex
	room   sync.Cond // for callers
	some   sync.Cond // for the goroutine
	models []int32
	closed bool
	_      [64]byte // the next one's lock is on another cache line
}

func newOwned(models, partitions int, seed uint64) (intake, error) {
	crowds, err := newCrowds(shardCount, models, partitions, seed)
	if err != nil {
		return nil, err
	}
	in := &owned{}
	for _, c := range crowds {
		o := &owner{crowd: c, models: make([]int32, 0, inboxRoom)}
		o.room.L, o.some.L = &o.mu, &o.mu
		in.all = append(in.all, o)
		in.ended.Go(o.schedule)
	}
	return in, nil
}

func (in *owned) arrive(_, model int) {
	o := in.all[model%len(in.all)]
	o.mu.Lock()
	for len(o.models) == cap(o.models) {
		o.room.Wait()
	}
	o.models = append(o.models, int32(model/len(in.all)))
	if len(o.models) == 1 {
		o.some.Signal()
	}
	o.mu.Unlock()
}

// schedule takes all that waits, and then schedules it without a lock.
func (o *owner) schedule() {
	spare := make([]int32, 0, inboxRoom)
	for {
		o.mu.Lock()
		for len(o.models) == 0 && !o.closed {
			o.some.Wait()
		}
		taken := o.models
		o.models = spare[:0]
		if len(taken) == cap(taken) {
			o.room.Broadcast()
		}
		o.mu.Unlock()
		if len(taken) == 0 {
			return
		}
		for _, model := range taken {
			o.crowd.arrive(int(model))
		}
		spare = taken
	}
}

func (in *owned) close() {
	for _, o := range in.all {
		o.mu.Lock()
		o.closed = true
		o.some.Signal()
		o.mu.Unlock()
	}
	in.ended.Wait()
}

// pinned are shards whose only callers own them, so that they need no lock.
type pinned []*crowd

func newPinned(models, partitions int, seed uint64) (intake, error) {
	crowds, err := newCrowds(shardCount, models, partitions, seed)
	return pinned(crowds), err
}

func (all pinned) arrive(caller, model int) { all[caller].arrive(model / len(all)) }

func (pinned) close() {}
