// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
)

// Diff is what has to be done to get from one plan to the next. Its lists are
// in the order of the next plan (those of what ends, in the order of the
// current one).
//
// Applied make-before-break: start every partition of Start and the New half of
// Replace, do Loads, then Updates that reload, swap the route table (ranks,
// batches, dispatch and app routes take effect there), drain, do Unloads, stop
// the Old half of Replace and every partition of Stop.
type Diff struct {
	// From and To are the snapshot revisions that the two plans answer; From is 0
	// when there was no plan.
	From, To uint64
	// Start are partitions that did not exist.
	Start []*policy.Partition
	// Replace are partitions that keep their id but need another process: other
	// GPU, share or memory limit. The new process starts beside the old one.
	Replace []Replacement
	// Stop are partitions that the next plan does not have.
	Stop []*policy.Partition
	// Keep are partitions whose process goes on.
	Keep []Kept
	// Loads are the instances to load, those of Start and Replace included.
	Loads []Load
	// Unloads are the instances to take out of kept partitions. What runs in a
	// partition that is stopped or replaced ends with its process.
	Unloads []Load
	// Updates are instances that stay in a kept partition and change.
	Updates []Update
	// Dispatch are the models whose discipline changes.
	Dispatch []DispatchChange
	// AppRoutes are the apps whose variants change.
	AppRoutes []AppRouteChange
	// BreakFirst are the ids of partitions whose GPU has no room for the new server
	// beside the old, or whose node has no GPU left for it: the old one goes first. Compute does not know it; the caller
	// that applies the diff does.
	BreakFirst []string
}

// Replacement is a partition that gets a new process under its old id.
type Replacement struct {
	Old, New *policy.Partition
}

// Kept is a partition whose process goes on; Old and New may differ in rank and
// instances.
type Kept struct {
	Old, New *policy.Partition
}

// Load is an instance to load into (or unload from) a partition.
type Load struct {
	Partition *policy.Partition
	Instance  *policy.Instance
}

// Update is an instance that changes in a partition that goes on.
type Update struct {
	Partition *policy.Partition
	Old, New  *policy.Instance
	// Reload says that the server must load it again: its files, its recipe or
	// its own share changed. Otherwise the change is one of the route table.
	Reload bool
}

// DispatchChange is a changed discipline. Old is nil for a model that had none,
// New is nil for one that has none any more.
type DispatchChange struct {
	Model    string
	Old, New *policy.Dispatch
}

// AppRouteChange is an app whose requests go elsewhere. Old or New may be nil.
type AppRouteChange struct {
	App      string
	Old, New *policy.AppRoute
}

// Empty reports that there is nothing to do.
func (d *Diff) Empty() bool {
	for _, k := range d.Keep {
		if k.Old.GetRank() != k.New.GetRank() {
			return false
		}
	}
	return len(d.Start) == 0 && len(d.Replace) == 0 && len(d.Stop) == 0 &&
		len(d.Loads) == 0 && len(d.Unloads) == 0 && len(d.Updates) == 0 &&
		len(d.Dispatch) == 0 && len(d.AppRoutes) == 0
}

// Compute compares two plans; a nil plan is an empty one. The names in reload
// are models whose files changed since current was applied ([Changed]): where
// they stay they are loaded again. Reasons, predictions and the like play no
// part: nothing is to be done for them.
func Compute(current, next *policy.Plan, reload ...string) *Diff {
	c := &comparison{
		d:      &Diff{From: current.GetSnapshotRevision(), To: next.GetSnapshotRevision()},
		reload: make(map[string]bool), old: current, new: next,
	}
	for _, name := range reload {
		c.reload[name] = true
	}
	before := make(map[string]*policy.Partition)
	for _, part := range current.GetPartitions() {
		before[part.GetId()] = part
	}
	after := make(map[string]bool)
	for _, part := range next.GetPartitions() {
		after[part.GetId()] = true
		old, ok := before[part.GetId()]
		switch {
		case !ok:
			c.d.Start = append(c.d.Start, part)
			c.loadAll(part)
		case !sameProcess(old, part):
			c.d.Replace = append(c.d.Replace, Replacement{Old: old, New: part})
			c.loadAll(part)
		default:
			c.d.Keep = append(c.d.Keep, Kept{Old: old, New: part})
			c.instances(old, part)
		}
	}
	for _, part := range current.GetPartitions() {
		if !after[part.GetId()] {
			c.d.Stop = append(c.d.Stop, part)
		}
	}
	c.dispatch()
	c.appRoutes()
	return c.d
}

// Changed names the models that are in both snapshots with different files,
// sorted.
func Changed(before, after *policy.Snapshot) []string {
	revisions := make(map[string]string)
	for _, m := range before.GetModels() {
		revisions[m.GetName()] = m.GetRevision()
	}
	var changed []string
	for _, m := range after.GetModels() {
		if was, ok := revisions[m.GetName()]; ok && was != m.GetRevision() {
			changed = append(changed, m.GetName())
		}
	}
	slices.Sort(changed)
	return changed
}

// sameProcess reports whether one process can be both partitions: what a
// process is started with cannot change while it runs.
func sameProcess(a, b *policy.Partition) bool {
	return a.GetNode() == b.GetNode() && slices.Equal(a.GetGpus(), b.GetGpus()) &&
		a.GetThreadPercentage() == b.GetThreadPercentage() &&
		a.GetMemoryLimitBytes() == b.GetMemoryLimitBytes()
}

type comparison struct {
	d        *Diff
	old, new *policy.Plan
	reload   map[string]bool
}

func (c *comparison) loadAll(part *policy.Partition) {
	for _, in := range part.GetInstances() {
		c.d.Loads = append(c.d.Loads, Load{Partition: part, Instance: in})
	}
}

func (c *comparison) instances(old, part *policy.Partition) {
	before := make(map[string]*policy.Instance)
	for _, in := range old.GetInstances() {
		before[in.GetModel()] = in
	}
	for _, in := range part.GetInstances() {
		was, ok := before[in.GetModel()]
		delete(before, in.GetModel())
		if !ok {
			c.d.Loads = append(c.d.Loads, Load{Partition: part, Instance: in})
			continue
		}
		reload := was.GetThreadPercentage() != in.GetThreadPercentage() || c.content(in)
		if reload || !sameInstance(was, in) {
			c.d.Updates = append(c.d.Updates, Update{Partition: part, Old: was, New: in, Reload: reload})
		}
	}
	for _, in := range old.GetInstances() {
		if _, gone := before[in.GetModel()]; gone {
			c.d.Unloads = append(c.d.Unloads, Load{Partition: part, Instance: in})
		}
	}
}

// sameInstance reports whether nothing has to be done for an instance. The rate that a plan counts on is for judging the plan: it changes with every
// load, and nothing acts on it.
func sameInstance(was, in *policy.Instance) bool {
	rated := proto.CloneOf(was)
	rated.Rate = in.GetRate()
	return proto.Equal(rated, in)
}

// content reports whether what the instance holds has other files: a model that
// it serves changed, or its recipe did.
func (c *comparison) content(in *policy.Instance) bool {
	for _, name := range c.new.ModelsOf(in) {
		if c.reload[name] {
			return true
		}
	}
	return c.reload[in.GetModel()] || !proto.Equal(c.old.Recipe(in.GetModel()), c.new.Recipe(in.GetModel()))
}

func (c *comparison) dispatch() {
	before := make(map[string]*policy.Dispatch)
	for _, d := range c.old.GetDispatch() {
		before[d.GetModel()] = d
	}
	for _, d := range c.new.GetDispatch() {
		was := before[d.GetModel()]
		delete(before, d.GetModel())
		if !proto.Equal(was, d) {
			c.d.Dispatch = append(c.d.Dispatch, DispatchChange{Model: d.GetModel(), Old: was, New: d})
		}
	}
	for _, d := range c.old.GetDispatch() {
		if _, gone := before[d.GetModel()]; gone {
			c.d.Dispatch = append(c.d.Dispatch, DispatchChange{Model: d.GetModel(), Old: d})
		}
	}
}

func (c *comparison) appRoutes() {
	before := make(map[string]*policy.AppRoute)
	for _, r := range c.old.GetAppRoutes() {
		before[r.GetApp()] = r
	}
	for _, r := range c.new.GetAppRoutes() {
		was := before[r.GetApp()]
		delete(before, r.GetApp())
		if !proto.Equal(was, r) {
			c.d.AppRoutes = append(c.d.AppRoutes, AppRouteChange{App: r.GetApp(), Old: was, New: r})
		}
	}
	for _, r := range c.old.GetAppRoutes() {
		if _, gone := before[r.GetApp()]; gone {
			c.d.AppRoutes = append(c.d.AppRoutes, AppRouteChange{App: r.GetApp(), Old: r})
		}
	}
}
