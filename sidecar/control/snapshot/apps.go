// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package snapshot

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/config"
)

// Load is what is asked of an app: rows per second, and its wishes with theirs.
type Load func(app string) (rate float64, wishes []*policy.Wish)

// Apps are those of conch.yaml, by name, with the variants that the repository has
// and that fit together.
func Apps(c *config.Config, models []*policy.Model, misfits Misfits, load Load) []*policy.App {
	known := make(map[string]bool, len(models))
	for _, m := range models {
		known[m.GetName()] = true
	}
	var all []*policy.App
	for _, name := range slices.Sorted(maps.Keys(c.Apps)) {
		a := c.Apps[name]
		app := &policy.App{Name: name, MinimumAccuracy: a.Accuracy, SloUs: cmp.Or(a.SLO, c.Defaults.SLO).Std().Microseconds()}
		app.Rate, app.Wishes = load(name)
		for _, v := range a.Variants {
			if known[v.Model] && !misfits.has(name, v.Model) {
				app.Variants = append(app.Variants, &policy.Variant{
					Model: v.Model, Accuracy: v.Accuracy, Precision: v.Precision, Places: slices.Clone(v.Places), CostPerHour: v.Cost,
				})
			}
		}
		slices.SortFunc(app.Variants, func(a, b *policy.Variant) int { return cmp.Compare(a.GetModel(), b.GetModel()) })
		all = append(all, app)
	}
	return all
}

// Misfit is a variant that conch.yaml gives an app and that is none.
type Misfit struct{ App, Model, Reason string }

// Misfits are all of them, by app and in its order.
type Misfits []Misfit

func (m Misfits) has(app, model string) bool {
	return slices.ContainsFunc(m, func(misfit Misfit) bool { return misfit.App == app && misfit.Model == model })
}

// FindMisfits lists the variants whose tensors are not those of their app's first
// variant: the requests of its clients would not be theirs. Models that the
// repository does not have, or that Triton would refuse, are not in it.
func FindMisfits(c *config.Config, files *repo.Revision) (all Misfits) {
	for _, name := range slices.Sorted(maps.Keys(c.Apps)) {
		var first *repo.Model
		for _, v := range c.Apps[name].Variants {
			m := files.Model(v.Model)
			switch {
			case m == nil || m.Err() != nil || m.Config == nil:
			case first == nil:
				first = m
			default:
				if reason := differs(m.Config, first.Config); reason != "" {
					all = append(all, Misfit{name, v.Model, fmt.Sprintf("%s, which %s has not: the variants of an app take and give the same tensors", reason, first.Name)})
				}
			}
		}
	}
	return all
}

// tensor is what a client knows of an input or output.
type tensor struct {
	name     string
	kind     tritonpb.DataType
	optional bool
	dims     string
}

// differs says what a model has in its signature and another has not; empty where
// they have the same.
func differs(a, b *tritonpb.ModelConfig) string {
	if (a.GetMaxBatchSize() > 0) != (b.GetMaxBatchSize() > 0) {
		return fmt.Sprintf("it has max_batch_size %d", a.GetMaxBatchSize())
	}
	if a.GetModelTransactionPolicy().GetDecoupled() != b.GetModelTransactionPolicy().GetDecoupled() {
		return fmt.Sprintf("it has decoupled: %v", a.GetModelTransactionPolicy().GetDecoupled())
	}
	for _, side := range []struct {
		word        string
		mine, other []tensor
	}{{"input", inputs(a), inputs(b)}, {"output", outputs(a), outputs(b)}} {
		for _, x := range side.mine {
			if !slices.Contains(side.other, x) {
				return fmt.Sprintf("it has the %s %q of type %v and dims %s", side.word, x.name, x.kind, x.dims)
			}
		}
		if len(side.mine) != len(side.other) {
			return fmt.Sprintf("it has %d %ss", len(side.mine), side.word)
		}
	}
	return ""
}

func inputs(c *tritonpb.ModelConfig) (all []tensor) {
	for _, t := range c.GetInput() {
		all = append(all, tensor{t.GetName(), t.GetDataType(), t.GetOptional(), fmt.Sprint(t.GetDims())})
	}
	return all
}

func outputs(c *tritonpb.ModelConfig) (all []tensor) {
	for _, t := range c.GetOutput() {
		all = append(all, tensor{t.GetName(), t.GetDataType(), false, fmt.Sprint(t.GetDims())})
	}
	return all
}
