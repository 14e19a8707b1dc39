// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"maps"
	"slices"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/apply/driver"
)

// running is a partition's process. Everything but process and repository is
// guarded by Applier.mu.
type running struct {
	partition  *policy.Partition
	gpu        *policy.GPU
	process    driver.Process
	repository string

	models   map[string]bool
	endpoint driver.Endpoint
	up       bool
	reason   string
	restarts int
	missing  []string
	// warmed are the server's statistics of models after their warm-up, as long as
	// the server has not begun anew.
	warmed map[string][]*tritonpb.ModelStatistics
}

// WarmedUp is what the server of a partition had counted of a model before
// clients were let in: its statistics hold that much too much.
func (a *Applier) WarmedUp(partition, model string) []*tritonpb.ModelStatistics {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.running[partition]; r != nil {
		return r.warmed[model]
	}
	return nil
}

// warmedUp notes the statistics of a model after its warm-up; nil after a load
// without one.
func (a *Applier) warmedUp(r *running, model string, statistics []*tritonpb.ModelStatistics) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.warmed == nil {
		r.warmed = map[string][]*tritonpb.ModelStatistics{}
	}
	r.warmed[model] = statistics
}

// loaded are the models that the server has, sorted.
func (r *running) loaded() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(r.models)), func(m string) bool { return slices.Contains(r.missing, m) })
}

// event takes in that a server died or is back. If it serves, the request path
// is told: first where it is now and what it has, then that it is there.
func (a *Applier) event(r *running, e driver.Event) {
	if e.Up && a.o.Settings != nil {
		if err := a.tell(context.Background(), e.Endpoint); err != nil {
			a.o.Logger.Warn("a server that is back did not take every setting of clients", "partition", e.Partition, "error", err)
		}
	}
	serves := func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		if r.restarts != e.Restarts {
			r.warmed = nil
		}
		r.up, r.reason, r.restarts = e.Up, e.Reason, e.Restarts
		moved := false
		if e.Up {
			moved = r.endpoint != e.Endpoint || !slices.Equal(r.missing, e.Missing)
			r.endpoint, r.missing = e.Endpoint, e.Missing
		}
		if a.running[e.Partition] != r {
			return false
		}
		if moved {
			if err := a.o.Router.Swap(context.Background(), table(a.serving, a.running)); err != nil {
				a.o.Logger.Error("the route table could not follow a server that came back elsewhere", "partition", e.Partition, "error", err)
				return true // it stays down for the request path
			}
		}
		a.o.Router.SetPartitionState(e.Partition, e.Up, e.Reason)
		return true
	}()
	if serves && a.o.OnPartition != nil {
		a.o.OnPartition(e)
	}
}
