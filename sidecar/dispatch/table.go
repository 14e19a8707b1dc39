// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync/atomic"

	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/ensemble"
	"github.com/conch-serving/conch/sidecar/dispatch/forecast"
	"github.com/conch-serving/conch/sidecar/dispatch/names"
	"github.com/conch-serving/conch/sidecar/dispatch/queue"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// routes is a route table made ready for requests: immutable.
type routes struct {
	table  *router.Table
	models map[string]*route
	names  names.Set
	// superseded is closed when another table is in force.
	superseded chan struct{}
}

// route is one model under one table: immutable. It does not say where the model
// is served: the router does, at the time of each request.
type route struct {
	*model
	spec     *router.Model
	rules    *batch.Rules
	policy   *batch.QueuePolicy // nil: none
	maxBatch int
	tallies  []*tally
	// executes is the model whose executions requests are in: the route's own, or its merge group's.
	executes *model
	// graph of an ensemble that Conch executes step by step; nil: the model is none, or unsplit says why its requests pass through whole.
	graph   *ensemble.Graph
	unsplit string
}

// model is the state of a model that is kept from one table to the next.
type model struct {
	name    string
	counts  counts
	account account      // what admission counts for it
	late    atomic.Int64 // its requests, in its queue or in that of its merge group, that can be in time no more
	margin  forecast.Margin
	// series of requests that never reached a partition.
	series seriesSet
	// runs is the backend that the model runs in.
	runs atomic.Pointer[string]
	// unsplittable is set when an answer did not have the batch's rows.
	unsplittable atomic.Bool
	failing      failing
	// known are the failures that are known to be its requests' own fault, outside merge groups and in one; nil: none is known.
	known [2]atomic.Pointer[knownFault]
	// unlendable is set when its tensors did not fit shared memory.
	unlendable atomic.Bool
	// lately is how long its last execution took, in nanoseconds; 0: none has ended.
	lately atomic.Int64

	// Guarded by queues.mu.
	id        queue.ModelID
	scheduled bool    // the scheduler has it
	classes   []class // indices are the queue's profile classes; never shrinks
	spec      *router.Model
	queueSpec queue.ModelSpec
	rules     *batch.Rules
	out       bool   // nothing has served it for too long
	nowhere   bool   // no place of it is usable
	revision  string // of the model's files
	tallies   map[string]*tally
	pace      forecast.Lately // of steps that call it
	lost      forecast.Losses // of an ensemble: its requests that were dropped after their first steps
	allowed   forecast.Pace   // how long its requests may take, once a step has called it: slo
	// allowedFrom is since when the queue plans with what allowed was then; 0: with the model's SLO.
	allowedFrom queue.Time
	inGroup     int // requests that wait in the queue of the model's merge group
}

func (m *model) backend() string {
	if b := m.runs.Load(); b != nil {
		return *b
	}
	return ""
}

// Routes returns the table in force, nil before the first Swap.
func (d *Dispatcher) Routes() *router.Table {
	if t := d.routes.Load(); t != nil {
		return t.table
	}
	return nil
}

// Swap replaces the route table, all or nothing. It does not wait: requests
// that are queued stay queued and run under the new table, and executions under
// way finish where they are. No new work starts on a place that the table does
// not have. Wait for Drained before unloading or stopping such a place.
//
// What a table does not change stays as it is: requests wait for the change of a few models only as long as those take.
func (d *Dispatcher) Swap(ctx context.Context, t *router.Table) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	d.swapping.Lock()
	defer d.swapping.Unlock()
	before := d.routes.Load()
	if before == nil {
		before = &routes{table: new(router.Table), superseded: make(chan struct{})}
	}
	t = t.Keeping(before.table)
	change, err := d.router.Prepare(t)
	if err != nil {
		return err
	}
	plans, err := d.compile(t, change, before.models)
	if err != nil {
		change.Discard()
		return err
	}
	next := &routes{table: t, names: names.New(t.Names, before.names), models: make(map[string]*route, len(t.Models)), superseded: make(chan struct{})}
	for name := range t.Models {
		if change.Kept(name) {
			next.models[name] = before.models[name]
		}
	}
	changed := routed(plans, next)
	var clients []*account // of the models that clients can name; nil: they are the same
	if namesOthers(t, before.models) {
		clients = []*account{}
		for _, r := range next.models {
			if !r.spec.Internal {
				clients = append(clients, &r.account)
			}
		}
	}
	var removed, unplaced, regrouped []*model
	for _, p := range plans {
		if group := p.leaves; group != nil && t.Models[group.name] != nil && !slices.Contains(regrouped, group) {
			regrouped = append(regrouped, group)
		}
	}
	for name, r := range before.models {
		switch m := t.Models[name]; {
		case m == nil:
			removed = append(removed, r.model)
		case len(r.spec.Places) > 0 && len(m.Places) == 0 && m.Membership == nil:
			unplaced = append(unplaced, r.model)
		}
	}

	q := d.queues
	defer change.Notify() // once requests can be queued again
	q.mu.Lock()
	held := d.clock.Now()
	defer func() { d.o.Swapped(d.clock.Now().Sub(held)) }()
	defer q.unlock()
	for _, p := range plans {
		p.model.adopt(p)
	}
	q.table = next
	// Requests that are queued for models that the new table does not have, or does not
	// place, get a lease under the old one.
	q.removeModels(removed)
	for _, m := range unplaced {
		q.do(func(s *queue.Scheduler) error { return s.Empty(q.now(), m.id, queue.DropModelRemoved) })
	}
	if clients != nil {
		d.admission.divide(clients)
	}
	retired := change.Commit()
	d.routes.Store(next)
	close(before.superseded)
	q.configure(t, changed, removed, change, retired)
	for _, m := range regrouped { // its queued requests are queued again by their new memberships
		q.do(func(s *queue.Scheduler) error { return s.Empty(q.now(), m.id, queue.DropClosed) })
	}
	d.loads.wake(func(model string) bool { r := next.models[model]; return r != nil && r.spec.Cold })
	return nil
}

// namesOthers reports whether a table has other models that clients can name than these.
func namesOthers(t *router.Table, models map[string]*route) bool {
	if len(t.Models) != len(models) {
		return true
	}
	for name, m := range t.Models {
		if was := models[name]; was == nil || was.spec.Internal != m.Internal {
			return true
		}
	}
	return false
}

// plan is what a table changes of a model, made and checked before anything is changed and without the queues' lock.
type plan struct {
	model      *model // a new one, if the table in force does not have it
	spec       *router.Model
	discipline queue.Discipline
	drop       *queue.DropPolicy
	rules      *batch.Rules
	policy     *batch.QueuePolicy
	graph      *ensemble.Graph
	unsplit    string
	tallies    []*tally
	kept       map[string]*tally // by version
	leaves     *model            // the merge group that it runs in otherwise from now on, or no more; nil: none
}

// compile makes the plans of the models that a change does not keep. Only Swap changes what it reads of a model.
func (d *Dispatcher) compile(t *router.Table, change *router.Change, before map[string]*route) (map[string]*plan, error) {
	plans := map[string]*plan{}
	for name, spec := range t.Models {
		if change.Kept(name) {
			continue
		}
		p := &plan{model: &model{name: name}, spec: spec, rules: batch.NewRules(spec.Config, spec.Versions, t.Members(spec.Config)...), policy: batch.NewQueuePolicy(spec.Written, spec.Config)}
		var err error
		if p.discipline, err = queue.NewDiscipline(spec.Discipline, spec.Parameters); err != nil {
			return nil, fmt.Errorf("%w %d: model %q: %w", router.ErrTable, t.Revision, name, err)
		}
		if spec.DropPolicy != "" {
			if p.drop, err = queue.NewDropPolicy(spec.DropPolicy); err != nil {
				return nil, fmt.Errorf("%w %d: model %q: %w", router.ErrTable, t.Revision, name, err)
			}
		}
		if spec.Config.GetEnsembleScheduling() != nil {
			if p.graph, p.unsplit = ensemble.Split(spec.Config, stepsOf(t)); p.graph != nil {
				p.rules = p.rules.Whole()
			}
		}
		if r := before[name]; r != nil {
			p.follows(r, before)
		}
		p.kept, p.tallies = p.model.talliesOf(spec)
		plans[name] = p
	}
	return plans, nil
}

// follows has a plan change the model of a route, of the table in force.
func (p *plan) follows(r *route, before map[string]*route) {
	was := r.spec
	p.model = r.model
	// Rules carry the seed of the keys of queued requests, so they are kept while
	// the model is the same. Those of an ensemble are always replaced: they depend
	// on its members too, and no request of an ensemble is queued.
	if p.spec.Config.GetEnsembleScheduling() == nil && proto.Equal(was.Config, p.spec.Config) && slices.Equal(was.Versions, p.spec.Versions) {
		p.rules = p.model.rules
	}
	if was.Membership != nil && !reflect.DeepEqual(was.Membership, p.spec.Membership) {
		p.leaves = before[was.Membership.Group].model
	}
}

// routed adds the routes of changed models to a table's, and returns them.
func routed(plans map[string]*plan, to *routes) (changed []*route) {
	for name, p := range plans {
		r := &route{
			model: p.model, spec: p.spec, rules: p.rules, policy: p.policy, maxBatch: p.spec.RowLimit(), tallies: p.tallies,
			executes: p.model, graph: p.graph, unsplit: p.unsplit,
		}
		to.models[name] = r
		changed = append(changed, r)
	}
	for _, r := range changed {
		if r.spec.Membership == nil {
			continue
		}
		group := to.models[r.spec.Membership.Group]
		r.executes = group.model
		r.rules = r.rules.Sharing(group.rules)
		r.maxBatch = min(r.maxBatch, group.spec.RowLimit())
	}
	return changed
}

// adopt gives a model what a plan changes of it. Guarded by queues.mu.
func (m *model) adopt(p *plan) {
	m.spec, m.rules = p.spec, p.rules
	m.tallies, m.revision = p.kept, p.spec.Revision
	m.unsplittable.Store(false)
	m.unlendable.Store(false)
	backend := p.spec.Config.GetBackend()
	m.runs.Store(&backend)
	m.queueSpec.Discipline, m.queueSpec.Drop = p.discipline, p.drop
}

// removeModels removes models. Guarded by mu.
func (q *queues) removeModels(removed []*model) {
	q.do(func(s *queue.Scheduler) error {
		s.Reconfigure(q.now(), func() {
			for _, m := range removed {
				q.check(s.RemoveModel(q.now(), m.id))
			}
		})
		return nil
	})
	for _, m := range removed { // the scheduler may have failed, or have a batch of it in its hands until now
		delete(q.byID, m.id)
	}
}

// configure gives the scheduler what a table that has come into force changes. Guarded by mu.
func (q *queues) configure(t *router.Table, changed []*route, removed []*model, change *router.Change, retired []*router.Partition) {
	q.do(func(s *queue.Scheduler) error {
		now := q.now()
		s.Reconfigure(now, func() {
			for _, partition := range retired {
				for _, p := range q.executors[partition] {
					q.check(s.DrainExecutor(now, p.id))
				}
			}
			gone := make(map[queue.ModelID]bool, len(changed)+len(removed)) // from where they were
			for _, m := range removed {
				gone[m.id] = true
			}
			added := make(map[*router.Partition][]placed)
			for _, r := range changed {
				on := r.spec.Places
				if r.spec.Membership != nil {
					on = nil // the group is there
				}
				for _, at := range on {
					r.class(change.Partition(at.Partition).Spec())
				}
				if r.scheduled {
					gone[r.id] = true
				}
				q.check(q.setQueue(s, now, r.model))
				for _, at := range on {
					if p := change.Partition(at.Partition); r.maxBatch > 0 {
						added[p] = append(added[p], placed{at, queue.Service{Model: r.id, Class: r.class(p.Spec()), MaxBatch: at.MaxBatch}})
					}
				}
			}
			for _, spec := range t.Partitions {
				p := change.Partition(spec.ID)
				q.assign(s, now, p, int32(spec.Rank), gone, added[p])
			}
		})
		return nil
	})
	for _, p := range retired {
		q.remove(p)
	}
	lost := false
	for _, r := range changed {
		q.setOut(r.model)
		lost = q.setNowhere(r.model) || lost
	}
	if lost {
		q.endWaits()
	}
}

// setQueue gives the scheduler a model's specification.
func (q *queues) setQueue(s *queue.Scheduler, now queue.Time, m *model) error {
	spec := q.modelSpec(m)
	spec.Discipline, spec.Drop = m.queueSpec.Discipline, m.queueSpec.Drop
	m.queueSpec = spec
	if m.scheduled {
		return s.SetModel(now, m.id, spec)
	}
	m.id, m.scheduled = s.AddModel(now, spec), true
	q.byID[m.id] = m
	return nil
}

// late converts a policy's choice to the queue's type.
func late(p policy.LatePolicy) queue.Late {
	if p == policy.LatePolicy_LATE_POLICY_DROP {
		return queue.LateDrop
	}
	return queue.LateServe
}

// route finds a model in the table in force.
func (d *Dispatcher) route(name string) (*route, error) {
	t, err := d.table()
	if err != nil {
		return nil, err
	}
	r := t.models[name]
	if r == nil {
		return nil, t.table.Unknown(name, "")
	}
	return r, nil
}

// unknown is the error for a model that the table in force does not have.
func (d *Dispatcher) unknown(name string) error {
	if _, err := d.route(name); err != nil {
		return err
	}
	return new(router.Table).Unknown(name, "") // it has come a moment ago
}

// modelOf finds a model in the table in force; nil: it does not have it.
func (d *Dispatcher) modelOf(name string) *model {
	if r, err := d.route(name); err == nil {
		return r.model
	}
	return nil
}

// unserved returns the error for a request whose model has no route: err, or
// Triton's error for the version that the request asked for.
func (d *Dispatcher) unserved(r *batch.Request, err error) error {
	if t := d.routes.Load(); t != nil && r.Version != "" && t.models[r.Model] == nil {
		return t.table.Unknown(r.Model, r.Version)
	}
	return err
}
