// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/apply/decide"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control/conditions"
	"github.com/conch-serving/conch/sidecar/control/estimates"
	"github.com/conch-serving/conch/sidecar/control/snapshot"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
	"github.com/conch-serving/conch/sidecar/observe"
)

// Look is one consistent look at where things are: the plan in force, and what is
// observed of its servers. It is read only and does not change afterwards.
type Look struct {
	// Plan is the one that serves; the policy.Plan in it is nil before the first.
	Plan  Plan
	Nodes []*policy.Node
	// Cordons are GPUs that take nothing new, by id.
	Cordons map[string]api.Cordon
	// Servers are those of the plan, by partition; Retiring are old ones that are to
	// go.
	Servers  map[string]apply.PartitionState
	Retiring []apply.PartitionState
	// BusyShares say how much of the statistics window each partition of the plan
	// worked, by id, from 0 to 1.
	BusyShares map[string]float64
	Conditions conditions.All
}

// ModelLook is one consistent look at a model of the repository. It is read only and
// does not change afterwards.
type ModelLook struct {
	Files      *repo.Model
	Conditions []api.Condition
	// Model is what a policy sees of it but its load; nil where its files are broken,
	// and then nothing but Out follows.
	Model *policy.Model
	// Out says why it is not planned for; its State is empty where it is.
	Out Out
	// Batching is what its server batches by; nil: not at all.
	Batching *tritonpb.ModelDynamicBatching
	// PassThrough is why all requests are passed on as they came; empty where they
	// are not.
	PassThrough string
	// Steps is in how many steps an ensemble is executed by the request path; 0: Unsplit says why it is not, or it is none.
	Steps   int
	Unsplit string
	// Declared is the profile of conch.yaml; nil where it has none.
	Declared *config.Profile
	// Discipline that the plan in force dispatches it by.
	Discipline string
	// Rates, Statistics and Profiles are what was observed of it; Waiting counts the
	// requests that wait now.
	Rates      observe.Rates
	Statistics *policy.ModelStatistics
	// Bad is the part of its requests that are bad.
	Bad      float64
	Waiting  int
	Profiles []*policy.Profile
	// Estimates per type of GPU and CPU that it may run on.
	Estimates []*estimates.Estimate
	// Places are its partitions in the plan in force, by rank. Unplaced is why the plan
	// has none.
	Places   []Place
	Unplaced string
	// Failing is why it loads nowhere though it is wanted; nil where it does not fail.
	Failing *apply.Condition
}

// Out is why a model is not planned for, in a word and a sentence.
type Out struct {
	State  api.ModelState
	Reason string
}

// outOfPlans is why policies are not asked to place it.
func (m ModelLook) outOfPlans() string {
	if m.Out.Reason == "" && m.Files.Derived != nil {
		return "conch makes it from others, and plans place it by its recipe"
	}
	return m.Out.Reason
}

// Place is a partition of the plan that is to serve a model. Server is nil while
// nothing is observed of it.
type Place struct {
	Partition string
	Server    *apply.PartitionState
}

// Serves reports whether a place has the model loaded on a server that is up.
func (p Place) Serves(model string) bool {
	return p.Server != nil && p.Server.Up && slices.Contains(p.Server.Models, model)
}

// Readiness is what decides whether clients may be sent here.
type Readiness struct {
	// Starting is why there is nothing to serve yet; empty once there is. Planned: a
	// plan serves.
	Starting string
	Planned  bool
	// Awaited is what the desired state waits for.
	Awaited []apply.Condition
	// Servers are those of the plan.
	Servers []apply.PartitionState
	// Without says why models that are to serve have no place in the plan, by name: Triton would refuse them, or the policy found none. Those that
	// load on demand, and variants that no client needs, have none either and are left out.
	Without map[string]string
	// Draining: no new request is taken.
	Draining bool
	Now      time.Time
}

// Version says which build this is and how it runs.
func (c *Control) Version() api.Version {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.version
}

// Readiness is that of now.
func (c *Control) Readiness() Readiness {
	c.mu.Lock()
	starting, s := c.starting, c.serving
	c.mu.Unlock()
	if starting == "" && c.requests.Ready() != nil {
		starting = "the routes of the plan are not in force yet"
	}
	observed := c.reconciler.Observed()
	return Readiness{
		Starting: starting, Planned: s.Revision > 0, Awaited: observed.Conditions, Servers: lasting(observed), Without: c.without(s),
		Draining: c.requests.Draining(), Now: c.clock.Now(),
	}
}

// without is Readiness.Without. Servers that others run have what those want them to have.
func (c *Control) without(s serving) map[string]string {
	in := c.intent()
	if in.files == nil || in.given {
		return nil
	}
	all := map[string]string{}
	for _, m := range in.files.Models {
		if load, _ := in.config.LoadOf(m.Name); load == config.LoadKeep && m.Err() != nil {
			all[m.Name] = m.Err().Error()
		}
	}
	places := s.Places()
	for _, u := range s.GetUnplaced() {
		asked := slices.ContainsFunc(u.GetRefusals(), func(r *policy.Refusal) bool { return r.GetCause() == policy.CauseOnDemand })
		m := in.files.Model(u.GetModel())
		if m == nil || asked || len(places[u.GetModel()]) > 0 {
			continue
		}
		if state, _ := in.out(m); state == "" {
			all[m.Name] = "no place: " + u.GetText()
		}
	}
	return all
}

// CurrentPlan is the plan that serves; its Plan is nil before the first.
func (c *Control) CurrentPlan() Plan {
	p := c.current().Plan
	p.Pin = c.orders.Declared().Pin
	return p
}

// OfCluster are the conditions of the cluster that carries plans out; nil without one.
func (c *Control) OfCluster() []api.Condition {
	in := c.inCluster()
	if in == nil {
		return nil
	}
	return c.look().conditions.Of(conditions.OfCluster, in.Release)
}

// inCluster is the cluster that has the servers; nil without one.
func (c *Control) inCluster() *conditions.Cluster {
	release, silent, cause := c.cluster()
	if release == "" {
		return nil
	}
	return &conditions.Cluster{Release: release, Silent: silent, Cause: cause}
}

// Names are those of the repository's models, sorted.
func (c *Control) Names() []string {
	c.mu.Lock()
	files := c.files
	c.mu.Unlock()
	if files == nil {
		return nil
	}
	names := make([]string, 0, len(files.Models))
	for _, m := range files.Models {
		if m.Derived == nil {
			names = append(names, m.Name)
		}
	}
	return names
}

// Look is one of now.
func (c *Control) Look() Look {
	v := c.look()
	out := Look{
		Plan: v.serving.Plan, Nodes: c.nodes(), Cordons: v.cordons, Servers: v.states, Conditions: v.conditions,
		BusyShares: make(map[string]float64, len(v.serving.GetPartitions())),
	}
	for _, s := range v.observed.Partitions {
		if s.Retiring {
			out.Retiring = append(out.Retiring, s)
		}
	}
	for _, p := range v.serving.GetPartitions() {
		out.BusyShares[p.GetId()] = 1 - c.recorder.PartitionStatistics(p.GetId(), v.now).GetIdleShare()
	}
	return out
}

// LookAtModels looks at the models of the repository, sorted by name; derived ones are
// left out.
func (c *Control) LookAtModels() []ModelLook { return c.lookWide().all() }

// GlanceAtModels is LookAtModels without profiles and estimates: it is for those who look all the time.
func (c *Control) GlanceAtModels() []ModelLook {
	v := c.look()
	v.failing, v.glance = failing(v.observed), true
	return v.all()
}

func (v sight) all() []ModelLook {
	if v.files == nil {
		return nil
	}
	models := make([]ModelLook, 0, len(v.files.Models))
	for _, m := range v.files.Models {
		if m.Derived == nil {
			models = append(models, v.model(m))
		}
	}
	return models
}

// LookAtModel looks at one of them, or at a derived one; ErrNotFound where the
// repository has none of the name.
func (c *Control) LookAtModel(name string) (ModelLook, error) {
	v := c.lookWide()
	if v.files != nil {
		if m := v.files.Model(name); m != nil {
			return v.model(m), nil
		}
	}
	return ModelLook{}, fmt.Errorf("%w: no model is called %q in the repository; tritonctl model ls shows those there are", ErrNotFound, name)
}

// PlannedPartition is one of the plan in force; ErrNotFound where that has none of the
// name.
func (c *Control) PlannedPartition(id string) (*policy.Partition, error) {
	for _, p := range c.current().GetPartitions() {
		if p.GetId() == id {
			return p, nil
		}
	}
	return nil, fmt.Errorf("%w: the serving plan has no partition %q; tritonctl partition ls shows those there are", ErrNotFound, id)
}

// sight is one consistent look at everything there is to see.
type sight struct {
	intent
	c       *Control
	now     time.Time
	serving serving
	// places are the partitions of each model in the plan in force.
	places map[string][]*policy.Partition
	states map[string]apply.PartitionState
	// observed are the servers, retiring ones included; conditions those of all.
	observed   apply.Observed
	conditions conditions.All
	// failing and profiles are only of a wide look; a glance has no profiles and estimates.
	failing  map[string]apply.Condition
	profiles []*policy.Profile
	glance   bool
}

// look is a sight without what was learnt of models.
func (c *Control) look() sight {
	v := sight{
		intent: c.intent(), c: c, now: c.clock.Now(), serving: c.current(),
		states: map[string]apply.PartitionState{}, observed: c.reconciler.Observed(),
	}
	v.places = v.serving.Places()
	for _, p := range lasting(v.observed) {
		v.states[p.ID] = p
	}
	v.conditions = c.conditions.Look(withEjected(v.observed, c.requests.Unhealthy()), v.wanted(), v.now)
	return v
}

// withEjected adds a condition for each place whose executions fail. They do not make what is observed differ from what is desired: the place is loaded
// as the plan asks.
func withEjected(o apply.Observed, unhealthy []router.PlaceHealth) apply.Observed {
	o.Conditions = slices.Clip(o.Conditions)
	for _, h := range unhealthy {
		condition := apply.Condition{Condition: decide.Condition{Kind: decide.IsFailing, Partition: h.Partition, Model: h.Model, Reason: "its executions fail: " + h.Cause}, Since: h.Since}
		if h.Ejected {
			condition.Next = h.Until
		}
		o.Conditions = append(o.Conditions, condition)
	}
	return o
}

func (c *Control) lookWide() sight {
	v := c.look()
	v.failing, v.profiles = failing(v.observed), c.profiles()
	return v
}

// wanted is what the plan in force asks for of models.
func (v sight) wanted() conditions.Wanted {
	w := conditions.Wanted{Places: map[string][]string{}, Without: map[string][2]string{}, Cluster: v.c.inCluster()}
	if v.files == nil {
		return w
	}
	for _, m := range v.files.Models {
		if m.Derived != nil {
			continue // its members are listed instead
		}
		state, reason := v.out(m)
		if state == "" {
			for _, p := range v.places[m.Name] {
				w.Places[m.Name] = append(w.Places[m.Name], p.GetId())
			}
			state, reason = api.ModelUnplaced, unplaced(v.serving.Plan.Plan, m.Name)
		}
		if len(w.Places[m.Name]) == 0 {
			w.Without[m.Name] = [2]string{string(state), reason}
		}
	}
	w.Groups = v.groupings()
	return w
}

func (v sight) model(m *repo.Model) ModelLook {
	out := ModelLook{Files: m, Conditions: v.conditions.Of(conditions.Model, m.Name)}
	out.Out.State, out.Out.Reason = v.out(m)
	if m.Err() != nil {
		return out
	}
	out.Model = snapshot.Model(m, v.config, v.c.estimates.Memory(m))
	out.Batching, out.PassThrough, out.Declared = m.Written.GetDynamicBatching(), v.serving.passThrough, v.config.Models[m.Name].Profile
	if v.given {
		out.Batching = v.c.attached.Batching(m.Name) // a configuration that conch reads off servers is without
	}
	out.Rates, out.Statistics = v.c.recorder.Rates(m.Name, v.now), v.c.recorder.Statistics(m.Name, v.now)
	out.Bad = v.c.recorder.Bad(m.Name, v.now)
	counts, _ := v.c.requests.Counts(m.Name)
	out.Waiting = max(0, counts.Waiting)
	out.Steps, out.Unsplit, _ = v.c.requests.Ensemble(m.Name)
	for _, p := range v.profiles {
		if p.GetModel() == m.Name {
			out.Profiles = append(out.Profiles, p)
		}
	}
	for _, p := range v.c.places(v.config) {
		if v.glance {
			break
		}
		if e := v.c.estimates.Of(m, p.Type); e != nil {
			out.Estimates = append(out.Estimates, e)
		}
	}
	for _, d := range v.serving.GetDispatch() {
		if d.GetModel() == m.Name {
			out.Discipline = d.GetDiscipline()
		}
	}
	parts := slices.Clone(v.places[m.Name])
	slices.SortStableFunc(parts, func(a, b *policy.Partition) int { return cmp.Compare(a.GetRank(), b.GetRank()) })
	for _, p := range parts {
		place := Place{Partition: p.GetId()}
		if s, known := v.states[p.GetId()]; known {
			place.Server = &s
		}
		out.Places = append(out.Places, place)
	}
	if failing, fails := v.failing[m.Name]; fails {
		out.Failing = &failing
	}
	if len(parts) == 0 {
		out.Unplaced = unplaced(v.serving.Plan.Plan, m.Name)
	}
	return out
}

// displaced names the models that had a place in the plan before and have none in the next, with why: whoever reads that a plan serves has to see that
// they are no longer served. It is empty where there are none, and names three at most.
func displaced(before, next *policy.Plan) string {
	var all []string
	was, is := before.Places(), next.Places()
	for _, u := range next.GetUnplaced() {
		if len(was[u.GetModel()]) > 0 && len(is[u.GetModel()]) == 0 {
			all = append(all, u.GetModel()+": "+u.GetText())
		}
	}
	const most = 3
	switch n := len(all); {
	case n == 0:
		return ""
	case n > most:
		return fmt.Sprintf("; %d models have no place any more: %s, ...", n, strings.Join(all[:most], "; "))
	}
	return "; no place any more for " + strings.Join(all, "; ")
}

// unplaced is why a plan has no place for a model.
func unplaced(p *policy.Plan, model string) string {
	for _, u := range p.GetUnplaced() {
		if u.GetModel() == model {
			return u.GetText()
		}
	}
	if p == nil {
		return "no plan serves yet"
	}
	return "the serving plan says nothing of it"
}
