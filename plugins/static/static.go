// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package static

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/pack"
)

// Name of the policy.
const Name = "static"

const version = "1.0.0"

// Parameters; Describe documents them.
const (
	paramDiscipline  = "discipline"
	paramDisciplines = "disciplines"
	paramDropPolicy  = "drop_policy"
	paramDispatch    = "dispatch_parameters"
	paramPartitions  = "partitions"
	paramPlacement   = "placement"

	defaultDiscipline = "adaptive"
)

func dropPolicies() []string { return []string{"window", "prefix", "thrift", "reserve", "none"} }

func disciplines() []string {
	return []string{"adaptive", "deferred", "eager", "timeout", "duty-cycle", "target"}
}

// Policy is the static policy; it has no state.
type Policy struct{}

var _ policy.Policy = Policy{}

// New returns the policy.
func New() Policy { return Policy{} }

// Describe implements [policy.Policy].
func (Policy) Describe(context.Context) (*policy.Description, error) {
	return &policy.Description{
		Name:        Name,
		Version:     version,
		Summary:     "Models lie where conch.yaml puts them; the others are on every GPU on which they fit.",
		Disciplines: disciplines(),
		Parameters: []*policy.Parameter{
			{Name: paramPlacement, Type: policy.TypeString,
				Documentation: "Where models lie: \"resnet50 = gpu0, gpu1; bert = gpu2.1\". A GPU means all its partitions. A model that is not named lies wherever it fits."},
			{Name: paramPartitions, Type: policy.TypeString,
				Documentation: "Thread percentages of the partitions of a GPU: \"gpu0 = 50, 50; * = 100\", * being every GPU not named. One partition of 100 where nothing is set. The partitions of gpu0 = 50, 50 are gpu0.0 and gpu0.1; a single one is called like its GPU."},
			{Name: paramDiscipline, Type: policy.TypeString, DefaultValue: defaultDiscipline, Values: disciplines(),
				Documentation: "Dispatch discipline of every model: " + strings.Join(disciplines(), ", ") + "."},
			{Name: paramDisciplines, Type: policy.TypeString,
				Documentation: "Dispatch discipline of some models: \"resnet50 = deferred; bert = timeout\"."},
			{Name: paramDropPolicy, Type: policy.TypeString, Values: dropPolicies(),
				Documentation: "Drop policy of every model: window, prefix, thrift, reserve or none. Empty: the discipline's own."},
			{Name: paramDispatch, Type: policy.TypeString,
				Documentation: "Parameters of the disciplines: \"timeout.max_queue_delay = 500us; NAME = VALUE\"; a name without a discipline is passed to all of them."},
		},
	}, nil
}

// Plan implements [policy.Policy]. It fails only where a parameter does not
// parse.
func (Policy) Plan(ctx context.Context, s *policy.Snapshot, _ policy.Host) (*policy.Plan, error) {
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("static: %w", err)
	}
	set, err := parseSettings(s.GetParameters())
	if err != nil {
		return nil, err
	}
	x := policy.NewIndex(s)
	floor := newFloor(x, set)
	floor.place()

	plan := &policy.Plan{SnapshotRevision: s.GetRevision(), Policy: Name, PolicyVersion: version}
	for _, slot := range floor.slots {
		if len(slot.partition.GetInstances()) > 0 || floor.demanded && !slot.gpu.GetUnavailable() {
			plan.Partitions = append(plan.Partitions, slot.partition)
		}
	}
	floor.explain(plan)
	dispatch(plan, set, floor)
	pack.Divide(x, plan)
	x.Merge(plan)
	for _, app := range s.GetApps() {
		route := &policy.AppRoute{App: app.GetName()}
		for _, v := range app.GetVariants() {
			if floor.Count(v.GetModel()) > 0 {
				route.Variants = append(route.Variants, &policy.WeightedVariant{
					Model: v.GetModel(), Weight: 1, Accuracy: v.GetAccuracy(), LatencyUs: x.Model(v.GetModel()).GetSloUs(),
				})
			}
		}
		plan.AppRoutes = append(plan.AppRoutes, route)
	}
	for _, h := range floor.Hosts {
		if h.Used() {
			plan.PredictedCostPerHour += h.CostPerHour
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return plan, nil
}

// dispatch gives every placed model its discipline.
func dispatch(plan *policy.Plan, set *settings, floor *floor) {
	var placed []string
	for _, m := range floor.Snapshot().GetModels() {
		if floor.Count(m.GetName()) > 0 {
			placed = append(placed, m.GetName())
		}
	}
	slices.Sort(placed)
	for _, model := range placed {
		d := &policy.Dispatch{Model: model, Discipline: set.discipline, DropPolicy: set.dropPolicy}
		if own, ok := set.perModel[model]; ok {
			d.Discipline = own
		}
		for _, parameters := range []map[string]string{set.dispatch[""], set.dispatch[d.Discipline]} {
			if d.Parameters == nil {
				d.Parameters = maps.Clone(parameters)
			} else {
				maps.Copy(d.Parameters, parameters)
			}
		}
		plan.Dispatch = append(plan.Dispatch, d)
	}
}
