// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forecast"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/forward/shm"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// routes is a route table made ready for requests: immutable.
type routes struct {
	table      *router.Table
	models     map[string]*route
	partitions []*partition
}

// route is one model under one table: immutable.
type route struct {
	*model
	spec     *router.Model
	rules    *batch.Rules
	maxBatch int
	places   []*placement
	tallies  []*tally
}

// model is what stays of a model while tables come and go.
type model struct {
	name   string
	id     queue.ModelID
	counts counts
	margin forecast.Margin
	// series of requests that never came to a partition.
	series seriesSet
	// runs is the backend that the model runs in.
	runs atomic.Pointer[string]
	// unsplittable is set when an answer did not have the batch's rows.
	unsplittable atomic.Bool
	// unlendable is set when its tensors did not fit shared memory.
	unlendable atomic.Bool

	// Guarded by Dispatcher.mu.
	classes     []class // indices are the queue's profile classes; never shrinks
	spec        *router.Model
	queueSpec   queue.ModelSpec
	rules       *batch.Rules
	last        *route // under the last table that had it
	removed     bool
	stop        chan struct{} // closed by interrupt
	interrupted bool          // by an outage that lasts, a fault or Close
	outage      Timer         // runs while no partition is up
	why         string        // what the last partition that went down died of
	revision    string        // of the model's files
	tallies     map[string]*tally
}

func (m *model) backend() string {
	if b := m.runs.Load(); b != nil {
		return *b
	}
	return ""
}

// interrupt makes everyone who waits for the model look up. Guarded by
// Dispatcher.mu.
func (m *model) interrupt() {
	if !m.interrupted {
		m.interrupted = true
		close(m.stop)
	}
	if m.outage != nil {
		m.outage.Stop()
		m.outage = nil
	}
}

func (m *model) outageError() error {
	why := m.why
	if why == "" {
		why = "it has none"
	}
	return status.Errorf(codes.Unavailable, "no partition that serves model '%s' is up: %s", m.name, why)
}

func (d *Dispatcher) outageError(m *model) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return status.Error(codes.Unavailable, "Server is exiting: the request was not served")
	}
	return m.outageError()
}

// partition is one Triton process. A partition that comes back under another
// endpoint or share is another one.
type partition struct {
	spec    *router.Partition // as it was first named; its rank may change
	id      queue.PartitionID
	conn    *forward.Conn
	memory  *shm.Pool     // nil: none is shared with its server
	running atomic.Int32  // executions and calls under way
	outside atomic.Int32  // those that the queue does not know
	begun   atomic.Uint32 // all that ever began
	work    work
	up      atomic.Bool
	retired atomic.Bool // no table names it any more

	places sync.Map // model name to *placement; never shrinks

	// Guarded by Dispatcher.mu.
	current *router.Partition // under the table in force
	reason  string            // why it is down
	byOrder bool              // SetPartitionState said so, and only it may say up
	probing bool
	removed bool
}

// close ends what Conch has with the partition's process.
func (p *partition) close() error {
	if p.memory != nil {
		p.memory.Close()
	}
	return p.conn.Close()
}

// placement is a model on a partition, and what runs there.
type placement struct {
	partition *partition
	model     string
	running   atomic.Int32 // executions and calls under way
	series    seriesSet
}

func (p *partition) place(model string) *placement {
	if v, ok := p.places.Load(model); ok {
		return v.(*placement)
	}
	v, _ := p.places.LoadOrStore(model, &placement{partition: p, model: model})
	return v.(*placement)
}

func (l *placement) begin(d *Dispatcher) {
	l.running.Add(1)
	l.partition.running.Add(1)
	l.partition.begun.Add(1)
	if l.model != "" {
		l.partition.work.begin(d.clock.Now())
	}
}

// end is begin's other half.
func (l *placement) end(d *Dispatcher) {
	if l.model != "" {
		now := d.clock.Now()
		d.o.Observer.Busy(l.partition.spec.ID, l.partition.work.end(now), now)
	}
	idle := l.running.Add(-1) == 0
	l.partition.running.Add(-1)
	if l.partition.retired.Load() {
		d.reap()
	} else if idle && d.watchers.Load() > 0 {
		d.wake()
	}
}

// work is when a partition is busy with requests for models.
type work struct {
	mu      sync.Mutex
	running int
	since   time.Time // busy, and reported, up to then
}

func (w *work) begin(now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.running == 0 {
		w.since = now
	}
	w.running++
}

// end says since when the partition was busy and nobody was told.
func (w *work) end(now time.Time) (since time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running--
	since = w.since
	if now.After(since) {
		w.since = now
	}
	return since
}

// reap closes partitions that are out of the table and have become idle.
func (d *Dispatcher) reap() {
	d.mu.Lock()
	defer d.unlock()
	d.reapLocked()
}

func (d *Dispatcher) reapLocked() {
	kept := d.retired[:0]
	for _, p := range d.retired {
		if p.running.Load() > 0 || (!d.broken.Load() && d.sched.RemovePartition(d.now(), p.id) != nil) {
			kept = append(kept, p)
			continue
		}
		p.removed = true
		delete(d.byQueueID, p.id)
		d.tasks.Go(func() {
			if err := p.close(); err != nil {
				d.o.Logger.Debug("closing the connection to a drained partition", "partition", p.spec.ID, "error", err)
			}
		})
	}
	clear(d.retired[len(kept):])
	d.retired = kept
	d.broadcast()
}

// PartitionState is what the dispatcher knows about a partition.
type PartitionState struct {
	Partition *router.Partition
	Up        bool
	// Draining tells that the table in force does not name it any more.
	Draining bool
	// Reason says why it is down.
	Reason string
	// Running counts calls under way, in and outside the queue.
	Running int
	// Conn speaks Triton's gRPC to the partition with generated message types:
	// for tritonpb.NewGRPCInferenceServiceClient.
	Conn grpc.ClientConnInterface
}

// Partitions lists the partitions of the table in force, in its order, and then
// those that drain.
func (d *Dispatcher) Partitions() []PartitionState {
	var all []PartitionState
	t := d.routes.Load()
	d.mu.Lock()
	defer d.mu.Unlock()
	if t != nil {
		for _, p := range t.partitions {
			all = append(all, p.state())
		}
	}
	for _, p := range d.retired {
		all = append(all, p.state())
	}
	return all
}

func (p *partition) state() PartitionState {
	return PartitionState{Partition: p.current, Up: p.up.Load(), Draining: p.retired.Load(), Reason: p.reason, Running: int(p.running.Load()), Conn: p.conn}
}

// same reports whether a partition goes on under a new table.
func (p *partition) same(spec *router.Partition) bool {
	return p.spec.Endpoint == spec.Endpoint && p.spec.GPUType == spec.GPUType && p.spec.ThreadPercentage == spec.ThreadPercentage
}
