// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observers

import (
	"context"
	"log/slog"
	"sync"

	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
)

// DeadStubs restarts a partition whose server hangs, or whose python backend has lost the process of a
// model. Triton goes on answering INTERNAL for it, calls it READY and never
// starts another, so that only the answers show it. The callers of the batch that
// gets such an answer keep their error: it may be their input that killed the
// process, and it must not be sent to another.
type DeadStubs struct {
	dispatch.Observer
	restart func(partition, reason string) error
	log     *slog.Logger

	mu      sync.Mutex
	running map[string]bool // restarts under way, by partition
	tasks   sync.WaitGroup
}

// WatchStubs makes what restarts partitions and passes on to next what it sees.
func WatchStubs(next dispatch.Observer, restart func(partition, reason string) error, log *slog.Logger) *DeadStubs {
	return &DeadStubs{Observer: next, restart: restart, log: log, running: map[string]bool{}}
}

// Executed implements dispatch.Observer.
func (d *DeadStubs) Executed(e dispatch.Execution) {
	d.Observer.Executed(e)
	if e.Err == nil || !forward.DeadStub(forward.Status(e.Err).Message()) {
		return
	}
	d.Again(e.Partition, "the process of model "+e.Model+" has died: "+e.Err.Error())
}

// Again has the server of a partition started again, unless that is under way.
func (d *DeadStubs) Again(partition, reason string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.running[partition] {
		return
	}
	d.running[partition] = true
	d.tasks.Go(func() {
		if err := d.restart(partition, reason); err != nil {
			d.log.Error("partition cannot be restarted", "partition", partition, "reason", reason, "error", err)
		}
		d.mu.Lock()
		delete(d.running, partition)
		d.mu.Unlock()
	})
}

// Run implements component.Component: in the end it waits for restarts under way.
func (d *DeadStubs) Run(ctx context.Context) error {
	<-ctx.Done()
	d.tasks.Wait()
	return nil
}
