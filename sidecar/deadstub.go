// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"log/slog"
	"sync"

	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
)

// deadStubs restarts a partition whose server hangs, or whose python backend has lost the process of a
// model. Triton goes on answering INTERNAL for it, calls it READY and never
// starts another, so that only the answers show it. The callers of the batch that
// gets such an answer keep their error: it may be their input that killed the
// process, and it must not be sent to another.
type deadStubs struct {
	dispatch.Observer
	restart func(partition, reason string) error
	log     *slog.Logger

	mu      sync.Mutex
	running map[string]bool // restarts under way, by partition
	tasks   sync.WaitGroup
}

func watchStubs(next dispatch.Observer, restart func(partition, reason string) error, log *slog.Logger) *deadStubs {
	return &deadStubs{Observer: next, restart: restart, log: log, running: map[string]bool{}}
}

// Executed implements dispatch.Observer.
func (d *deadStubs) Executed(e dispatch.Execution) {
	d.Observer.Executed(e)
	if e.Err == nil || !forward.DeadStub(forward.Status(e.Err).Message()) {
		return
	}
	d.again(e.Partition, "the process of model "+e.Model+" has died: "+e.Err.Error())
}

// again has the server of a partition started again, unless that is under way.
func (d *deadStubs) again(partition, reason string) {
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

// close waits for restarts under way.
func (d *deadStubs) close() error {
	d.tasks.Wait()
	return nil
}
