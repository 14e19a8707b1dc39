// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/apply/warmup"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
	"github.com/conch-serving/conch/sidecar/plan"
)

// change is the way from the serving target to the next one. make lists the
// steps up to the swap, end those after it.
type change struct {
	a       *Applier
	old     *Target // nil where nothing served
	next    *Target
	diff    *plan.Diff
	gpus    map[string]*policy.GPU
	before  map[string]*running // what served
	started map[string]*running // the new processes, by partition; entries are made up front and filled by start steps
	reloads map[string]bool     // models whose files changed
	depths  map[string]int      // by model, as far as known
}

func (a *Applier) change(next *Target, d *plan.Diff) *change {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := &change{
		a: a, old: a.serving, next: next, diff: d, gpus: gpusOf(next.Snapshot), before: maps.Clone(a.running),
		started: map[string]*running{}, reloads: map[string]bool{}, depths: map[string]int{},
	}
	fresh := slices.Clone(d.Start)
	for _, r := range d.Replace {
		fresh = append(fresh, r.New)
	}
	for _, p := range fresh {
		c.started[p.GetId()] = &running{partition: p, gpu: c.gpus[p.GPU()], models: map[string]bool{}}
	}
	if c.old == nil || next.Given {
		return c // a server whose models others load has changed over by itself
	}
	for _, m := range next.Revision.Models {
		if was := c.old.Revision.Model(m.Name); was != nil && was.Loads(m) {
			c.reloads[m.Name] = true
		}
	}
	return c
}

// make is everything up to and including the swap. Each step can be undone.
func (c *change) make() []phase {
	var stages, starts []step
	var loads, reloads [][]step // by depth
	for _, p := range c.fresh() {
		stages, starts = append(stages, c.stage(p)), append(starts, c.start(p))
	}
	for _, l := range c.diff.Loads {
		loads = c.atDepth(loads, l.Instance.GetModel(), c.load(l))
	}
	for _, k := range c.diff.Keep {
		for _, in := range k.Old.GetInstances() {
			if c.reloads[in.GetModel()] && slices.ContainsFunc(k.New.GetInstances(), func(n *policy.Instance) bool { return n.GetModel() == in.GetModel() }) {
				reloads = c.atDepth(reloads, in.GetModel(), c.reload(k.New.GetId(), in.GetModel()))
			}
		}
	}
	measured, once := c.warmUps()
	phases := []phase{{steps: stages}, {steps: starts}}
	for _, steps := range loads {
		phases = append(phases, phase{steps: steps})
	}
	phases = append(phases, phase{steps: c.settings()}, phase{steps: measured, serial: true}, phase{steps: once})
	if len(reloads) > 0 {
		phases = append(phases, phase{steps: []step{c.narrow()}})
	}
	for _, steps := range reloads {
		phases = append(phases, phase{steps: steps})
	}
	return append(phases, phase{steps: []step{c.swap()}})
}

// end is everything after the swap: the old state is taken down.
func (c *change) end() []phase {
	var drains, unloads, stops []step
	for _, u := range c.diff.Unloads {
		r := c.before[u.Partition.GetId()]
		drains = append(drains, c.drain(u.Partition.GetId(), u.Instance.GetModel()))
		unloads = append(unloads, c.unload(r, u.Instance.GetModel()))
	}
	gone := slices.Clone(c.diff.Stop)
	for _, r := range c.diff.Replace {
		gone = append(gone, r.Old)
	}
	for _, p := range gone {
		r := c.before[p.GetId()]
		drains = append(drains, c.drain(p.GetId(), ""))
		if c.a.o.Driver.Lasting() && !c.next.Given { // the server stays, what it need not serve goes
			for _, model := range r.loaded() {
				if !c.stays(p.GPU(), model) {
					unloads = append(unloads, c.unload(r, model))
				}
			}
		}
		stops = append(stops, c.stop(r))
	}
	return []phase{{steps: drains}, {steps: unloads}, {steps: stops}}
}

// stays reports whether the next plan has a model on a GPU.
func (c *change) stays(gpu, model string) bool {
	for _, p := range c.next.Plan.GetPartitions() {
		if p.GPU() == gpu && slices.Contains(modelsOf(p), model) {
			return true
		}
	}
	return false
}

// fresh are the partitions that need a new process, in the plan's order.
func (c *change) fresh() []*policy.Partition {
	return slices.DeleteFunc(slices.Clone(c.next.Plan.GetPartitions()), func(p *policy.Partition) bool { return c.started[p.GetId()] == nil })
}

// stage prepares the directory of a new process.
func (c *change) stage(p *policy.Partition) step {
	r := c.started[p.GetId()]
	return step{
		StepEvent: StepEvent{Kind: StepStage, Partition: p.GetId()},
		do: func(ctx context.Context) (string, error) {
			repository, clean, err := c.directory(p)
			if err != nil {
				return "", err
			}
			if !c.next.Given {
				if err := c.a.o.Repository.Stage(ctx, c.next.Revision.ID, modelsOf(p), repository); err != nil {
					return "", errors.Join(err, clean())
				}
			}
			c.a.mu.Lock()
			defer c.a.mu.Unlock()
			r.repository = repository
			return "", nil
		},
		undo: func(ctx context.Context) error {
			if c.next.Given {
				return c.a.clear(ctx, r, nil)
			}
			return c.a.clear(ctx, r, modelsOf(p))
		},
	}
}

// directory is the model repository of a new process: its server's own, or one
// that is made for it.
func (c *change) directory(p *policy.Partition) (repository string, clean func() error, err error) {
	if own := c.a.o.Driver.Repository(p.GPU()); own != "" {
		return own, func() error { return nil }, nil
	}
	if err := os.MkdirAll(c.a.o.Dir, 0o755); err != nil {
		return "", nil, err
	}
	dir, err := os.MkdirTemp(c.a.o.Dir, safe(p.GetId())+"-")
	return filepath.Join(dir, "repository"), func() error { return os.RemoveAll(dir) }, err
}

func modelsOf(p *policy.Partition) []string {
	models := make([]string, len(p.GetInstances()))
	for i, in := range p.GetInstances() {
		models[i] = in.GetModel()
	}
	return models
}

// safe makes an id fit to begin a directory's name.
func safe(id string) string {
	return strings.Map(func(r rune) rune {
		if r == '/' || r == '*' || r == 0 || r == '.' {
			return '_'
		}
		return r
	}, id[:min(len(id), 64)])
}

func (c *change) start(p *policy.Partition) step {
	r := c.started[p.GetId()]
	return step{
		StepEvent: StepEvent{Kind: StepStart, Partition: p.GetId()},
		do: func(ctx context.Context) (string, error) {
			// An event may come before Start has returned to us; the state is set first.
			c.a.mu.Lock()
			r.up = true
			c.a.mu.Unlock()
			process, err := c.a.o.Driver.Start(ctx, driver.Spec{
				Partition: p, GPU: r.gpu, RepositoryDir: r.repository, Notify: func(e driver.Event) { c.a.event(r, e) },
			})
			if err != nil {
				return "", err
			}
			c.a.mu.Lock()
			defer c.a.mu.Unlock()
			r.process, r.endpoint = process, process.Endpoint()
			return "", nil
		},
		undo: func(ctx context.Context) error { return r.process.Stop(ctx) },
	}
}

// warmUps are the first requests of what was loaded. On a new partition that is
// the first of its GPU type and share, a model without a measured profile is
// measured, one after the other, for they would disturb each other's times.
// Kept partitions serve meanwhile and measure nothing.
func (c *change) warmUps() (measured, once []step) {
	type class struct {
		model, gpu string
		share      uint32
	}
	if c.next.Given {
		return nil, nil // the server has other callers, and the model runs already
	}
	seen := map[class]bool{}
	for _, p := range c.next.Snapshot.GetProfiles() {
		source := p.GetSource()
		if !p.GetUsable() || source != policy.ProfileSource_PROFILE_SOURCE_OBSERVED && source != policy.ProfileSource_PROFILE_SOURCE_CALIBRATED {
			continue
		}
		for _, point := range p.GetPoints() {
			seen[class{p.GetModel(), p.GetGpuType(), point.GetThreadPercentage()}] = true
		}
	}
	for _, l := range c.diff.Loads {
		r := c.started[l.Partition.GetId()]
		if r == nil {
			once = append(once, c.warmUp(c.before[l.Partition.GetId()], l, false))
			continue
		}
		if c.a.o.Driver.Lasting() { // others may use it now: its times would not be the model's
			once = append(once, c.warmUp(r, l, false))
			continue
		}
		key := class{l.Instance.GetModel(), r.gpu.GetType(), l.Partition.GetThreadPercentage()}
		if seen[key] {
			once = append(once, c.warmUp(r, l, false))
			continue
		}
		seen[key] = true
		measured = append(measured, c.warmUp(r, l, true))
	}
	return measured, once
}

func (c *change) warmUp(r *running, l plan.Load, measure bool) step {
	model := l.Instance.GetModel()
	return step{
		StepEvent: StepEvent{Kind: StepWarmUp, Partition: l.Partition.GetId(), Model: model},
		do: func(ctx context.Context) (string, error) {
			result, err := c.a.o.WarmUp(ctx, r.process.Endpoint().GRPC, c.next.Revision.Model(model).Config, warmup.Options{
				Measure: measure, MaxBatch: int(l.Instance.GetMaxBatch()), Budget: c.a.o.WarmUpBudget,
				Enough: time.Duration(policy.NewIndex(c.next.Snapshot).Model(model).GetSloUs()) * time.Microsecond,
			})
			if ctx.Err() != nil {
				return "", context.Cause(ctx)
			}
			c.a.warmedUp(r, model, result.Statistics)
			if len(result.Samples) > 0 && c.a.o.Recorder != nil {
				c.a.o.Recorder.Record(model, r.gpu.GetType(), l.Partition.GetThreadPercentage(), result.Samples)
			}
			if err != nil {
				// Not every model takes zeros. Its clients will show whether it works.
				return err.Error(), nil //nolint:nilerr // the remark carries it
			}
			return result.Skipped, nil
		},
	}
}

// settings are for the servers that have something new: a process, or a model
// with trace settings of its own.
func (c *change) settings() []step {
	if c.a.o.Settings == nil {
		return nil
	}
	var steps []step
	for _, p := range c.next.Plan.GetPartitions() {
		id := p.GetId()
		r := c.started[id]
		if r == nil {
			if !slices.ContainsFunc(c.diff.Loads, func(l plan.Load) bool { return l.Partition.GetId() == id }) {
				continue
			}
			r = c.before[id]
		}
		steps = append(steps, step{
			StepEvent: StepEvent{Kind: StepSettings, Partition: id},
			do: func(ctx context.Context) (string, error) {
				if err := c.a.tell(ctx, r.process.Endpoint()); err != nil {
					return err.Error(), nil //nolint:nilerr // the server serves all the same
				}
				return "", nil
			},
		})
	}
	return steps
}

// tell gives a server the settings of clients.
func (a *Applier) tell(ctx context.Context, at driver.Endpoint) error {
	within, cancel := context.WithTimeout(ctx, a.o.SettingsTimeout)
	defer cancel()
	return a.o.Settings(within, at)
}

// narrow puts a table in force whose batches both the old files and the new
// ones take.
func (c *change) narrow() step {
	swapped := false
	return step{
		StepEvent: StepEvent{Kind: StepNarrow},
		do: func(ctx context.Context) (string, error) {
			c.a.mu.Lock()
			defer c.a.mu.Unlock()
			narrowed := narrow(table(c.old, c.a.running), c.next.Revision, c.reloads)
			if narrowed == nil {
				return "not needed", nil
			}
			swapped = true
			return "", c.a.o.Router.Swap(ctx, narrowed)
		},
		undo: func(ctx context.Context) error {
			if !swapped {
				return nil
			}
			c.a.mu.Lock()
			defer c.a.mu.Unlock()
			return c.a.o.Router.Swap(ctx, table(c.old, c.a.running))
		},
	}
}

// swap puts the new table in force and makes the new state the serving one. It
// is the last step that can fail.
func (c *change) swap() step {
	return step{
		StepEvent: StepEvent{Kind: StepSwap},
		do: func(ctx context.Context) (string, error) {
			c.a.mu.Lock()
			defer c.a.mu.Unlock()
			running := map[string]*running{}
			for _, p := range c.next.Plan.GetPartitions() {
				r := c.started[p.GetId()]
				if r == nil {
					r = c.before[p.GetId()]
				}
				if r == nil {
					return "", fmt.Errorf("partition %s has no process: the diff does not fit the plan", p.GetId())
				}
				running[p.GetId()] = r
			}
			if err := c.a.o.Router.Swap(ctx, table(c.next, running)); err != nil {
				return "", err
			}
			if err := c.a.journal.serve(*c.next, c.a.o.Now()); err != nil {
				return "", errors.Join(err, c.back(ctx))
			}
			c.a.serving, c.a.running = c.next, running
			for _, p := range c.next.Plan.GetPartitions() {
				r := running[p.GetId()]
				r.partition = p
				c.a.o.Router.SetPartitionState(p.GetId(), r.up, r.reason)
			}
			return "", nil
		},
	}
}

// back puts the old table in force again; Applier.mu is held.
func (c *change) back(ctx context.Context) error {
	if c.old == nil {
		return c.a.o.Router.Swap(context.WithoutCancel(ctx), &router.Table{})
	}
	return c.a.o.Router.Swap(context.WithoutCancel(ctx), table(c.old, c.a.running))
}

// drain waits until the request path has nothing on a placement any more.
func (c *change) drain(id, model string) step {
	return step{
		StepEvent: StepEvent{Kind: StepDrain, Partition: id, Model: model},
		do: func(ctx context.Context) (string, error) {
			within, cancel := context.WithTimeout(ctx, c.a.o.DrainTimeout)
			defer cancel()
			select {
			case <-c.a.o.Router.Drained(id, model):
				return "", nil
			case <-within.Done():
				return "", within.Err()
			}
		},
	}
}

func (c *change) unload(r *running, model string) step {
	return step{
		StepEvent: StepEvent{Kind: StepUnload, Partition: r.partition.GetId(), Model: model},
		do: func(ctx context.Context) (string, error) {
			within, cancel := context.WithTimeout(ctx, c.a.o.DrainTimeout)
			defer cancel()
			if c.next.Given {
				r.process.Abandon(model)
			}
			c.a.mu.Lock()
			delete(r.models, model)
			c.a.mu.Unlock()
			if c.next.Given {
				return "others have unloaded it", nil
			}
			err := r.process.Unload(within, model)
			return "", errors.Join(err, c.a.o.Repository.Unstage(within, r.repository, model))
		},
	}
}

func (c *change) stop(r *running) step {
	return step{
		StepEvent: StepEvent{Kind: StepStop, Partition: r.partition.GetId()},
		do: func(ctx context.Context) (string, error) {
			within, cancel := context.WithTimeout(ctx, c.a.o.StopTimeout)
			defer cancel()
			return "", c.a.end(within, r)
		},
	}
}
