// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
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
	// Dispatch are the models (or merge groups) whose discipline changes.
	Dispatch []DispatchChange
	// AppRoutes are the apps whose models change.
	AppRoutes []AppRouteChange
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
	// Reload says that the server must load it again: its files, its merge group
	// or its own share changed. Otherwise the change is one of the route table.
	Reload bool
}

// DispatchChange is a changed discipline. Old is nil for a model that had none,
// New is nil for one that has none any more.
type DispatchChange struct {
	Model    string
	Old, New *policy.Dispatch
}

// AppRouteChange is an app with other models. Old or New may be nil.
type AppRouteChange struct {
	App      string
	Old, New []string
}
