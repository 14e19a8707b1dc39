// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
)

// Disciplines are the dispatch disciplines that the request path runs, a subset
// of those that the contract names.
func Disciplines() []string {
	return []string{"adaptive", "deferred", "eager", "timeout", "duty-cycle", "target"}
}

// SimulatedOnly says why a discipline of the contract is only simulated; empty for others.
func SimulatedOnly(discipline string) string {
	switch discipline {
	case "earliest-latest":
		return "it counts on executions that nothing disturbs"
	case "flex":
		return "Triton cannot abort an execution"
	case "segment":
		return "Triton runs a model's graph as a whole, not groups of its operators"
	}
	return ""
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
// violation, so that a policy's author sees all at once, the first 200 of them, but for a
// plan that says more than such a snapshot can need: of that it looks at nothing else.
//
// A model that misses its SLO where it is counts only where a usable profile
// says so, where the operator did not pin it there, and where some GPU of the
// snapshot would do: a model that can meet its SLO nowhere is served as well as
// can be rather than not at all ([policy.Index.Hopeless]).
//
// A planned rate is a violation where the profile says that the partition
// cannot carry it; carrying less than the present load is none, for overload
// happens.
//
// What the contract can say and this build cannot serve is a violation
// ([CodeUnsupported]), never ignored. Dispatch entries must be of [Disciplines]
// and [DropPolicies], and pass the checks that the caller adds.
func Validate(s *policy.Snapshot, p *policy.Plan, checks ...DispatchCheck) Violations {
	v := &validator{x: policy.NewIndex(s), s: s, p: p, places: make(map[string][]*policy.Partition), checks: checks}
	if v.excess(); len(v.found) > 0 {
		return v.found
	}
	if p.GetSnapshotRevision() != s.GetRevision() {
		v.add(CodeRevision, "", "answers snapshot %d, asked was %d", p.GetSnapshotRevision(), s.GetRevision())
	}
	v.recipes()
	v.partitions()
	v.hosts()
	v.models()
	v.capacity()
	v.dispatch()
	v.subClusters()
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
	switch {
	case len(v.found) < maxViolations:
		v.found = append(v.found, Violation{Code: code, Subject: subject, Text: fmt.Sprintf(format, args...)})
	case len(v.found) == maxViolations:
		v.found = append(v.found, Violation{Code: CodeExcess, Text: fmt.Sprintf("there are more; the first %d are listed", maxViolations)})
	}
}

// served reports whether something in the plan may be about the name: a model of
// the snapshot, or a derived model that the plan wants.
func (v *validator) served(name string) bool {
	return v.x.Model(name) != nil || v.p.Recipe(name) != nil
}

// recipes checks that every derived model that is wanted is on offer as it is
// written, may be made, and that a member is in one of them.
func (v *validator) recipes() {
	names, memberOf := make(map[string]bool), make(map[string]string)
	for _, r := range v.p.GetRecipes() {
		name := r.GetName()
		offer := v.x.Derived(name)
		switch {
		case name == "" || names[name]:
			v.add(CodeName, name, "a recipe needs a name that no other recipe has")
		case offer == nil:
			v.add(CodeRecipe, name, "the snapshot offers no such derived model")
		case offer.GetRefusal() != "":
			v.add(CodeRecipe, name, "it cannot be made: %s", offer.GetRefusal())
		case !proto.Equal(offer.GetRecipe(), r):
			v.add(CodeRecipe, name, "the recipe is not the one on offer: %v", offer.GetRecipe())
		}
		names[name] = true
		switch {
		case r.GetKind() == policy.RecipeKind_RECIPE_KIND_SEGMENT:
			v.add(CodeUnsupported, name, "segments run in the simulator only")
		case r.GetKind() != policy.RecipeKind_RECIPE_KIND_MERGE:
			v.add(CodeRecipe, name, "the kind %v is none", r.GetKind())
		case r.GetMode() != policy.MergeMode_MERGE_MODE_BACKBONE:
			v.add(CodeUnsupported, name, "the mode %v cannot be served: members with different batches have no batch dimension that Triton knows; ask for the mode backbone", r.GetMode())
		case len(r.GetMembers()) < 2:
			v.add(CodeRecipe, name, "%d members are too few to merge", len(r.GetMembers()))
		}
		for _, member := range r.GetMembers() {
			if v.x.Model(member) == nil {
				v.add(CodeUnknown, name, "the member %q is not in the snapshot", member)
				continue
			}
			if other, twice := memberOf[member]; twice {
				v.add(CodeRecipe, name, "the member %s is in %s already", member, other)
			}
			memberOf[member] = name
			if v.x.Rule(member).NeverMerge {
				v.add(CodeConstraint, member, "must never be merged, and is in %s", name)
			}
		}
	}
}

// partitions checks every partition by itself, and notes the places of the models.
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
		v.host(part)
		if share := part.GetThreadPercentage(); share < 1 || share > 100 {
			v.add(CodeShare, id, "the thread percentage %d is not from 1 to 100", share)
		}
		if limit := part.GetMemoryLimitBytes(); limit > 0 {
			if need := v.x.PartitionBytes(v.p, part); need > limit {
				v.add(CodeMemory, id, "its instances need %d bytes, its limit is %d", need, limit)
			}
		}
		v.instances(part)
	}
}

// host checks that a partition lies on something that is there and may be used.
func (v *validator) host(part *policy.Partition) {
	id := part.GetId()
	switch gpus := part.GetGpus(); {
	case len(gpus) > 1:
		v.add(CodeUnsupported, id, "it wants a share of %d GPUs; this build serves a partition on one", len(gpus))
	case len(gpus) == 1:
		switch gpu := v.x.GPUOf(part); {
		case gpu == nil:
			v.add(CodeUnknown, id, "the GPU %q of node %q is not in the snapshot", gpus[0], part.GetNode())
		case gpu.GetUnavailable():
			v.add(CodeUnavailable, id, "the GPU %s may not be used", gpus[0])
		}
	case v.x.CPU(part.GetNode()) == nil:
		v.add(CodeUnknown, id, "it names no GPU, and the CPUs of node %q may run no models", part.GetNode())
	}
}

// instances checks what a partition holds.
func (v *validator) instances(part *policy.Partition) {
	keys := make(map[string]bool)
	here := make(map[string]bool)
	for _, in := range part.GetInstances() {
		name := in.GetModel()
		if name == "" {
			v.add(CodeUnknown, part.GetId(), "an instance names no model")
			continue
		}
		if keys[name] {
			v.add(CodeDuplicate, part.GetId(), "holds %s twice", name)
			continue
		}
		keys[name] = true
		if in.GetThreadPercentage() > 100 {
			v.add(CodeShare, part.GetId(), "the thread percentage %d of %s is above 100", in.GetThreadPercentage(), name)
		}
		v.unsupported(part, in)
		for _, model := range v.p.ModelsOf(in) {
			if v.x.Model(model) == nil {
				if v.p.Recipe(name) == nil {
					v.add(CodeUnknown, part.GetId(), "the model %q is not in the snapshot", model)
				}
				continue
			}
			if here[model] {
				v.add(CodeDuplicate, part.GetId(), "serves %s twice", model)
				continue
			}
			here[model] = true
			v.places[model] = append(v.places[model], part)
			v.batch(part, in, model)
			v.latency(part, in, model)
		}
	}
}

// unsupported refuses what an instance may ask for and this build cannot serve.
func (v *validator) unsupported(part *policy.Partition, in *policy.Instance) {
	switch in.GetRole() {
	case policy.Role_ROLE_UNSPECIFIED, policy.Role_ROLE_SERVE:
	default:
		v.add(CodeUnsupported, part.GetId(), "the role %v of %s; this build has instances that serve", in.GetRole(), in.GetModel())
	}
	if in.GetVersion() != 0 {
		v.add(CodeUnsupported, part.GetId(), "version %d of %s alone; this build serves the versions that its configuration names", in.GetVersion(), in.GetModel())
	}
	if in.GetSliceUs() != 0 || in.GetSlot() != 0 {
		v.add(CodeUnsupported, part.GetId(), "a slot or slice of %s; rounds are the discipline duty-cycle's and have its parameters", in.GetModel())
	}
	if rate := in.GetRate(); !(rate >= 0) || math.IsInf(rate, 0) {
		v.add(CodeCapacity, part.GetId(), "the rate %v of %s is none", rate, in.GetModel())
	}
}

func (v *validator) batch(part *policy.Partition, in *policy.Instance, name string) {
	if limit := max(1, v.x.Model(name).GetMaxBatchSize()); in.GetMaxBatch() > limit {
		v.add(CodeMaxBatch, part.GetId(), "the batch %d of %s is above the model's %d", in.GetMaxBatch(), name, limit)
	}
}

func shareOf(part *policy.Partition, in *policy.Instance) uint32 {
	if own := in.GetThreadPercentage(); own > 0 {
		return own
	}
	return part.GetThreadPercentage()
}

func (v *validator) latency(part *policy.Partition, in *policy.Instance, name string) {
	share, on := shareOf(part, in), v.x.TypeOf(part)
	if v.x.Meets(name, on, share) || v.x.Rule(name).Pinned || v.x.Hopeless(name) {
		return
	}
	l, _ := v.x.UsableProfile(name, on).Upper(1, share)
	v.add(CodeLatency, part.GetId(), "one row of %s takes %.0f us at %d%% of a %s, its SLO is %d us",
		name, l, share, on, v.x.Model(name).GetSloUs())
}

// hosts checks what the partitions of one GPU, and of one node's CPUs, add up to.
func (v *validator) hosts() {
	type host struct{ node, gpu string }
	type load struct{ share, bytes uint64 }
	loads := make(map[host]*load)
	at := func(h host) *load {
		if loads[h] == nil {
			loads[h] = &load{}
		}
		return loads[h]
	}
	for _, part := range v.p.GetPartitions() {
		l := at(host{part.GetNode(), part.GPU()})
		l.share += uint64(part.GetThreadPercentage())
		if need := v.x.HostBytes(v.p, part); l.bytes+need >= l.bytes {
			l.bytes += need
		} else {
			l.bytes = math.MaxUint64
		}
	}
	check := func(subject string, l *load, memory uint64) {
		if l.share > 100 {
			v.add(CodeShare, subject, "the thread percentages of its partitions add up to %d", l.share)
		}
		if memory > 0 && l.bytes > memory {
			v.add(CodeMemory, subject, "its partitions need %d bytes, contexts of their processes included; it has %d", l.bytes, memory)
		}
	}
	for _, g := range v.x.GPUs() {
		check(g.GetId(), at(host{g.Node, g.GetId()}), g.GetMemoryBytes())
	}
	for _, n := range v.s.GetNodes() {
		if cpu := n.GetCpu(); cpu != nil {
			check("the CPUs of "+n.GetName(), at(host{n.GetName(), ""}), cpu.GetMemoryBytes())
		}
	}
}

// dispatch checks that every entry is about something of the plan, once, and
// that the request path runs it.
func (v *validator) dispatch() {
	seen := make(map[string]bool)
	for _, d := range v.p.GetDispatch() {
		name := d.GetModel()
		if !v.served(name) {
			v.add(CodeUnknown, name, "has a dispatch discipline and is no model")
		}
		if seen[name] {
			v.add(CodeDuplicate, name, "has two dispatch disciplines")
		}
		seen[name] = true
		known := len(v.found)
		if why := SimulatedOnly(d.GetDiscipline()); why != "" {
			v.add(CodeDispatch, name, "the discipline %q is for simulations only: %s; there are %s", d.GetDiscipline(), why, strings.Join(Disciplines(), ", "))
		} else if !slices.Contains(Disciplines(), d.GetDiscipline()) {
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
