// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control/planner"
	"github.com/conch-serving/conch/sidecar/control/snapshot"
	"github.com/conch-serving/conch/sidecar/observe"
	"github.com/conch-serving/conch/sidecar/plan"
	"github.com/conch-serving/conch/sidecar/policyhost"
	"github.com/conch-serving/conch/sidecar/sim/evaluate"
)

// intent is what a plan is to be made for, before anything is observed.
type intent struct {
	config *config.Config
	files  *repo.Revision
	// given and passThrough are the apply.Desired's.
	given       bool
	passThrough string
	// asked is the model that an order is about.
	asked string
	// cordons are GPUs that take nothing new, by id.
	cordons map[string]api.Cordon
	// staying: the plan moves nothing that is there. What a drain has not moved yet, since
	// no plan without its GPU was to be had, stays then too.
	staying bool
}

// nodes are the machines as plans may use them: a GPU that is drained, or cordoned and
// empty, is unavailable.
func (in intent) nodes(all []*policy.Node, current *policy.Plan) []*policy.Node {
	if len(in.cordons) == 0 {
		return all
	}
	used := map[string]bool{}
	for _, p := range current.GetPartitions() {
		used[p.GPU()] = true
	}
	out := make([]*policy.Node, len(all))
	for i, n := range all {
		out[i] = proto.CloneOf(n)
		for _, g := range out[i].GetGpus() {
			cordon, cordoned := in.cordons[g.GetId()]
			switch {
			case !cordoned, used[g.GetId()] && (in.staying || !cordon.Drain):
			case cordon.Drain:
				g.Unavailable, g.UnavailableReason = true, planner.Drained
			default:
				g.Unavailable, g.UnavailableReason = true, planner.Cordoned
			}
		}
	}
	return out
}

// cordoning has a planner put nothing new on GPUs that are cordoned.
func (in intent) cordoning(who planner.Planner, current *policy.Plan) planner.Cordoning {
	gpus := map[string]bool{}
	for gpu := range in.cordons {
		gpus[gpu] = true
	}
	return planner.Cordoning{Planner: who, GPUs: gpus, Current: current}
}

// cordoned are the models that a plan puts on cordoned GPUs where the plan in force
// does not have them: plan files and earlier plans know nothing of cordons.
func (in intent) cordoned(p, current *policy.Plan) (found plan.Violations) {
	for _, part := range p.GetPartitions() {
		cordon, cordoned := in.cordons[part.GPU()]
		if !cordoned || cordon.Drain && !in.staying {
			continue // a drained GPU is unavailable altogether
		}
		for _, i := range part.GetInstances() {
			if !slices.ContainsFunc(current.PartitionsOf(i.GetModel()), func(was *policy.Partition) bool { return was.On(part.GetNode(), part.GPU()) }) {
				found = append(found, plan.Violation{
					Code: plan.CodeUnavailable, Subject: part.GetId(),
					Text: fmt.Sprintf("%s would be new on GPU %s, which is cordoned by %s%s; tritonctl gpu uncordon %s", i.GetModel(), part.GPU(), cordon.Author, because(cordon.Reason), part.GPU()),
				})
			}
		}
	}
	return found
}

// out says why a model is not planned for; empty if it is.
func (in intent) out(m *repo.Model) (api.ModelState, string) {
	if err := m.Err(); err != nil {
		return api.ModelInvalid, err.Error()
	}
	if load, _ := in.config.LoadOf(m.Name); load == config.LoadNever {
		return api.ModelUnloaded, "conch.yaml says load: never"
	}
	if m.Unloaded {
		return api.ModelUnloaded, "unloaded by order; load it to serve it again"
	}
	for _, step := range m.Config.GetEnsembleScheduling().GetStep() {
		if member := in.files.Model(step.GetModelName()); member != nil && member.Unloaded {
			return api.ModelUnloaded, "it calls " + member.Name + ", which is unloaded; load that to serve it again"
		}
	}
	return "", ""
}

func (c *Control) intent() intent {
	c.mu.Lock()
	defer c.mu.Unlock()
	return intent{
		config: c.config, files: c.files,
		given: c.attached != nil && !c.placing, cordons: c.orders.Declared().Cordons,
	}
}

// observe makes the next snapshot.
func (c *Control) observe(in intent) *policy.Snapshot {
	now := c.clock.Now()
	observed := c.reconciler.Observed()
	up := map[string]bool{}
	for _, p := range observed.Partitions {
		if !p.Retiring {
			up[p.ID] = p.Up
		}
	}
	c.mu.Lock()
	c.snapshot++
	revision, s := c.snapshot, c.serving
	loads, starts, advised := maps.Clone(c.loads), c.starts, c.advice.Advice
	grids, history, misfits := c.grids, c.history.List(), c.misfit
	c.mu.Unlock()
	settings := in.config
	w := observe.World{
		Revision: revision, Seed: settings.Seed, Budget: settings.Policy.Deadline.Std(), Objective: snapshot.Objective(settings.Objective),
		Nodes: in.nodes(c.nodes(), s.Plan.Plan), Current: s.Plan.Plan, Parameters: c.policies.Status().Parameters,
		ChangeCost:  snapshot.ChangeCost(settings.Driver.Kind, loads, starts),
		Constraints: snapshot.Constraints(settings.Models),
		Queued: func(model string) int {
			counts, _ := c.requests.Counts(model)
			return counts.Waiting
		},
		Up:     func(id string) bool { return up[id] },
		Ready:  func(partition, model string) (bool, string) { return readyOn(observed, partition, model) },
		Advice: advised,
	}
	for _, m := range in.files.Models {
		if state, _ := in.out(m); state != "" || m.Derived != nil {
			continue // a derived model is on offer, and placed by its recipe
		}
		model := snapshot.Model(m, settings, c.estimates.Memory(m))
		model.LoadSeconds = loads[m.Name]
		w.Models = append(w.Models, model)
	}
	c.uses(w.Models, settings, in.asked, now)
	c.demandSeen(w.Models)
	out := c.recorder.Snapshot(now, w)
	out.Offers = snapshot.Offers(settings)
	out.Apps = snapshot.Apps(settings, out.Models, misfits, func(app string) (float64, []*policy.Wish) { return c.recorder.App(app, now) })
	snapshot.AddPipelines(out, snapshot.Ensembles{
		Steps: c.stepsOf, Walks: func(name string) observe.Walks { return c.recorder.Walks(name, now) },
	})
	if declared := snapshot.Interference(settings); len(declared) > 0 {
		out.Interference = declared
	}
	out.Profiles = snapshot.Complete(out.Profiles, grids, c.estimated(in.files), out.Models, snapshot.Types(out.Nodes, out.Offers))
	out.Derived = c.offers(out.Profiles)
	out.History = history
	out.Steps = settings.Policy.Steps
	if out.Traffic = evaluate.Promise(out, settings.Policy.Traffic.Std()); out.Traffic != nil {
		out.Evaluations = *settings.Policy.Evaluations
	}
	return out
}

// stepsOf are the steps of an ensemble that the request path executes one by one; none for any other name.
func (c *Control) stepsOf(name string) (all []snapshot.Step) {
	for _, step := range c.requests.Pipeline(name) {
		all = append(all, snapshot.Step(step))
	}
	return all
}

// forPolicies is a snapshot as policies get it.
func forPolicies(s *policy.Snapshot, in intent) *policy.Snapshot {
	return snapshot.DivideSLOs(s, in.files, in.config)
}

// readyOn says whether a partition's server serves a model, and if not why.
func readyOn(o apply.Observed, partition, model string) (is bool, why string) {
	why = "it is not loaded yet"
	i := slices.IndexFunc(o.Partitions, func(p apply.PartitionState) bool { return p.ID == partition && !p.Retiring })
	switch {
	case i < 0:
		why = "its server is not started"
	case !o.Partitions[i].Up:
		why = cmp.Or(o.Partitions[i].Reason, "its server is down")
	case slices.Contains(o.Partitions[i].Models, model):
		return true, ""
	}
	for _, c := range o.Conditions {
		if c.Partition == partition && (c.Model == model || c.Model == "") {
			why = cmp.Or(c.Reason, why)
			if c.Model == model {
				break
			}
		}
	}
	return false, why
}

// sameSettings reports whether what the request path knows of models and apps
// besides the plan is the same in both snapshots.
func sameSettings(a, b *policy.Snapshot) bool {
	if len(a.GetModels()) != len(b.GetModels()) {
		return false
	}
	for i, m := range a.GetModels() {
		n := b.GetModels()[i]
		if m.GetName() != n.GetName() || m.GetSloUs() != n.GetSloUs() || m.GetLate() != n.GetLate() || m.GetRevision() != n.GetRevision() {
			return false
		}
	}
	return slices.EqualFunc(a.GetApps(), b.GetApps(), func(a, b *policy.App) bool {
		return a.GetName() == b.GetName() && a.GetMinimumAccuracy() == b.GetMinimumAccuracy() && a.GetSloUs() == b.GetSloUs() &&
			slices.EqualFunc(a.GetVariants(), b.GetVariants(), func(v, w *policy.Variant) bool { return proto.Equal(v, w) })
	})
}

// reference names a policy as conch.yaml does.
func (c *Control) reference(p config.Policy) policyhost.Ref {
	ref := policyhost.Ref{Name: p.Name, Parameters: p.Parameters}
	if p.Executable != "" {
		ref.Executable = &policyhost.Executable{Path: p.Executable, SHA256: p.Checksum}
	}
	return ref
}

func breakerStates() []string {
	return []string{string(policyhost.BreakerClosed), string(policyhost.BreakerOpen), string(policyhost.BreakerHalfOpen)}
}
