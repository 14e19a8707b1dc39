// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/control/orders"
	"github.com/conch-serving/conch/sidecar/plan"
)

// Cordon keeps new things off a GPU, has everything leave it, or gives it back, over
// restarts too. A drain returns once what it changed serves elsewhere, with what that
// was; where no plan without the GPU can be had, it stays drained and the error says
// why it is not empty.
func (c *Control) Cordon(ctx context.Context, r api.CordonRequest) (*Proposal, error) {
	_, cordoned := c.orders.Declared().Cordons[r.GPU] // of a node that is gone, perhaps, and may come back
	if !slices.Contains(c.gpus(), r.GPU) && (!r.Undo || !cordoned) {
		return nil, fmt.Errorf("%w: no GPU is called %q; there are %s", ErrNotFound, r.GPU, strings.Join(c.gpus(), ", "))
	}
	if r.Drain && r.Undo {
		return nil, fmt.Errorf("%w: a drain and its undoing at once; choose one", ErrInvalid)
	}
	if err := c.ready(ctx); err != nil {
		return nil, err
	}
	defer c.release()
	if c.Given() {
		return nil, fmt.Errorf("%w: which model is where is up to the servers in front of which conch stands", ErrRefused)
	}
	pin := c.orders.Declared().Pin
	switch {
	case r.Drain && c.settings().Mode == config.ModeObserve:
		return nil, fmt.Errorf("%w: mode is observe, in which no plan is applied, and a drain needs one", ErrRefused)
	case r.Drain && pin != nil:
		return nil, fmt.Errorf("%w: plan %d is pinned by %s%s, and a drain needs another; tritonctl plan unpin", ErrRefused, c.current().Revision, pin.Author, because(pin.Reason))
	}
	author := cmp.Or(r.Author, "operator")
	cordon := &api.Cordon{Drain: r.Drain, Author: author, Reason: r.Reason, Since: c.clock.Now()}
	if r.Undo {
		cordon = nil
	}
	declared := c.orders.Declared()
	declared.Cordon(r.GPU, cordon)
	if r.DryRun {
		p, _, err := c.cycle(ctx, order{dry: true, policy: true, cordons: declared.Cordons})
		var violations plan.Violations
		if err != nil && (!errors.As(err, &violations) || p.Plan == nil) {
			return nil, err
		}
		return p, nil
	}
	if err := c.orders.Declare(func(d *orders.Declared) { d.Cordon(r.GPU, cordon) }); err != nil {
		return nil, err
	}
	kind, message := events.GPUCordoned, "GPU "+r.GPU+" is cordoned: nothing new comes to it"
	switch {
	case r.Drain:
		kind, message = events.GPUDrained, "GPU "+r.GPU+" is drained: what is there goes elsewhere"
	case r.Undo:
		kind, message = events.GPUUncordoned, "GPU "+r.GPU+" may be used again"
	}
	c.event(api.Event{Kind: kind, Author: author, Reason: r.Reason, Message: message, Fields: map[string]string{"gpu": r.GPU}})
	if !r.Drain {
		c.promptly(message)
		return nil, nil
	}
	p, _, err := c.cycle(ctx, order{author: author, reason: cmp.Or(r.Reason, "drain of "+r.GPU), apply: true, wait: true})
	if err != nil {
		return p, fmt.Errorf("GPU %s is to be drained and still has what it had: %w", r.GPU, err)
	}
	return p, nil
}

// gpus are the ids of all.
func (c *Control) gpus() (ids []string) {
	for _, n := range c.nodes() {
		for _, g := range n.GetGpus() {
			ids = append(ids, g.GetId())
		}
	}
	return ids
}

// Restart starts a partition's server anew, and returns once it serves its models
// again or has failed to. What it has in flight is answered first; new requests go to
// other places of their models, or wait where there are none.
func (c *Control) Restart(ctx context.Context, r api.RestartRequest) error {
	p, err := c.PlannedPartition(r.Partition)
	if err != nil {
		return err
	}
	if c.attached != nil {
		return fmt.Errorf("%w: the server of partition %s is run by others; they start it anew", ErrRefused, r.Partition)
	}
	author := cmp.Or(r.Author, "operator")
	if err := c.reconciler.StartAnew(r.Partition, "it is started anew by order of "+author); err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	c.event(api.Event{Kind: events.PartitionRestarted, Author: author, Reason: r.Reason, Message: "partition " + r.Partition + " is started anew", Fields: map[string]string{"partition": r.Partition}})
	var models []string
	for _, i := range p.GetInstances() {
		models = append(models, i.GetModel())
	}
	// What fails of its models is a condition of the partition.
	_ = c.reconciler.Settle(ctx, 0, models...)
	return ctx.Err()
}

// LogFile is where the output of a partition's server is; that of its last one while
// it has none.
func (c *Control) LogFile(partition string) (string, error) {
	if _, err := c.PlannedPartition(partition); err != nil {
		return "", err
	}
	var path string
	for _, s := range c.partitions() {
		if s.ID == partition {
			path = s.Log
		}
	}
	c.mu.Lock()
	path = cmp.Or(path, c.logs[partition])
	c.mu.Unlock()
	if path == "" {
		return "", fmt.Errorf("%w: conch has no log of partition %s: %s", ErrRefused, partition, c.noLog())
	}
	return path, nil
}

// noLog says where the log of a server is that conch has none of.
func (c *Control) noLog() string {
	switch c.settings().Driver.Kind {
	case config.DriverKubernetes:
		return "its server is a Pod, whose log the cluster keeps"
	case config.DriverAttach:
		return "its server is run by others, who have it"
	case config.DriverEmbedded:
		return "its server runs inside conch, whose log has what it says"
	}
	return "its server has not started"
}
