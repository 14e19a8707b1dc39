// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conch

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/policy/pack"
)

// Name is what the policy is called.
const Name = "conch"

const version = "1.4.0"

// Parameters.
const (
	paramHorizon  = "horizon"
	paramPatience = "patience"
	paramMinGain  = "least_gain"
	paramBad      = "most_bad"
	paramSure     = "surely_bad"
	paramDraws    = "draws"
	paramFinal    = "finalists"
	paramPrice    = "load_price"
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
			{Name: paramBad, Type: policy.TypeFloat, DefaultValue: "0.005", Documentation: "Part of all requests that may be bad before cost counts, under min-cost, by the arrivals that plans are chosen by: below surely_bad, since a plan that was chosen by some arrivals does worse under others."},
			{Name: paramSure, Type: policy.TypeFloat, DefaultValue: "0.01", Documentation: "Part of all requests that an operator tolerates to be bad: under min-cost a plan counts as one that holds the load if, with a confidence of 95%, it does no worse under arrivals that it was not chosen by."},
			{Name: paramDraws, Type: policy.TypeInt, DefaultValue: "5", Documentation: "Draws of other arrivals, from 2 to 30, by which that is found out; each costs an evaluation."},
			{Name: paramFinal, Type: policy.TypeInt, DefaultValue: "32", Documentation: "Plans at most, of those that serve nearly as much as the best, that are compared under other arrivals, and of which one is changed by local search under one more draw of these, where rates of past minutes are known and the objective is not min-cost; 0 or 1: none are, and local search is under the traffic."},
			{Name: paramPrice, Type: policy.TypeFloat, DefaultValue: "1", Documentation: "What a second of loading a model costs under min-cost, in seconds of the rent of the GPU that loads; 0: loads are free."},
		},
	}, nil
}

type settings struct {
	horizon, gain, bad, sure float64
	price                    float64
	patience, draws          int
	finalists                int
}

func read(s *policy.Snapshot) (*settings, error) {
	p, err := pack.Read(Policy{}, s)
	if err != nil {
		return nil, err
	}
	return &settings{
		horizon:   p.Float(paramHorizon, func(f float64) bool { return f > 0 }, "above 0"),
		gain:      p.Float(paramMinGain, pack.AtLeast(0.), "0 or more"),
		bad:       p.Float(paramBad, pack.Between(0., 1), "from 0 to 1"),
		sure:      p.Float(paramSure, pack.Between(0., 1), "from 0 to 1"),
		price:     p.Float(paramPrice, pack.AtLeast(0.), "0 or more"),
		patience:  p.Int(paramPatience, pack.AtLeast(1), "1 or more"),
		draws:     p.Int(paramDraws, pack.Between(2, mostDraws), fmt.Sprintf("from 2 to %d", mostDraws)),
		finalists: p.Int(paramFinal, pack.AtLeast(0), "0 or more"),
	}, p.Err()
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
	w := newWorld(s, newBudget(s))
	candidates := w.beginnings(ctx, p.beginnings)
	candidates = append(candidates, w.divided(ctx, p.beginnings, candidates, int(s.GetEvaluations()/2)-len(candidates))...)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	search := &search{w: w, set: set, host: h, left: s.GetEvaluations(), bad: set.bad}
	if len(s.GetDerived()) > 0 && search.left > 1 {
		search.reserved = 1
		if trial := 1 + uint32(set.draws); s.GetObjective() == policy.Objective_OBJECTIVE_MIN_COST && search.left > 2*trial {
			search.reserved = trial // what is merged has to hold the load surely, too
		}
		search.left -= search.reserved
	}
	best, err := search.best(ctx, candidates)
	if errors.Is(err, policy.ErrNoEvaluation) || err == nil && best.outcome == nil {
		// Nothing can be evaluated: the first beginning of our own making, which keeps every rule.
		only := candidates[slices.IndexFunc(candidates, func(c *candidate) bool { return c.built })]
		w.x.Merge(only.plan) // the operator names what may be merged; it takes no more of a GPU than its members
		only.plan.Reasons = append(only.plan.Reasons, &policy.Reason{Text: "nothing could be evaluated (no traffic, or no evaluations are allowed): the plan is " + only.from})
		return w.finish(only.plan), nil
	}
	if err != nil {
		return nil, err
	}
	if s.GetObjective() == policy.Objective_OBJECTIVE_MIN_COST {
		best, err = search.cheapest(ctx, p.beginnings, candidates, best)
	} else {
		best, err = search.most(ctx, candidates, best)
	}
	if err != nil {
		return nil, err
	}
	best = search.keep(best)
	if best, err = search.merged(ctx, best); err != nil {
		return nil, err
	}
	best.plan.Reasons = append(best.plan.Reasons, &policy.Reason{Text: fmt.Sprintf(
		"%s: goodput %.1f/s, %.2f%% bad, on %d GPUs; the best of %d plans that were evaluated, %d steps of local search brought something",
		best.from, best.outcome.GetGoodput(), 100*best.outcome.GetBadRate(), best.outcome.GetGpus(), search.evaluated, search.steps)})
	switch {
	case best.sure:
		best.plan.Reasons = append(best.plan.Reasons, &policy.Reason{Text: fmt.Sprintf(
			"it surely holds the load: at most %.2f%% bad, with a confidence of 95%%, by %d draws of arrivals that it was not chosen by", 100*best.upper, set.draws)})
	case s.GetObjective() == policy.Objective_OBJECTIVE_MIN_COST:
		best.plan.Reasons = append(best.plan.Reasons, &policy.Reason{Text: fmt.Sprintf(
			"it may not hold the load under other arrivals than those that it was chosen by: no plan was found that surely has at most %.2f%% bad within %d evaluations", 100*set.sure, s.GetEvaluations())})
	}
	for _, m := range best.outcome.GetModels() {
		if w.x.Model(m.GetModel()) == nil && best.plan.Recipe(m.GetModel()) == nil {
			continue // a pipeline that is no model
		}
		best.plan.Predictions = append(best.plan.Predictions, &policy.Prediction{
			Model: m.GetModel(), Goodput: m.GetGoodput(), BadRate: m.GetBadRate(), LatencyP99Us: m.GetLatencyP99Us(), MeanBatch: m.GetMeanBatch(),
		})
	}
	return w.finish(best.plan), nil
}

// finish signs a plan and says the rates that it counts on where the plan that it began with says none.
func (w *world) finish(p *policy.Plan) *policy.Plan {
	p = proto.CloneOf(p) // its partitions may be the snapshot's
	p.Policy, p.PolicyVersion = Name, version
	if why := w.budget.reason(w.s); why != nil {
		p.Reasons = append(p.Reasons, why)
	}
	pack.Divide(w.x, p)
	return p
}

// world is the snapshot with what the search asks of it.
type world struct {
	s *policy.Snapshot
	x *policy.Index
	// empty is the floor before anything is placed.
	empty *pack.Floor
	// smaller: some GPUs of the snapshot are not to be used, so that the plan in force is no beginning.
	smaller bool
	// hosts are the places of hosts on the floor, by node and GPU; nil: not made yet.
	hosts map[[2]string]int
	// budget of all worlds of a plan together.
	budget *budget
	// ruled: what may lie on a host depends on more than its type and what is free of it.
	ruled bool
}

// newWorld reads the snapshot.
func newWorld(s *policy.Snapshot, b *budget) *world {
	w := &world{s: s, x: policy.NewIndex(s), empty: pack.New(s), budget: b}
	w.ruled = slices.ContainsFunc(s.GetModels(), func(m *policy.Model) bool {
		rule := w.x.Rule(m.GetName())
		_, restricted := rule.GPUs()
		return restricted || rule.Pinned || rule.MaxInstances > 0
	})
	return w
}

// candidate is a plan with its outcome, which is nil until the plan is evaluated.
type candidate struct {
	plan    *policy.Plan
	from    string
	outcome *policy.Outcome
	// built: by the rules of build, and not taken over from another plan.
	built bool
	// tried: it was evaluated under arrivals that it was not chosen by; sure: it holds the load under these.
	tried, sure bool
	drawn       []*policy.Outcome
	// bad is the mean of the bad shares there, upper its upper bound.
	bad, upper float64
	// travel is how many bytes per second go from node to node between steps of pipelines; nil: not yet known.
	travel *float64
	// loading is the price of what it loads; 0: not yet known; below 0: nothing.
	loading float64
}

// size is how many steps a plan of another policy counts: it tries about every model in every place.
func (w *world) size() int { return len(w.empty.Hosts) * len(w.s.GetModels()) }

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
					c.plan, c.built = p, true // all but its places is made for this snapshot
				}
				return
			}
		}
		all = append(all, &candidate{plan: p, from: from, built: built})
	}
	if now := w.s.GetCurrent(); len(now.GetPartitions()) > 0 && w.smaller {
		kept := w.read(now)
		add(inForce+", on fewer GPUs", w.build(kept), true)
		if l := w.grown(kept); l != nil {
			add(inForce+", on more GPUs", w.build(l), true)
		}
	} else if len(now.GetPartitions()) > 0 {
		add(inForce, &policy.Plan{
			SnapshotRevision: w.s.GetRevision(), Partitions: unrated(now.GetPartitions()), Recipes: now.GetRecipes(), Dispatch: now.GetDispatch(),
			Unplaced: now.GetUnplaced(), AppRoutes: now.GetAppRoutes(), SubClusters: now.GetSubClusters(),
		}, false)
		add(inForce+", as far as it can be", w.build(w.read(now)), true)
	}
	add("every model wherever it fits", w.build(w.everywhere(1)), true)
	add("every model on halves of GPUs", w.build(w.everywhere(2)), true)
	if l := w.exactly(); l != nil {
		add("cut by exact search", w.build(l), true)
	}
	for _, other := range others {
		d, err := other.Describe(ctx)
		if err != nil || len(d.Unmet(w.s)) > 0 || w.budget.without(d.GetName()+"'s", w.size()) {
			continue
		}
		w.budget.spend(w.size())
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
		if w.budget.over(0) {
			w.budget.out = append(w.budget.out, "groups of models")
			break
		}
		add("groups of models by how long they block", w.build(l), true)
	}
	return all
}

// same reports whether two plans put the same models in the same places with the same disciplines, whatever rates they count on.
func same(a, b *policy.Plan) bool {
	return slices.EqualFunc(a.GetPartitions(), b.GetPartitions(), alike) &&
		slices.EqualFunc(a.GetDispatch(), b.GetDispatch(), func(x, y *policy.Dispatch) bool { return proto.Equal(x, y) }) &&
		slices.EqualFunc(a.GetRecipes(), b.GetRecipes(), func(x, y *policy.Recipe) bool { return proto.Equal(x, y) })
}

// alike reports whether two partitions differ in nothing but the rates of their instances. Search compares thousands of partitions with each other at every move, for
// which messages are compared too slowly.
func alike(a, b *policy.Partition) bool {
	return a.GetId() == b.GetId() && a.GetNode() == b.GetNode() && slices.Equal(a.GetGpus(), b.GetGpus()) && a.GetRank() == b.GetRank() &&
		a.GetThreadPercentage() == b.GetThreadPercentage() && a.GetMemoryLimitBytes() == b.GetMemoryLimitBytes() &&
		slices.EqualFunc(a.GetInstances(), b.GetInstances(), func(x, y *policy.Instance) bool {
			return x.GetModel() == y.GetModel() && x.GetMaxBatch() == y.GetMaxBatch() && x.GetThreadPercentage() == y.GetThreadPercentage() &&
				x.GetRole() == y.GetRole() && x.GetVersion() == y.GetVersion() && x.GetSliceUs() == y.GetSliceUs() && x.GetSlot() == y.GetSlot()
		})
}

// unrated are partitions without the rates that a plan counted on.
func unrated(parts []*policy.Partition) []*policy.Partition {
	all := make([]*policy.Partition, len(parts))
	for i, part := range parts {
		all[i] = proto.CloneOf(part)
		for _, in := range all[i].GetInstances() {
			in.Rate = 0
		}
	}
	return all
}

// floor is an empty packing of the world.
func (w *world) floor() *pack.Floor { return w.empty.Clone() }
