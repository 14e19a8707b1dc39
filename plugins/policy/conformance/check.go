// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"slices"

	"github.com/conch-serving/conch/plugins/policy"
)

// Check lists what is wrong with a plan as an answer to a snapshot; it is empty
// for a good plan.
func Check(s *policy.Snapshot, p *policy.Plan) []string {
	c := &checker{s: s, p: p, x: policy.NewIndex(s)}
	if p.GetSnapshotRevision() != s.GetRevision() {
		c.say("answers snapshot %d instead of %d", p.GetSnapshotRevision(), s.GetRevision())
	}
	c.partitions()
	c.gpus()
	for _, m := range s.GetModels() {
		c.placedOrRefused(m)
	}
	for _, o := range s.GetConstraints() {
		for _, m := range s.GetModels() {
			if o.GetModel() == policy.AnyModel || o.GetModel() == m.GetName() {
				c.obeyed(o, m.GetName())
			}
		}
	}
	c.rates()
	c.names()
	return c.wrong
}

type checker struct {
	s     *policy.Snapshot
	p     *policy.Plan
	x     *policy.Index
	wrong []string
}

func (c *checker) say(format string, args ...any) {
	c.wrong = append(c.wrong, fmt.Sprintf(format, args...))
}

func (c *checker) gpuOf(part *policy.Partition) *policy.GPU {
	for _, n := range c.s.GetNodes() {
		for _, g := range n.GetGpus() {
			if part.On(n.GetName(), g.GetId()) {
				return g
			}
		}
	}
	return nil
}

func (c *checker) partitions() {
	ids := make([]string, 0, len(c.p.GetPartitions()))
	for _, part := range c.p.GetPartitions() {
		if part.GetId() == "" || slices.Contains(ids, part.GetId()) {
			c.say("partition id %q is empty or used twice", part.GetId())
		}
		ids = append(ids, part.GetId())
		if part.OnCPU() {
			if c.x.CPU(part.GetNode()) == nil {
				c.say("partition %s lies on the CPUs of node %q, which may run no models", part.GetId(), part.GetNode())
			}
		} else if g := c.gpuOf(part); g == nil || g.GetUnavailable() {
			c.say("partition %s lies on GPUs %q of node %q, which are not there or may not be used", part.GetId(), part.GetGpus(), part.GetNode())
		}
		if part.GetThreadPercentage() < 1 || part.GetThreadPercentage() > 100 {
			c.say("partition %s has a share of %d", part.GetId(), part.GetThreadPercentage())
		}
		if limit := part.GetMemoryLimitBytes(); limit > 0 && c.x.PartitionBytes(c.p, part) > limit {
			c.say("partition %s holds more than its limit", part.GetId())
		}
		var here []string
		for _, in := range part.GetInstances() {
			models := c.p.ModelsOf(in)
			if len(models) == 0 {
				c.say("partition %s holds %s, which the plan does not describe", part.GetId(), in.GetModel())
			}
			for _, name := range models {
				m := c.model(name)
				if m == nil {
					c.say("partition %s holds %q, which does not exist", part.GetId(), name)
					continue
				}
				if in.GetMaxBatch() > max(1, m.GetMaxBatchSize()) {
					c.say("partition %s gives %s a batch of %d", part.GetId(), name, in.GetMaxBatch())
				}
				if slices.Contains(here, name) {
					c.say("partition %s holds %s twice", part.GetId(), name)
				}
				here = append(here, name)
			}
		}
		for _, name := range here {
			for _, d := range c.model(name).GetDependsOn() {
				if !slices.Contains(here, d) {
					c.say("partition %s holds %s without %s, which it calls", part.GetId(), name, d)
				}
			}
		}
	}
}

func (c *checker) model(name string) *policy.Model {
	for _, m := range c.s.GetModels() {
		if m.GetName() == name {
			return m
		}
	}
	return nil
}

func (c *checker) gpus() {
	for _, n := range c.s.GetNodes() {
		for _, g := range n.GetGpus() {
			var share uint32
			var bytes uint64
			for _, part := range c.p.GetPartitions() {
				if part.On(n.GetName(), g.GetId()) {
					share += part.GetThreadPercentage()
					bytes += c.x.HostBytes(c.p, part)
				}
			}
			if share > 100 {
				c.say("the shares of GPU %s add up to %d", g.GetId(), share)
			}
			if g.GetMemoryBytes() > 0 && bytes > g.GetMemoryBytes() {
				c.say("GPU %s has %d bytes and holds %d", g.GetId(), g.GetMemoryBytes(), bytes)
			}
		}
	}
}

// refusal is the plan's entry for a model that has no place or too few.
func (c *checker) refusal(model string) *policy.Unplaced {
	for _, u := range c.p.GetUnplaced() {
		if u.GetModel() == model {
			return u
		}
	}
	return nil
}

func (c *checker) placedOrRefused(m *policy.Model) {
	u := c.refusal(m.GetName())
	if u == nil {
		if len(c.p.PartitionsOf(m.GetName())) == 0 {
			c.say("model %s is neither placed nor refused", m.GetName())
		}
		return
	}
	var counted uint32
	for _, r := range u.GetRefusals() {
		counted += r.GetCount()
	}
	if u.GetText() == "" || counted > u.GetTried() {
		c.say("model %s is refused by %d of %d, with the reason %q", m.GetName(), counted, u.GetTried(), u.GetText())
	}
}

// obeyed checks one order of the operator about one model. Orders about where
// a model must not be always hold; one about where it must be may be broken
// with a reason, for the world may not allow it.
func (c *checker) obeyed(o *policy.Constraint, model string) {
	places := c.p.PartitionsOf(model)
	excused := c.refusal(model) != nil
	for _, part := range places {
		if len(o.GetGpus()) > 0 && !slices.Contains(o.GetGpus(), part.GPU()) {
			c.say("model %s may not be on %s", model, part.GPU())
		}
		share := part.GetThreadPercentage()
		if share < o.GetMinThreadPercentage() || o.GetMaxThreadPercentage() > 0 && share > o.GetMaxThreadPercentage() {
			c.say("model %s may not have %d%%", model, share)
		}
		for _, in := range part.GetInstances() {
			for _, other := range c.p.ModelsOf(in) {
				if o.GetExclusive() && other != model && !c.calls(model, other) && !c.calls(other, model) {
					c.say("model %s wants %s for itself, %s is there", model, part.GetId(), other)
				}
			}
			if o.GetNeverMerge() && c.p.Recipe(in.GetModel()).GetKind() == policy.RecipeKind_RECIPE_KIND_MERGE && slices.Contains(c.p.ModelsOf(in), model) {
				c.say("model %s must not be merged", model)
			}
		}
	}
	if limit := int(o.GetMaxInstances()); limit > 0 && len(places) > limit {
		c.say("model %s has %d places, %d are allowed", model, len(places), limit)
	}
	if n := len(places); n > 0 && n < int(o.GetMinInstances()) && !excused {
		c.say("model %s has %d places, %d are wanted", model, n, o.GetMinInstances())
	}
	if o.GetPinned() {
		c.stays(model, places, excused)
	}
}

func (c *checker) calls(model, other string) bool {
	return slices.ContainsFunc(c.x.Requires(model), func(m *policy.Model) bool { return m.GetName() == other })
}

func (c *checker) stays(model string, places []*policy.Partition, excused bool) {
	var was []string
	for _, part := range c.s.GetCurrent().PartitionsOf(model) {
		if g := c.gpuOf(part); g != nil && !g.GetUnavailable() {
			was = append(was, part.GetId())
		}
	}
	if len(was) == 0 {
		return
	}
	for _, part := range places {
		if !slices.Contains(was, part.GetId()) {
			c.say("model %s is pinned and moved to %s", model, part.GetId())
		}
	}
	if len(places) < len(was) && !excused {
		c.say("model %s is pinned and left a partition", model)
	}
}

// rates checks what the plan counts on: the rates of several instances of a model add up to its load, or to less where a reason says by how much
// (policy.Short) or the model has too few places.
func (c *checker) rates() {
	for _, m := range c.s.GetModels() {
		load := max(m.GetRowRate(), m.GetRate())
		sum, instances, merged := 0.0, 0, false
		for _, part := range c.p.GetPartitions() {
			for _, in := range part.GetInstances() {
				if !slices.Contains(c.p.ModelsOf(in), m.GetName()) {
					continue
				}
				instances++
				sum += in.GetRate()
				merged = merged || in.GetModel() != m.GetName()
			}
		}
		variant := slices.ContainsFunc(c.s.GetApps(), func(a *policy.App) bool {
			return slices.ContainsFunc(a.GetVariants(), func(v *policy.Variant) bool { return v.GetModel() == m.GetName() })
		})
		if load <= 0 || instances < 2 || merged || variant {
			continue // a merge group's rate is of all its members, and a variant's of what the plan will send to it
		}
		explained := c.refusal(m.GetName()) != nil || slices.ContainsFunc(c.p.GetReasons(), func(r *policy.Reason) bool { return r.ShortOf() == m.GetName() })
		switch {
		case sum > 1.02*load:
			c.say("the %d instances of model %s are to serve %.4g rows/s, and it has %.4g", instances, m.GetName(), sum, load)
		case sum < .98*load && !explained:
			c.say("the rates of the %d instances of model %s add up to %.4g of its %.4g rows/s, and no reason says that less is counted on", instances, m.GetName(), sum, load)
		}
	}
}

func (c *checker) names() {
	named := func(what, name string) {
		if c.model(name) == nil && c.p.Recipe(name) == nil {
			c.say("%s is about %q, which does not exist", what, name)
		}
	}
	for _, d := range c.p.GetDispatch() {
		named("a discipline", d.GetModel())
	}
	for _, d := range c.p.GetPredictions() {
		named("a prediction", d.GetModel())
	}
	for _, u := range c.p.GetUnplaced() {
		named("a refusal", u.GetModel())
	}
	for _, r := range c.p.GetReasons() {
		if r.GetModel() != "" {
			named("a reason", r.GetModel())
		}
	}
}
