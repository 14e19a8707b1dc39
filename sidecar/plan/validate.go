// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/conch-serving/conch/plugins/policy"
)

// Disciplines are the dispatch disciplines that the request path runs, a subset
// of those that the contract names.
func Disciplines() []string {
	return []string{"adaptive", "deferred", "eager", "timeout", "duty-cycle", "earliest-latest", "flex", "target"}
}

// DropPolicies are the drop policies that the request path runs.
func DropPolicies() []string { return []string{"window", "prefix", "thrift", "reserve", "none"} }

// DispatchCheck says why the request path would refuse a dispatch entry, its
// parameters included; nil where it would not.
type DispatchCheck func(*policy.Dispatch) error

// idForm is what a partition may be called: its id becomes a directory, a label
// of metrics and a part of an address, and a policy is not trusted with "..".
var idForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}$`)

// Validate lists what is wrong with plan p as an answer to snapshot s; the list
// is empty where nothing is. It looks at everything even after the first
// violation, so that a policy's author sees all at once.
//
// A model that misses its SLO where it is counts only where a usable profile
// says so, where the operator did not pin it there, and where some GPU of the
// snapshot would do: a model that can meet its SLO nowhere is served as well as
// can be rather than not at all ([policy.Index.Hopeless]).
//
// Dispatch entries must be of [Disciplines] and [DropPolicies], and pass the
// checks that the caller adds.
func Validate(s *policy.Snapshot, p *policy.Plan, checks ...DispatchCheck) Violations {
	v := &validator{x: policy.NewIndex(s), s: s, p: p, places: make(map[string][]*policy.Partition), checks: checks}
	if p.GetSnapshotRevision() != s.GetRevision() {
		v.add(CodeRevision, "", "answers snapshot %d, asked was %d", p.GetSnapshotRevision(), s.GetRevision())
	}
	v.groups()
	v.segments()
	v.partitions()
	v.gpus()
	v.models()
	v.dispatch()
	v.names()
	return v.found
}

type validator struct {
	x     *policy.Index
	s     *policy.Snapshot
	p     *policy.Plan
	found Violations
	// places are the partitions that serve each model, in the plan's order.
	places map[string][]*policy.Partition
	checks []DispatchCheck
}

func (v *validator) add(code Code, subject, format string, args ...any) {
	v.found = append(v.found, Violation{Code: code, Subject: subject, Text: fmt.Sprintf(format, args...)})
}

// groups checks that merge groups have a name of their own and members that
// exist, may be merged, and are in one group each.
func (v *validator) groups() {
	names, memberOf := make(map[string]bool), make(map[string]string)
	for _, g := range v.p.GetMergeGroups() {
		name := g.GetName()
		if name == "" || names[name] || v.x.Model(name) != nil {
			v.add(CodeName, name, "a merge group needs a name that no other group and no model has")
		}
		names[name] = true
		if g.GetMode() == policy.MergeMode_MERGE_MODE_UNSPECIFIED || policy.MergeMode_name[int32(g.GetMode())] == "" {
			v.add(CodeMerge, name, "the mode %v is none", g.GetMode())
		}
		if len(g.GetMembers()) < 2 {
			v.add(CodeMerge, name, "%d members are too few to merge", len(g.GetMembers()))
		}
		for _, member := range g.GetMembers() {
			if v.x.Model(member) == nil {
				v.add(CodeUnknown, name, "the member %q is not in the snapshot", member)
				continue
			}
			if other, twice := memberOf[member]; twice {
				v.add(CodeMerge, name, "the member %s is in group %s already", member, other)
			}
			memberOf[member] = name
			if v.x.Rule(member).NeverMerge {
				v.add(CodeConstraint, member, "must never be merged, and is in group %s", name)
			}
		}
	}
}

// segments checks that the segments of a model are numbered without a gap.
func (v *validator) segments() {
	names := make(map[string]bool)
	indices := make(map[string]map[uint32]bool)
	counts := make(map[string]uint32)
	var order []string
	for _, g := range v.p.GetSegments() {
		name, model := g.GetName(), g.GetModel()
		if name == "" || names[name] || v.x.Model(name) != nil {
			v.add(CodeName, name, "a segment needs a name that no other segment and no model has")
		}
		names[name] = true
		if v.x.Model(model) == nil {
			v.add(CodeUnknown, name, "the model %q is not in the snapshot", model)
		}
		if indices[model] == nil {
			indices[model], counts[model] = make(map[uint32]bool), g.GetCount()
			order = append(order, model)
		}
		if g.GetCount() != counts[model] {
			v.add(CodeSegment, name, "says that %s has %d segments, another says %d", model, g.GetCount(), counts[model])
		}
		if g.GetIndex() >= g.GetCount() || indices[model][g.GetIndex()] {
			v.add(CodeSegment, name, "the index %d of %d is out of range or used twice", g.GetIndex(), g.GetCount())
		}
		indices[model][g.GetIndex()] = true
	}
	for _, model := range order {
		if len(indices[model]) != int(counts[model]) {
			v.add(CodeSegment, model, "%d of %d segments are there", len(indices[model]), counts[model])
		}
	}
}

// partitions checks every partition by itself, and notes who is where.
func (v *validator) partitions() {
	ids := make(map[string]bool)
	for _, part := range v.p.GetPartitions() {
		id := part.GetId()
		switch {
		case !idForm.MatchString(id):
			v.add(CodeName, id, "a partition's id has 1 to 63 letters, digits, dots, dashes and underscores, and begins with none of dot and dash")
		case ids[id]:
			v.add(CodeName, id, "two partitions have this id")
		}
		ids[id] = true
		gpu := v.x.GPU(part.GetNode(), part.GetGpu())
		switch {
		case gpu == nil:
			v.add(CodeUnknown, id, "the GPU %q of node %q is not in the snapshot", part.GetGpu(), part.GetNode())
		case gpu.GetUnavailable():
			v.add(CodeUnavailable, id, "the GPU %s may not be used", part.GetGpu())
		}
		if share := part.GetThreadPercentage(); share < 1 || share > 100 {
			v.add(CodeShare, id, "the thread percentage %d is not from 1 to 100", share)
		}
		if limit := part.GetMemoryLimitBytes(); limit > 0 {
			if need := v.x.PartitionBytes(v.p, part); need > limit {
				v.add(CodeMemory, id, "its instances need %d bytes, its limit is %d", need, limit)
			}
		}
		v.instances(part, gpu)
	}
}

func (v *validator) instances(part *policy.Partition, gpu *policy.GPU) {
	keys := make(map[string]bool)
	// whole is false for a model that is here in segments.
	whole := make(map[string]bool)
	for _, in := range part.GetInstances() {
		models := v.p.ModelsOf(in)
		if in.Key() == "" {
			v.add(CodeUnknown, part.GetId(), "an instance names no model, merge group or segment")
			continue
		}
		if len(models) == 0 {
			v.add(CodeUnknown, part.GetId(), "the plan does not describe %s", in.Label())
		}
		_, segment := in.GetWhat().(*policy.Instance_Segment)
		if keys[in.Key()] {
			v.add(CodeDuplicate, part.GetId(), "holds %s twice", in.Label())
			continue
		}
		keys[in.Key()] = true
		if in.GetThreadPercentage() > 100 {
			v.add(CodeShare, part.GetId(), "the thread percentage %d of %s is above 100", in.GetThreadPercentage(), in.Label())
		}
		for _, name := range models {
			if v.x.Model(name) == nil {
				if _, direct := in.GetWhat().(*policy.Instance_Model); direct {
					v.add(CodeUnknown, part.GetId(), "the model %q is not in the snapshot", name)
				}
				continue
			}
			// The segments of one model may lie side by side, anything else of it
			// only once.
			wasWhole, twice := whole[name]
			if twice && (wasWhole || !segment) {
				v.add(CodeDuplicate, part.GetId(), "serves %s twice", name)
				continue
			}
			if !twice {
				v.places[name] = append(v.places[name], part)
			}
			whole[name] = !segment
			v.batch(part, in, name)
			if gpu != nil && !segment {
				v.latency(part, in, gpu, name)
			}
		}
	}
}

func (v *validator) batch(part *policy.Partition, in *policy.Instance, name string) {
	if limit := max(1, v.x.Model(name).GetMaxBatchSize()); in.GetMaxBatch() > limit {
		v.add(CodeMaxBatch, part.GetId(), "the batch %d of %s is above the model's %d", in.GetMaxBatch(), name, limit)
	}
}

func (v *validator) latency(part *policy.Partition, in *policy.Instance, gpu *policy.GPU, name string) {
	share := part.GetThreadPercentage()
	if own := in.GetThreadPercentage(); own > 0 {
		share = own
	}
	if v.x.Meets(name, gpu.GetType(), share) || v.x.Rule(name).Pinned || v.x.Hopeless(name) {
		return
	}
	l, _ := v.x.UsableProfile(name, gpu.GetType()).Upper(1, share)
	v.add(CodeLatency, part.GetId(), "one row of %s takes %.0f us at %d%% of a %s, its SLO is %d us",
		name, l, share, gpu.GetType(), v.x.Model(name).GetSloUs())
}

// gpus checks what the partitions of one GPU add up to.
func (v *validator) gpus() {
	for _, g := range v.x.GPUs() {
		var share, bytes uint64
		for _, part := range v.p.GetPartitions() {
			if part.GetNode() == g.Node && part.GetGpu() == g.GetId() {
				share += uint64(part.GetThreadPercentage())
				if need := v.x.PartitionBytes(v.p, part); bytes+need >= bytes {
					bytes += need
				} else {
					bytes = ^uint64(0)
				}
			}
		}
		if share > 100 {
			v.add(CodeShare, g.GetId(), "the thread percentages of its partitions add up to %d", share)
		}
		if memory := g.GetMemoryBytes(); memory > 0 && bytes > memory {
			v.add(CodeMemory, g.GetId(), "its partitions need %d bytes, it has %d", bytes, memory)
		}
	}
}

// dispatch checks that every entry is about something of the plan, once, and
// that the request path runs it.
func (v *validator) dispatch() {
	seen := make(map[string]bool)
	for _, d := range v.p.GetDispatch() {
		name := d.GetModel()
		isGroup := slices.ContainsFunc(v.p.GetMergeGroups(), func(g *policy.MergeGroup) bool { return g.GetName() == name })
		if v.x.Model(name) == nil && !isGroup {
			v.add(CodeUnknown, name, "has a dispatch discipline and is no model or merge group")
		}
		if seen[name] {
			v.add(CodeDuplicate, name, "has two dispatch disciplines")
		}
		seen[name] = true
		known := len(v.found)
		if !slices.Contains(Disciplines(), d.GetDiscipline()) {
			v.add(CodeDispatch, name, "the discipline %q is not one of %s", d.GetDiscipline(), strings.Join(Disciplines(), ", "))
		}
		if d.GetDropPolicy() != "" && !slices.Contains(DropPolicies(), d.GetDropPolicy()) {
			v.add(CodeDispatch, name, "the drop policy %q is not one of %s", d.GetDropPolicy(), strings.Join(DropPolicies(), ", "))
		}
		for _, check := range v.checks {
			if err := check(d); err != nil && len(v.found) == known {
				v.add(CodeDispatch, name, "%v", err)
			}
		}
	}
}
