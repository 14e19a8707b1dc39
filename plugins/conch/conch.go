// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/pack"
)

// Name is what the policy is called.
const Name = "conch"

const version = "1.0.0"

// Parameters.
const (
	paramHorizon  = "horizon"
	paramPatience = "patience"
	paramMinGain  = "least_gain"
)

// Policy is Conch's own placement. It has no state.
type Policy struct {
	// beginnings are the policies whose plans are tried first.
	beginnings []policy.Policy
}

var _ policy.Policy = Policy{}

// New makes the policy. Beginnings are other policies, whose plans it is never worse than on the traffic that it is asked about; one that fails
// or lacks what it needs is left out.
func New(beginnings ...policy.Policy) Policy { return Policy{beginnings: beginnings} }

// Describe implements [policy.Policy].
func (Policy) Describe(context.Context) (*policy.Description, error) {
	return &policy.Description{
		Name: Name, Version: version,
		Summary:     "Searches for the placement that serves most, starting from the other policies' plans, by simulation.",
		Needs:       []string{policy.NeedProfiles},
		Disciplines: []string{"adaptive", "deferred", "eager", "timeout", "duty-cycle", "target"}, // the last three where another policy's plan is best
		Parameters: []*policy.Parameter{
			{Name: paramHorizon, Type: policy.TypeFloat, DefaultValue: "300", Documentation: "Seconds over which a gain in goodput has to pay for the requests that a change disturbs."},
			{Name: paramPatience, Type: policy.TypeInt, DefaultValue: "4", Documentation: "Rounds of local search without a gain after which it ends before its budget is spent."},
			{Name: paramMinGain, Type: policy.TypeFloat, DefaultValue: "0.002", Documentation: "Least relative gain in goodput that counts as one."},
		},
	}, nil
}

type settings struct {
	horizon, gain float64
	patience      int
}

func read(s *policy.Snapshot) (*settings, error) {
	d, err := Policy{}.Describe(context.Background())
	if err != nil {
		return nil, err
	}
	all, err := d.Resolve(s.GetParameters())
	if err != nil {
		return nil, err
	}
	set := &settings{}
	// Resolve has seen that the texts are of their types.
	set.horizon, _ = strconv.ParseFloat(all[paramHorizon], 64)
	set.gain, _ = strconv.ParseFloat(all[paramMinGain], 64)
	set.patience, _ = strconv.Atoi(all[paramPatience])
	if set.horizon <= 0 || set.patience < 1 || set.gain < 0 {
		return nil, fmt.Errorf("conch: %s is above 0, %s at least 1, %s not below 0", paramHorizon, paramPatience, paramMinGain)
	}
	return set, nil
}

// Plan implements [policy.Policy].
func (p Policy) Plan(ctx context.Context, s *policy.Snapshot, h policy.Host) (*policy.Plan, error) {
	if err := s.Check(); err != nil {
		return nil, fmt.Errorf("conch: %w", err)
	}
	set, err := read(s)
	if err != nil {
		return nil, err
	}
	w := &world{s: s, x: policy.NewIndex(s), empty: pack.New(s)}
	candidates := w.beginnings(ctx, p.beginnings)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	search := &search{w: w, set: set, host: h, left: s.GetEvaluations()}
	if len(s.GetDerived()) > 0 && search.left > 1 {
		search.left, search.reserved = search.left-1, 1
	}
	best, err := search.best(ctx, candidates)
	if errors.Is(err, policy.ErrNoEvaluation) || err == nil && best.outcome == nil {
		// Nothing can be evaluated: the first beginning of our own making, which keeps every rule.
		only := candidates[slices.IndexFunc(candidates, func(c *candidate) bool { return c.built })]
		w.x.Merge(only.plan) // the operator names what may be merged; it takes no more of a GPU than its members
		only.plan.Reasons = append(only.plan.Reasons, &policy.Reason{Text: "nothing could be evaluated (no traffic, or no evaluations are allowed): the plan is " + only.from})
		return finish(only.plan), nil
	}
	if err != nil {
		return nil, err
	}
	if best, err = search.improve(ctx, best); err != nil {
		return nil, err
	}
	best = search.keep(best)
	if best, err = search.merged(ctx, best); err != nil {
		return nil, err
	}
	best.plan.Reasons = append(best.plan.Reasons, &policy.Reason{Text: fmt.Sprintf(
		"%s: goodput %.1f/s, %.2f%% bad, on %d GPUs; the best of %d plans that were evaluated, %d steps of local search brought something",
		best.from, best.outcome.GetGoodput(), 100*best.outcome.GetBadRate(), best.outcome.GetGpus(), search.evaluated, search.steps)})
	for _, m := range best.outcome.GetModels() {
		best.plan.Predictions = append(best.plan.Predictions, &policy.Prediction{
			Model: m.GetModel(), Goodput: m.GetGoodput(), BadRate: m.GetBadRate(), LatencyP99Us: m.GetLatencyP99Us(), MeanBatch: m.GetMeanBatch(),
		})
	}
	return finish(best.plan), nil
}

func finish(p *policy.Plan) *policy.Plan {
	p.Policy, p.PolicyVersion = Name, version
	return p
}

// world is the snapshot with what the search asks of it.
type world struct {
	s *policy.Snapshot
	x *policy.Index
	// empty is the floor before anything is placed.
	empty *pack.Floor
}

// candidate is a plan and what became of it; outcome is nil until it was evaluated.
type candidate struct {
	plan    *policy.Plan
	from    string
	outcome *policy.Outcome
	// built: by the rules of build, and not as somebody else had it.
	built bool
}

// inForce is where a plan comes from that is in force; what follows says that it could not stay as it is.
const inForce = "the plan in force"

// beginnings are the plans of other policies, the plan in force as far as it still can be, every model everywhere, and groups of models.
// There is at least one.
func (w *world) beginnings(ctx context.Context, others []policy.Policy) []*candidate {
	var all []*candidate
	add := func(from string, p *policy.Plan, built bool) {
		for _, c := range all {
			if same(c.plan, p) {
				if built && !c.built {
					c.plan, c.built = p, true // what is said beside the places is of this snapshot
				}
				return
			}
		}
		all = append(all, &candidate{plan: p, from: from, built: built})
	}
	if len(w.s.GetCurrent().GetPartitions()) > 0 {
		now := w.s.GetCurrent()
		add(inForce, &policy.Plan{
			SnapshotRevision: w.s.GetRevision(), Partitions: now.GetPartitions(), Recipes: now.GetRecipes(), Dispatch: now.GetDispatch(),
			Unplaced: now.GetUnplaced(), AppRoutes: now.GetAppRoutes(), SubClusters: now.GetSubClusters(),
		}, false)
		add(inForce+", as far as it can be", w.build(w.read(now)), true)
	}
	add("every model wherever it fits", w.build(w.everywhere()), true)
	for _, other := range others {
		d, err := other.Describe(ctx)
		if err != nil || len(d.Unmet(w.s)) > 0 {
			continue
		}
		asked := &policy.Snapshot{}
		proto.Merge(asked, w.s)
		if asked.Parameters, err = d.Resolve(nil); err != nil {
			continue
		}
		if p, err := other.Plan(ctx, asked, policy.NoEvaluation{}); err == nil {
			// Both as it is, and by our rules: batches are as large as models allow, and all that fits is placed.
			rebuilt := w.build(w.read(p))
			p.PolicyState = nil
			add("as "+d.GetName()+" has it", p, false)
			add("as "+d.GetName()+" has it, filled up", rebuilt, true)
		}
	}
	for _, l := range w.groups() {
		add("groups of models by how long they block", w.build(l), true)
	}
	return all
}

// same reports whether two plans put the same models in the same places with the same disciplines.
func same(a, b *policy.Plan) bool {
	return proto.Equal(&policy.Plan{Partitions: a.GetPartitions(), Dispatch: a.GetDispatch(), Recipes: a.GetRecipes()},
		&policy.Plan{Partitions: b.GetPartitions(), Dispatch: b.GetDispatch(), Recipes: b.GetRecipes()})
}

// floor is an empty packing of the world.
func (w *world) floor() *pack.Floor { return w.empty.Clone() }
