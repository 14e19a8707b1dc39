// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/control/conditions"
	"github.com/conch-serving/conch/sidecar/control/snapshot"
)

// Version says which build this is and how it runs.
func (c *Control) Version() api.Version {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.version
}

// Ready lists the conditions under which clients may be sent here. A policy
// that does not answer is none: the plan that serves needs no policy.
func (c *Control) Ready() []api.Check {
	c.mu.Lock()
	starting, s := c.starting, c.serving
	c.mu.Unlock()
	plan := api.Check{Name: "plan", OK: s.Revision > 0 && starting == ""}
	if !plan.OK {
		plan.Reason = starting
	}
	partitions := api.Check{Name: "partitions", OK: true}
	up, total := 0, 0
	var reason string
	for _, p := range c.partitions() {
		total++
		if p.Up {
			up++
		} else {
			reason = fmt.Sprintf("%s: %s", p.ID, p.Reason)
		}
	}
	// A repository without models is served by no partition, truthfully.
	if s.Revision > 0 && total > 0 && up == 0 {
		partitions.OK, partitions.Reason = false, fmt.Sprintf("none of %d partitions is up; %s", total, reason)
	}
	serving := api.Check{Name: "serving", OK: !c.requests.Draining()}
	if !serving.OK {
		serving.Reason = "draining: no new request is taken"
	}
	return []api.Check{plan, partitions, serving}
}

// CurrentPlan is the plan that serves; its Plan is nil before the first.
func (c *Control) CurrentPlan() Plan {
	p := c.current().Plan
	p.Pin = c.orders.Declared().Pin
	return p
}

// Models lists the models of the repository, sorted by name.
func (c *Control) Models() []api.Model {
	v := c.view()
	if v.files == nil {
		return nil
	}
	models := make([]api.Model, 0, len(v.files.Models))
	for _, m := range v.files.Models {
		if m.Derived == nil {
			models = append(models, v.model(m))
		}
	}
	return models
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

// Model is one of them; ErrNotFound where the repository has none of the name.
func (c *Control) Model(name string) (api.Model, error) {
	v := c.view()
	if v.files != nil {
		if m := v.files.Model(name); m != nil {
			return v.model(m), nil
		}
	}
	return api.Model{}, fmt.Errorf("%w: no model is called %q in the repository", ErrNotFound, name)
}

// view is one consistent look at everything that is shown.
type view struct {
	intent
	c        *Control
	now      time.Time
	serving  serving
	states   map[string]apply.PartitionState
	failing  map[string]apply.Condition
	profiles []*policy.Profile
	// observed are the servers, retiring ones included; conditions those of all.
	observed   apply.Observed
	conditions conditions.All
}

func (c *Control) view() view {
	v := c.look()
	v.failing, v.profiles = c.failing(), c.recorder.Profiles()
	return v
}

// look is a view without what was learnt of models.
func (c *Control) look() view {
	v := view{
		intent: c.intent(), c: c, now: c.clock.Now(), serving: c.current(),
		states: map[string]apply.PartitionState{},
	}
	for _, p := range c.partitions() {
		v.states[p.ID] = p
	}
	v.observed = c.reconciler.Observed()
	v.conditions = c.conditions.Look(v.observed, v.wanted(), v.now)
	return v
}

// wanted is what the plan in force asks for of models.
func (v view) wanted() conditions.Wanted {
	w := conditions.Wanted{Places: map[string][]string{}, Without: map[string][2]string{}}
	if v.files == nil {
		return w
	}
	for _, m := range v.files.Models {
		if m.Derived != nil {
			continue // its members are what somebody wants
		}
		state, reason := v.out(m)
		if state == "" {
			for _, p := range v.serving.PartitionsOf(m.Name) {
				w.Places[m.Name] = append(w.Places[m.Name], p.GetId())
			}
			state, reason = api.ModelUnplaced, unplaced(v.serving.Plan.Plan, m.Name)
		}
		if len(w.Places[m.Name]) == 0 {
			w.Without[m.Name] = [2]string{string(state), reason}
		}
	}
	return w
}

func (v view) model(m *repo.Model) api.Model {
	out := api.Model{Name: m.Name, Revision: m.Digest, Profiles: []api.Profile{}, Conditions: v.conditions.Of(conditions.Model, m.Name)}
	if err := m.Err(); err != nil {
		out.Versions = versions(m.Versions)
		out.State, out.StateReason = api.ModelInvalid, err.Error()
		return out
	}
	d := snapshot.Model(m, v.config, v.c.estimates.Memory(m))
	out.Versions = versions(d.GetVersions())
	out.Backend, out.Late, out.MaxBatchSize = d.GetBackend(), late(d.GetLate()), int(d.GetMaxBatchSize())
	out.SLOSeconds = float64(d.GetSloUs()) / 1e6
	out.Batchable, out.PassThroughReason = d.GetBatchable(), d.GetPassThroughReason()
	batching := m.Config.GetDynamicBatching()
	if v.given {
		batching = v.c.attached.Batching(m.Name) // a configuration that conch reads off servers is without
	}
	out.DynamicBatching = batching != nil
	out.MaxQueueDelaySeconds = float64(batching.GetMaxQueueDelayMicroseconds()) / 1e6
	if v.serving.passThrough != "" {
		out.Batchable, out.PassThroughReason = false, v.serving.passThrough
	}
	if p := v.config.Models[m.Name].Profile; p != nil {
		out.DeclaredAlphaSeconds, out.DeclaredBetaSeconds = p.Alpha.Std().Seconds(), p.Beta.Std().Seconds()
	}
	v.measured(&out)
	out.Estimates = v.c.estimatesOf(m)
	for _, d := range v.serving.GetDispatch() {
		if d.GetModel() == m.Name {
			out.Discipline = d.GetDiscipline()
		}
	}
	if state, reason := v.out(m); state != "" {
		out.State, out.StateReason = state, reason
		return out
	}
	v.place(&out)
	return out
}

// measured writes down what was observed of a model over the statistics window.
func (v view) measured(m *api.Model) {
	rates, statistics := v.c.recorder.Rates(m.Name, v.now), v.c.recorder.Statistics(m.Name, v.now)
	counts, _ := v.c.requests.Counts(m.Name)
	m.Rate, m.Burstiness, m.Queued = rates.Window, rates.Burstiness, max(0, counts.Waiting)
	m.Goodput, m.BadRate, m.MeanBatch = statistics.GetGoodput(), statistics.GetBadRate(), statistics.GetMeanBatch()
	m.LatencyP50Seconds, m.LatencyP99Seconds = statistics.GetLatencyP50Us()/1e6, statistics.GetLatencyP99Us()/1e6
	for _, p := range v.profiles {
		if p.GetModel() == m.Name {
			m.Profiles = append(m.Profiles, profile(p))
		}
	}
}

func versions(numbers []int64) (all []string) {
	for _, n := range numbers {
		all = append(all, strconv.FormatInt(n, 10))
	}
	return all
}

// place says where a model is and whether a client would be served.
func (v view) place(m *api.Model) {
	parts := v.serving.PartitionsOf(m.Name)
	slices.SortStableFunc(parts, func(a, b *policy.Partition) int { return cmp.Compare(a.GetRank(), b.GetRank()) })
	var down string
	up := false
	for _, p := range parts {
		m.Partitions = append(m.Partitions, p.GetId())
		s, known := v.states[p.GetId()]
		switch {
		case known && s.Up && slices.Contains(s.Models, m.Name):
			up = true
		case known && s.Up:
			down = p.GetId() + ": it is not loaded yet"
		default:
			down = p.GetId() + ": " + cmp.Or(s.Reason, "down")
		}
	}
	switch {
	case up:
		m.State = api.ModelReady
	case v.failing[m.Name].Model != "":
		m.State, m.StateReason = api.ModelFailed, v.failing[m.Name].Reason+"; change its files and import them, or load it again"
	case len(parts) > 0:
		m.State, m.StateReason = api.ModelDown, down
	default:
		m.State, m.StateReason = api.ModelUnplaced, unplaced(v.serving.Plan.Plan, m.Name)
	}
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

// GPUs lists the devices with the partitions of the serving plan; the CPUs of a
// node on which models may run are the last of them, "cpu".
func (c *Control) GPUs() []api.GPU {
	v := c.view()
	all := []api.GPU{}
	for _, n := range c.nodes {
		for _, g := range n.GetGpus() {
			one := api.GPU{
				ID: g.GetId(), Node: n.GetName(), Type: g.GetType(), MemoryBytes: g.GetMemoryBytes(),
				Emulated: g.GetEmulated(), SharesEnforced: g.GetSharesEnforced(), Partitions: []api.Partition{},
			}
			if cordon, cordoned := v.cordons[g.GetId()]; cordoned {
				one.Cordon = &cordon
			}
			for _, p := range v.serving.GetPartitions() {
				if p.GPU() == g.GetId() && (p.GetNode() == n.GetName() || p.GetNode() == "") {
					one.Partitions = append(one.Partitions, v.partition(p))
				}
			}
			all = append(all, one)
		}
		if cpu := n.GetCpu(); cpu != nil {
			one := api.GPU{ID: "cpu", Node: n.GetName(), Type: cpu.GetType(), MemoryBytes: cpu.GetMemoryBytes(), Emulated: cpu.GetEmulated(), Partitions: []api.Partition{}}
			for _, p := range v.serving.GetPartitions() {
				if p.OnCPU() && p.GetNode() == n.GetName() {
					one.Partitions = append(one.Partitions, v.partition(p))
				}
			}
			all = append(all, one)
		}
	}
	return all
}

// Partitions lists those of the serving plan, by GPU, then the old servers that are
// to go.
func (c *Control) Partitions() []api.Partition {
	v := c.view()
	all := []api.Partition{}
	for _, p := range v.serving.GetPartitions() {
		all = append(all, v.partition(p))
	}
	for _, s := range v.observed.Partitions {
		if s.Retiring {
			one := api.Partition{ID: s.ID, Retiring: true, Models: []string{}, Conditions: []api.Condition{}}
			observed(&one, s)
			all = append(all, one)
		}
	}
	return all
}

// Partition is one of the serving plan; ErrNotFound where it has none of the name.
func (c *Control) Partition(id string) (api.Partition, error) {
	v := c.view()
	for _, p := range v.serving.GetPartitions() {
		if p.GetId() == id {
			return v.partition(p), nil
		}
	}
	return api.Partition{}, fmt.Errorf("%w: the serving plan has no partition %q; tritonctl partition ls shows those there are", ErrNotFound, id)
}

func (v view) partition(p *policy.Partition) api.Partition {
	out := api.Partition{
		ID: p.GetId(), GPU: p.GPU(), ThreadPercentage: int(p.GetThreadPercentage()), MemoryLimitBytes: p.GetMemoryLimitBytes(),
		Rank: int(p.GetRank()), Reason: "not started", Models: []string{}, Serving: []string{},
		BusyShare: 1 - v.c.recorder.PartitionStatistics(p.GetId(), v.now).GetIdleShare(), Conditions: []api.Condition{},
	}
	for _, i := range p.GetInstances() {
		out.Models = append(out.Models, i.GetModel())
	}
	if s, ok := v.states[p.GetId()]; ok {
		observed(&out, s)
		out.Conditions = v.conditions.Of(conditions.Partition, p.GetId())
	}
	return out
}

// observed writes down what is known of a partition's server.
func observed(out *api.Partition, s apply.PartitionState) {
	out.Up, out.Reason, out.Restarts, out.Started, out.Log = s.Up, s.Reason, s.Restarts, s.Begin, s.Log
	out.GRPC, out.HTTP, out.Metrics = s.Endpoint.GRPC, s.Endpoint.HTTP, s.Endpoint.Metrics
	out.SharesEnforced, out.ShareReason = s.SharesEnforced, s.ShareReason
	out.Serving = append([]string{}, s.Models...)
}

func late(l policy.LatePolicy) string {
	switch l {
	case policy.LatePolicy_LATE_POLICY_SERVE:
		return "serve"
	case policy.LatePolicy_LATE_POLICY_DROP:
		return "drop"
	default:
		return ""
	}
}

func source(s policy.ProfileSource) string {
	switch s {
	case policy.ProfileSource_PROFILE_SOURCE_ESTIMATED:
		return "estimated"
	case policy.ProfileSource_PROFILE_SOURCE_CALIBRATED:
		return "calibrated"
	case policy.ProfileSource_PROFILE_SOURCE_OBSERVED:
		return "observed"
	case policy.ProfileSource_PROFILE_SOURCE_DECLARED:
		return "declared"
	default:
		return "unknown"
	}
}

func profile(p *policy.Profile) api.Profile {
	out := api.Profile{GPUType: p.GetGpuType(), Source: source(p.GetSource()), Usable: p.GetUsable(), Interfered: p.GetInterfered(), Points: []api.ProfilePoint{}}
	for _, q := range p.GetPoints() {
		out.Points = append(out.Points, api.ProfilePoint{
			Batch: int(q.GetBatch()), ThreadPercentage: int(q.GetThreadPercentage()),
			LatencySeconds:      q.GetLatencyUs().GetValue() / 1e6,
			ErrorBoundSeconds:   q.GetLatencyUs().GetErrorBound() / 1e6,
			LatencyUpperSeconds: q.GetLatencyUpperUs() / 1e6,
			Observations:        q.GetObservations(),
		})
	}
	return out
}
