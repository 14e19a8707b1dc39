// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/conch-serving/conch/internal/onnx"
)

// Mode is a way to merge.
type Mode string

// The modes; the package documentation says what they are.
const (
	Backbone      Mode = "backbone"
	SuperOp       Mode = "superop"
	SuperOpPadded Mode = "superop-padded"
)

// Modes are all of them.
func Modes() []Mode { return []Mode{Backbone, SuperOp, SuperOpPadded} }

// NotServed is why a super-operator is made and measured, but not served.
const NotServed = "its members' batches differ in length, so it has no batch dimension that Triton knows; measured, not served"

// Cost predicts how long one execution of a model takes with so many rows. The model's weights may not be there: only the graph counts.
type Cost func(m *onnx.Model, rows int) (time.Duration, error)

// Options of Analyze. The zero value is usable.
type Options struct {
	// Cost predicts times; without it the report has bytes alone, and the gate judges by them.
	Cost Cost
	// Rows per member at which times are predicted; 8 if 0.
	Rows int
	// MinShared is the fraction of the smallest member's weights (and time, with Cost) that has to be shared for a merge to be worth
	// it; .1 if 0.
	MinShared float64
	// Similarity is the fraction of two operators' weights that has to be equal for a super-operator: USHER's omega; .4 if 0.
	Similarity float64
	// Loose puts graphs into one family whose sequences of operators differ by at most this fraction; with 0 only equal ones are.
	Loose float64
	// Progress is called as weights are read, with bytes so far and in all.
	Progress func(done, total int64)
}

func (o Options) withDefaults() Options {
	if o.Rows == 0 {
		o.Rows = 8
	}
	if o.MinShared == 0 {
		o.MinShared = .1
	}
	if o.Similarity == 0 {
		o.Similarity = .4
	}
	if o.Progress == nil {
		o.Progress = func(int64, int64) {}
	}
	return o
}

// Analysis is what Analyze found. Close it.
type Analysis struct {
	Report Report

	options Options
	graphs  []*graph
	cut     *cut
	fusion  *fusion
}

// Close closes the members' files.
func (a *Analysis) Close() error {
	var errs []error
	for _, g := range a.graphs {
		errs = append(errs, g.close())
	}
	return errors.Join(errs...)
}

// Analyze says what the members share and what each mode would save. A member that cannot be read or understood is a refusal in the
// report, not an error; errors are of the context alone.
func Analyze(ctx context.Context, members []Member, o Options) (*Analysis, error) {
	a := &Analysis{options: o.withDefaults()}
	if err := a.read(ctx, members); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	a.sameOpset()
	if len(a.Report.Refusals) == 0 && len(a.graphs) >= 2 {
		a.backbone()
		if err := a.superops(ctx); err != nil {
			return nil, errors.Join(err, a.Close())
		}
	}
	for _, mode := range Modes() {
		if a.Report.Mode(mode) == nil {
			a.Report.Modes = append(a.Report.Modes, ModeReport{Mode: mode, Reason: a.reason()})
		}
	}
	for _, g := range a.graphs {
		a.Report.unproved(g)
	}
	return a, nil
}

// reason is why no mode was looked at.
func (a *Analysis) reason() string {
	if len(a.Report.Refusals) > 0 {
		r := a.Report.Refusals[0]
		return fmt.Sprintf("%s: %s", r.Member, r.Reason)
	}
	return "a merge takes two models or more"
}

// read indexes and hashes the members.
func (a *Analysis) read(ctx context.Context, members []Member) error {
	total := int64(0)
	names := map[string]bool{}
	for _, m := range members {
		if names[m.Name] {
			a.Report.Refusals = append(a.Report.Refusals, Refusal{Member: m.Name, Reason: "another member has this name: " + m.Graph})
			continue
		}
		names[m.Name] = true
		g, err := open(m)
		if err != nil {
			a.Report.Refusals = append(a.Report.Refusals, Refusal{Member: m.Name, Reason: err.Error()})
			continue
		}
		a.graphs = append(a.graphs, g)
		total += g.weightBytes()
		if why := g.refused(); why != "" {
			a.Report.Refusals = append(a.Report.Refusals, Refusal{Member: m.Name, Reason: why})
		}
	}
	done := int64(0)
	for _, g := range a.graphs {
		err := g.hashWeights(ctx, func(n int64) {
			done += n
			a.options.Progress(done, total)
		})
		if err == nil {
			err = g.hashValues()
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			a.Report.Refusals = append(a.Report.Refusals, Refusal{Member: g.Name, Reason: err.Error()})
			continue
		}
		a.Report.Members = append(a.Report.Members, MemberReport{
			Name: g.Name, Graph: g.Graph, Nodes: len(g.order), WeightBytes: g.weightBytes(), Opset: g.model.Opsets[""], Structure: g.structure().String(),
		})
	}
	a.Report.Families = families(a.graphs, a.options.Loose)
	return nil
}

// refused is why the member as a whole cannot be merged; empty if it can.
func (g *graph) refused() string {
	switch {
	case g.batchError != nil:
		return g.batchError.Error()
	case g.model.Training:
		return "it holds training information"
	case g.model.Graph.SparseInitializers > 0:
		return "it has sparse initializers"
	case g.model.Graph.Quantization > 0:
		return "it has quantisation annotations"
	}
	return ""
}

// sameOpset refuses members of another operator set than the first: the same operator may mean another thing there.
func (a *Analysis) sameOpset() {
	for _, g := range a.graphs[min(1, len(a.graphs)):] {
		first := a.graphs[0]
		for domain, version := range g.model.Opsets {
			if v, has := first.model.Opsets[domain]; has && v != version {
				a.Report.Refusals = append(a.Report.Refusals, Refusal{
					Member: g.Name, Reason: fmt.Sprintf("it is of operator set %d, %s of %d: convert one (onnx.version_converter)", version, first.Name, v),
				})
			}
		}
	}
}

// backbone reports on the cut.
func (a *Analysis) backbone() {
	r := ModeReport{Mode: Backbone, Serves: true}
	for _, g := range a.graphs {
		r.SeparateBytes += g.weightBytes()
	}
	c, err := separate(a.graphs)
	if err != nil {
		r.Reason = err.Error()
		a.Report.Modes = append(a.Report.Modes, r)
		return
	}
	r.SharedNodes = len(c.backbone)
	r.SharedBytes = c.members[0].bytesOf(c.backbone)
	r.MergedBytes = r.SharedBytes
	smallest := a.graphs[0].weightBytes()
	for i, g := range c.members {
		r.MergedBytes += g.bytesOf(c.heads[i].nodes)
		smallest = min(smallest, g.weightBytes())
	}
	for _, name := range c.frontier {
		r.Frontier = append(r.Frontier, name+": "+c.members[0].fact(name).String())
	}
	switch {
	case len(c.frontier) == 0:
		r.Reason = "the members compute nothing alike from their inputs on: " + a.firstDifference()
	case float64(r.SharedBytes) < a.options.MinShared*float64(smallest):
		r.Reason = fmt.Sprintf("only %d of %d bytes of weights lie in what the members compute alike; %s", r.SharedBytes, smallest, a.firstDifference())
	default:
		if err := c.servable(); err != nil {
			r.Reason = err.Error()
			break
		}
		a.cut = c
		r.Feasible = true
		a.predict(&r, c)
	}
	a.Report.Modes = append(a.Report.Modes, r)
}

// predict compares the time of one execution of each member with one of the backbone for all of them and one of each head.
func (a *Analysis) predict(r *ModeReport, c *cut) {
	if a.options.Cost == nil {
		return
	}
	k := a.options.Rows
	total := func(models []*onnx.Model, rows ...int) (sum time.Duration, err error) {
		for i, m := range models {
			if m == nil {
				continue
			}
			d, err := a.options.Cost(m, rows[i])
			if err != nil {
				return 0, err
			}
			sum += d
		}
		return sum, nil
	}
	separate, merged := []*onnx.Model{}, []*onnx.Model{c.backboneModel()}
	rows, mergedRows := []int{}, []int{k * len(c.members)}
	for i, g := range c.members {
		separate, rows = append(separate, g.model), append(rows, k)
		merged, mergedRows = append(merged, c.headModel(i)), append(mergedRows, k)
	}
	before, err := total(separate, rows...)
	if err != nil {
		r.CostError = err.Error()
		return
	}
	after, err := total(merged, mergedRows...)
	if err != nil {
		r.CostError = err.Error()
		return
	}
	r.RowsPerMember, r.SeparateSeconds, r.MergedSeconds = k, before.Seconds(), after.Seconds()
	if after >= before && r.MergedBytes >= r.SeparateBytes {
		r.Feasible, r.Reason = false, "it would take as long as the members and as much memory"
	}
}

// firstDifference names the first node where the members part: one that may not be shared, if a member parts at such a one.
func (a *Analysis) firstDifference() string {
	all := shared(a.graphs)
	difference := "no node differs"
	for i, g := range a.graphs {
		at := slices.IndexFunc(g.order, func(n *onnx.Node) bool { return len(n.Outputs) > 0 && !all[g.values[n.Outputs[0]]] })
		if at < 0 {
			continue
		}
		n := g.order[at]
		if ok, why := g.shareable(n); !ok {
			return fmt.Sprintf("%s parts at %s (%s): %s", g.Name, nameOf(n), n.Op, why)
		}
		if i > 0 {
			continue
		}
		difference = fmt.Sprintf("%s parts at %s (%s)", g.Name, nameOf(n), n.Op)
		for _, name := range n.Inputs {
			if g.model.Graph.Initializer(name) != nil && !all[g.values[name]] {
				difference = fmt.Sprintf("%s, whose weight %s is its own", difference, name)
				break
			}
		}
	}
	return difference
}

// Candidates finds among many models those worth a group: models that share at least MinShared of the smaller one's weights from their
// inputs on. Models that cannot be read or followed are refusals of the report, which covers all of them.
func Candidates(ctx context.Context, members []Member, o Options) ([][]Member, Report, error) {
	a := &Analysis{options: o.withDefaults()}
	defer a.Close() //nolint:errcheck // only read from
	if err := a.read(ctx, members); err != nil {
		return nil, Report{}, err
	}
	usable := slices.DeleteFunc(slices.Clone(a.graphs), func(g *graph) bool {
		return slices.ContainsFunc(a.Report.Refusals, func(r Refusal) bool { return r.Member == g.Name }) || g.values == nil
	})
	groups := clusters(len(usable), func(i, j int) bool {
		pair := []*graph{usable[i], usable[j]}
		least := max(a.options.MinShared*float64(min(pair[0].weightBytes(), pair[1].weightBytes())), 1)
		if float64(inCommon(pair[0], pair[1])) < least {
			return false
		}
		c, err := separate(pair)
		return err == nil && len(c.frontier) > 0 && float64(pair[0].bytesOf(c.backbone)) >= least
	})
	var out [][]Member
	for _, c := range groups {
		if len(c) < 2 {
			continue
		}
		var group []Member
		for _, i := range c {
			group = append(group, usable[i].Member)
		}
		out = append(out, group)
	}
	for _, g := range usable {
		a.Report.unproved(g)
	}
	return out, a.Report, nil
}

// inCommon is the size of the weights that both have, wherever they are used: no backbone can share more.
func inCommon(a, b *graph) int64 {
	has := map[Digest]bool{}
	for _, d := range b.weights {
		has[d] = true
	}
	total := int64(0)
	for _, t := range a.model.Graph.Initializers {
		if has[a.weights[t.Name]] {
			total += t.Bytes()
		}
	}
	return total
}
