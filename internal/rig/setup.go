// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/conch-serving/conch/internal/zoo"
)

// Setup is one way to serve the models of a contest on its GPUs.
type Setup interface {
	// String says what is special about it, to be shown.
	String() string
	// System is the system that serves: Triton or Conch.
	System() string
	start(ctx context.Context, c *Contest) (running, error)
}

// running is a system that was started.
type running interface {
	System
	// Died says that a process of it has ended.
	Died() bool
	Close() error
}

// TritonSetup is Triton with its own scheduling: a tritonserver per GPU, or one for all of them.
type TritonSetup struct {
	zoo.DynamicBatching
	// Node is how one server serves all GPUs; empty: a server per GPU.
	Node Node
	// Instances is how many instances each model has that are bound to no GPU (NodeFree); 0: as many as there are GPUs.
	Instances int
	// MaxBatch is max_batch_size; 0 is that of the models.
	MaxBatch int
	// Affine has callers send a model's requests to one server each, unless that has more than a fair share of what is outstanding (consistent
	// hashing with bounded loads, at 1.25), instead of the one with the fewest outstanding.
	Affine bool
	// Placement lists the models of each GPU; nil means that every GPU has every model. Placed says it in words.
	Placement [][]int
	Placed    string
	// RateLimiter lets one model of a GPU execute at a time, or, of instances that are bound to no GPU, as many at once as there are GPUs (tritonserver
	// --rate-limit=execution_count).
	RateLimiter bool
}

// System is Triton.
func (TritonSetup) System() string { return "Triton" }

// String lists the settings that differ from Triton's defaults, and always the delay.
func (t TritonSetup) String() string {
	all := []string{fmt.Sprintf("max_queue_delay %v", t.MaxQueueDelay)}
	if t.Node != "" {
		all = append(all, "one server for all GPUs, "+string(t.Node))
	}
	if t.Instances > 0 {
		all = append(all, fmt.Sprintf("%d of each model", t.Instances))
	}
	if t.MaxBatch > 0 {
		all = append(all, fmt.Sprintf("max_batch_size %d", t.MaxBatch))
	}
	if t.Affine {
		all = append(all, "callers prefer a server per model")
	}
	if len(t.PreferredBatchSizes) > 0 {
		all = append(all, fmt.Sprintf("preferred_batch_size %v", t.PreferredBatchSizes))
	}
	if t.QueueTimeout > 0 {
		all = append(all, fmt.Sprintf("queue timeout %v, REJECT", t.QueueTimeout))
	}
	if t.Placed != "" {
		all = append(all, t.Placed)
	}
	if t.RateLimiter {
		all = append(all, "rate limiter, one execution per GPU")
	}
	return strings.Join(all, ", ")
}

func (t TritonSetup) start(ctx context.Context, c *Contest) (running, error) {
	tritons, err := StartTritons(ctx, TritonOptions{
		Server: c.Server, Models: c.Models, GPUs: c.GPUs, Placement: t.Placement, Dynamic: &t.DynamicBatching, RateLimiter: t.RateLimiter,
		Node: t.Node, Instances: t.Instances, MaxBatch: t.MaxBatch, Affine: t.Affine,
	})
	if err != nil {
		return nil, err
	}
	return tritons, nil
}

// Delays are setups that differ in max_queue_delay.
func Delays(delays ...time.Duration) []Setup {
	var all []Setup
	for _, d := range delays {
		all = append(all, TritonSetup{DynamicBatching: zoo.DynamicBatching{MaxQueueDelay: d}})
	}
	return all
}

// ConchSetup is Conch in front of the GPUs. Late requests are dropped, which counts as bad.
type ConchSetup struct {
	// Discipline is an operator's choice; empty leaves Conch's default.
	Discipline string
	Parameters map[string]string
	// DropPolicy is an operator's choice; empty leaves the discipline's default.
	DropPolicy string
	// Attach has Conch form batches in front of one tritonserver for all GPUs, which others run (driver attach, mode control), and execute this many there at
	// once. 0: Conch starts a server per GPU.
	Attach int
	// Executions is how many batches a server of Conch's own executes at once (driver.executions); 0 is the default, 1.
	Executions int
	// Observe has an attached Conch pass requests on as they come (mode observe).
	Observe bool
	// Pass leaves ensembles to Triton, as one request each.
	Pass bool
	// Merge has all models merged; the setup has started once the group serves everywhere.
	Merge bool
}

// System is Conch.
func (ConchSetup) System() string { return "Conch" }

// String says what differs from Conch's defaults.
func (s ConchSetup) String() string {
	if s.Merge {
		return "late: drop, merged"
	}
	parts := []string{"late: drop"}
	if s.Discipline != "" {
		parts = append(parts, "discipline "+s.Discipline)
	}
	if s.DropPolicy != "" {
		parts = append(parts, "drop policy "+s.DropPolicy)
	}
	if s.Attach > 0 {
		parts = append(parts, fmt.Sprintf("attached to one server for all GPUs, %d executions at once", s.Attach))
	}
	if s.Executions > 0 {
		parts = append(parts, fmt.Sprintf("%d executions at once", s.Executions))
	}
	if s.Pass {
		parts = append(parts, "ensembles passed through")
	}
	for _, name := range slices.Sorted(maps.Keys(s.Parameters)) {
		parts = append(parts, fmt.Sprintf("%s %s", name, s.Parameters[name]))
	}
	return strings.Join(parts, ", ")
}

func (s ConchSetup) start(ctx context.Context, c *Contest) (running, error) {
	if s.Attach > 0 {
		return s.startAttached(ctx, c)
	}
	conch, err := s.Start(ctx, c)
	if err != nil {
		return nil, err
	}
	return conch, nil
}

// Start starts the Conch of a contest.
func (s ConchSetup) Start(ctx context.Context, c *Contest) (*Conch, error) {
	o := ConchOptions{Bin: c.Bin, Server: c.Server, Models: c.Models, GPUs: c.GPUs, GPUType: c.GPUType, Late: "drop", Executions: s.Executions}
	o.Settings = map[string]any{"defaults": s.defaults()}
	if s.Pass {
		models := map[string]any{}
		for _, name := range c.Models.Names() {
			models[name] = map[string]any{"ensemble": "pass"}
		}
		o.Settings["models"] = models
		o.Dynamic = &zoo.DynamicBatching{} // the servers batch the steps
	}
	if !s.Merge {
		return StartConch(ctx, o)
	}
	o.Settings = map[string]any{"merge": []map[string]any{{"members": c.Models.Names()}}}
	return startMerged(ctx, o)
}

// defaults are the setup's in conch.yaml.
func (s ConchSetup) defaults() map[string]any {
	all := map[string]any{"late": "drop"}
	if s.Discipline != "" {
		all["discipline"] = s.Discipline
	}
	if s.DropPolicy != "" {
		all["dropPolicy"] = s.DropPolicy
	}
	if len(s.Parameters) > 0 {
		all["parameters"] = s.Parameters
	}
	return all
}

// attached is a conch in front of a server that goes with it.
type attached struct {
	*Conch
	server *Tritons
}

// Died says that conch or the server has ended.
func (a attached) Died() bool { return a.Conch.Died() || a.server.Died() }

// Close ends conch, and then the server.
func (a attached) Close() error { return errors.Join(a.Conch.Close(), a.server.Close()) }

// startAttached starts a server whose instances take turns on the GPUs, without batching of its own, and conch in front of it.
func (s ConchSetup) startAttached(ctx context.Context, c *Contest) (running, error) {
	server, err := StartTritons(ctx, TritonOptions{Server: c.Server, Models: c.Models, GPUs: c.GPUs, Node: NodeFree})
	if err != nil {
		return nil, err
	}
	conch, err := s.StartBefore(ctx, c, server)
	if err != nil {
		return nil, errors.Join(err, server.Close())
	}
	return attached{conch, server}, nil
}

// StartBefore starts conch in front of a server over all GPUs, of which nothing is changed.
func (s ConchSetup) StartBefore(ctx context.Context, c *Contest, server *Tritons) (*Conch, error) {
	mode := "control"
	if s.Observe {
		mode = "observe"
	}
	return StartConch(ctx, ConchOptions{Bin: c.Bin, Models: c.Models, GPUs: c.GPUs, Mode: mode, Settings: map[string]any{
		"defaults": s.defaults(), "gpus": "auto", "repository": nil,
		"driver": map[string]any{"kind": "attach", "endpoints": []map[string]any{server.endpoint(s.Attach)}},
	}})
}

// startMerged has the group made on one GPU, and then serves it on all of them: what was made is kept, so that not every GPU has to hold
// every member first.
func startMerged(ctx context.Context, o ConchOptions) (*Conch, error) {
	state, err := os.MkdirTemp("", "conch-rig-state-")
	if err != nil {
		return nil, fmt.Errorf("rig: %w", err)
	}
	o.State = state
	run := func(gpus int) (*Conch, error) {
		o.GPUs = gpus
		conch, err := StartConch(ctx, o)
		if err != nil {
			return nil, err
		}
		if err := conch.awaitMerged(ctx, o); err != nil {
			return nil, errors.Join(err, conch.Close())
		}
		return conch, nil
	}
	all := o.GPUs
	if all > 1 {
		first, err := run(1)
		if err == nil {
			err = first.Close()
		}
		if err != nil {
			return nil, errors.Join(err, os.RemoveAll(state))
		}
	}
	conch, err := run(all)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(state))
	}
	conch.also = state
	return conch, nil
}

// awaitMerged returns once every partition serves one model, the merge group.
func (c *Conch) awaitMerged(ctx context.Context, o ConchOptions) error {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Minute)
	defer cancel()
	for {
		command := exec.CommandContext(ctx, filepath.Join(o.Bin, "tritonctl"), "gpu", "ls", "-o", "json")
		command.Env = append(os.Environ(), "CONCH_ADMIN="+c.Admin)
		out, err := command.Output()
		var gpus []struct {
			Partitions []struct {
				Serving []string `json:"serving"`
			} `json:"partitions"`
		}
		if err == nil {
			err = json.Unmarshal(out, &gpus)
		}
		merged := 0
		for _, g := range gpus {
			for _, p := range g.Partitions {
				if len(p.Serving) == 1 && len(c.names) > 1 {
					merged++
				}
			}
		}
		if err == nil && merged == o.GPUs {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("rig: the models were not merged in time (%w): %s\n%s", errors.Join(err, ctx.Err()), out, c.LogTail())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// with starts a setup, uses it and closes it.
func (c *Contest) with(ctx context.Context, s Setup, use func(System) error) error {
	for again := startAgain; ; again-- {
		started, err := s.start(ctx, c)
		died := true
		if err == nil {
			err = use(started)
			died = started.Died()
			switch closing := started.Close(); {
			case died || closing == nil:
			case err == nil && s.System() == TritonSetup{}.System():
				c.Progress(fmt.Sprintf("%s: %v; what it has answered counts", title(s), closing)) // servers of Triton's hang at their end now and then
			default:
				err = errors.Join(err, closing)
			}
		}
		if err == nil {
			return nil
		}
		err = fmt.Errorf("rig: %s: %w", title(s), err)
		switch {
		case !died || ctx.Err() != nil:
			return err
		case again == 0:
			return fmt.Errorf("%w: %w", ErrEnded, err)
		}
		c.Progress(fmt.Sprintf("%v; it is started again", err))
	}
}

// ErrEnded is of a setup whose servers ended each time while they were used.
var ErrEnded = errors.New("its servers end")

// startAgain is how often a setup is started again whose servers did not start, or died while they were used: python models of a tritonserver crash at
// their start now and then on a busy machine, and a contest takes hours.
const startAgain = 2
