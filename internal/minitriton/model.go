// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"slices"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/conch-serving/conch/internal/clock"
	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// executor runs one payload. It fills in one response per request, or, if decoupled, sends responses itself and returns none. An error
// fails every request of the payload.
type executor interface {
	execute(p *payload, responses []response) error
}

// model is one loaded version of a model: its config, its scheduler and its instances.
type model struct {
	name           string
	version        int64
	config         *pb.ModelConfig
	inputs         map[string]*pb.ModelInput
	labels         map[string][]string // of the classes, by output
	requiredInputs int
	decoupled      bool
	inPlace        bool // it reads shared memory where it is
	executor       executor
	clock          clock.Clock
	stats          statistics
	carried        *model     // whose counters stats began with
	sequences      *sequences // nil unless the model has sequence_batching
	ordering       *ordering  // nil unless answers keep the order of requests
	ensemble       *ensemble  // nil unless the model is one

	mu        sync.Mutex
	work      sync.Cond // a payload is ready, or stopping
	queue     batcher
	alarm     clock.Alarm // nil unless the batcher may want to be asked again
	inFlight  int         // accepted and not yet answered
	stopping  bool
	idle      chan struct{} // closed once stopping and nothing is in flight
	instances sync.WaitGroup
}

// newModel builds a version and starts its instances. stop ends them.
func newModel(config *pb.ModelConfig, version int64, exec executor, clock clock.Clock) *model {
	m := &model{
		name: config.Name, version: version, config: config, executor: exec, clock: clock,
		inputs:    make(map[string]*pb.ModelInput, len(config.Input)),
		decoupled: config.GetModelTransactionPolicy().GetDecoupled(),
		idle:      make(chan struct{}),
	}
	_, m.inPlace = exec.(*emulated)
	m.work.L = &m.mu
	variable, ragged := false, map[string]bool{}
	for _, in := range config.Input {
		m.inputs[in.Name] = in
		if !in.Optional {
			m.requiredInputs++
		}
		variable = variable || in.Optional || slices.Contains(in.Dims, -1)
		ragged[in.Name] = in.AllowRaggedBatch
	}
	m.queue = batcher{maxBatch: int(config.MaxBatchSize), equalShapes: variable, ragged: ragged, dropCanceled: m.dropCanceled, dropExpired: m.dropExpired}
	for _, g := range config.InstanceGroup {
		m.queue.instances += int(g.Count)
	}
	if config.GetSequenceBatching() != nil {
		m.sequences = newSequences(config, m.queue.instances)
		m.sequences.alarm = clock.Alarm(m.reap)
		m.queue.instances = 1 // keeps the order of every sequence
	}
	if d := config.GetDynamicBatching(); d != nil && config.MaxBatchSize > 0 {
		m.queue.dynamic = true
		m.queue.delay = time.Duration(d.MaxQueueDelayMicroseconds) * time.Microsecond
		for _, p := range d.PreferredBatchSize {
			m.queue.preferred = append(m.queue.preferred, int(p))
		}
		slices.Sort(m.queue.preferred)
		m.queue.policies = newPolicies(d)
		if d.PreserveOrdering {
			m.ordering = &ordering{}
		}
		if m.queue.delay > 0 {
			m.alarm = clock.Alarm(m.ring)
		}
	}
	for range m.queue.instances {
		m.instances.Go(m.serve)
	}
	return m
}

func (m *model) versionString() string { return strconv.FormatInt(m.version, 10) }

// submit takes an accepted request into the queue. It refuses once the model is being unloaded.
func (m *model) submit(r *request) *Error {
	m.mu.Lock()
	if m.stopping && !r.held {
		m.mu.Unlock()
		return refuse(codes.NotFound, "Request for unknown model: '%s' has no available versions", m.name)
	}
	r.enqueued = m.clock.Now()
	if m.sequences != nil {
		ready, err := m.sequences.admit(m.name, r)
		if err == nil {
			m.inFlight++
		}
		m.queueLocked(ready, r.enqueued)
		m.mu.Unlock()
		return err
	}
	if m.ensemble != nil {
		m.inFlight++
		m.mu.Unlock()
		m.ensemble.start(r)
		return nil
	}
	err := m.queue.add(r)
	if err == nil {
		m.inFlight++
		if m.ordering != nil {
			m.ordering.join(r)
		}
		m.formLocked(r.enqueued)
	}
	m.mu.Unlock()
	return err
}

// queueLocked queues accepted requests.
func (m *model) queueLocked(requests []*request, now time.Time) {
	for _, r := range requests {
		_ = m.queue.add(r) // sequences have no queue policies
	}
	if len(requests) > 0 {
		m.formLocked(now)
	}
}

// reap lets sequences go on that wait for the slot of one that has been idle for too long.
func (m *model) reap() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.clock.Now()
	m.queueLocked(m.sequences.reap(now), now)
}

// formLocked lets the batcher make payloads and wakes as many instances as there are.
func (m *model) formLocked(now time.Time) {
	if again := m.queue.form(now); again > 0 {
		m.alarm.Set(now.Add(again))
	}
	for range min(len(m.queue.ready), m.queue.instances) {
		m.work.Signal()
	}
}

func (m *model) ring() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.stopping || m.inFlight > 0 {
		m.formLocked(m.clock.Now())
	}
}

// dropCanceled answers a queued request whose caller has gone. The lock is held.
func (m *model) dropCanceled(r *request) {
	m.stats.refused(failCanceled, m.clock.Now().Sub(r.enqueued))
	m.drop(r, refuse(codes.Canceled, "Request Cancelled"))
}

// dropExpired refuses a request that has waited for as long as its queue policy lets it. The lock is held.
func (m *model) dropExpired(r *request) {
	m.stats.refused(failRejected, m.clock.Now().Sub(r.enqueued))
	m.drop(r, refuse(codes.Unavailable, "Request timeout expired"))
}

// drop answers a queued request that does not run. The lock is held, and may be wanted by what the answer sets off: others' answers that it held back, or the
// end of the ensemble whose step it is.
func (m *model) drop(r *request, refusal *Error) {
	m.instances.Go(func() {
		r.respond(&response{err: refusal}, true)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.finishedLocked(1)
	})
}

func (m *model) finishedLocked(n int) {
	m.inFlight -= n
	if m.stopping && m.inFlight == 0 {
		close(m.idle)
		m.work.Broadcast()
	}
}

// hold keeps the model from being unloaded, as a request in flight does, until finishedLocked counts it out. It is false for one that is being unloaded.
func (m *model) hold() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.stopping {
		m.inFlight++
	}
	return !m.stopping
}

// drain refuses new requests and returns a channel that is closed once the accepted ones are answered.
func (m *model) drain() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.stopping {
		m.stopping = true
		if m.inFlight == 0 {
			close(m.idle)
			m.work.Broadcast()
		}
	}
	return m.idle
}

// stop drains, then ends the instances.
func (m *model) stop() {
	<-m.drain()
	m.instances.Wait()
	if m.alarm != nil {
		m.alarm.Stop()
	}
	if m.sequences != nil {
		m.sequences.alarm.Stop()
	}
}

// serve is one instance: it takes payloads until the model has stopped.
func (m *model) serve() {
	for {
		m.mu.Lock()
		now := m.clock.Now()
		m.queue.idle++
		if m.queue.policies != nil {
			m.formLocked(now)
		}
		p := m.queue.take(now)
		for p == nil {
			if m.stopping && m.inFlight == 0 {
				m.mu.Unlock()
				return
			}
			m.work.Wait()
			now = m.clock.Now()
			p = m.queue.take(now)
		}
		m.queue.idle--
		m.formLocked(now)
		m.mu.Unlock()
		m.run(p, now)
		m.mu.Lock()
		for _, r := range p.requests {
			if m.sequences != nil && r.sequence.end {
				now = m.clock.Now()
				m.queueLocked(m.sequences.ended(now), now)
			}
		}
		m.finishedLocked(len(p.requests))
		m.mu.Unlock()
	}
}

// run executes one payload and answers its requests.
func (m *model) run(p *payload, start time.Time) {
	responses := make([]response, len(p.requests))
	began := m.clock.Now()
	err := m.executor.execute(p, responses)
	computed := m.clock.Now()
	if err != nil {
		refusal := asError(err)
		for i := range responses {
			responses[i] = response{err: refusal}
		}
	}
	// Counted first, so that a caller with an answer finds it counted.
	m.stats.executed(p, timing{start: start, input: began.Sub(start), infer: computed.Sub(began), end: computed}, err == nil)
	if m.decoupled && err == nil {
		for _, r := range p.requests {
			r.respond(nil, true)
		}
		return
	}
	for i, r := range p.requests {
		r.respond(&responses[i], true)
	}
}

// pending is how many requests no instance has taken.
func (m *model) pending() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.queue.pending()
}
