// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"slices"
	"time"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply/decide"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// loop is the state of the one goroutine that decides. Nothing of it is touched
// by another; actions and watches pass it what they found by mail.
type loop struct {
	r *Reconciler

	desired *Desired // nil before the first: nothing is touched
	want    decide.Want
	specs   map[decide.Key]driver.Spec
	files   files

	fleet
	lastID uint64
	// wantedAt is where in want.Partitions each partition is.
	wantedAt map[string]int
	// restarts counts the servers of a partition that died; reasons says why the
	// last one did.
	restarts map[string]int
	reasons  map[string]string
	starts   map[decide.Key]decide.Failure
	loads    map[decide.Load]decide.Failure
	errs     map[decide.Load]error
	kept     map[decide.Load]keeping
	measured map[string]measuring
	// timed are the files that warm-ups have measured.
	timed map[timing]bool
	// accepts are models that have answered a warm-up.
	accepts map[string]bool

	under map[decide.Slot]*task
	last  decide.Decision
	since map[conditionKey]time.Time

	table *router.Table
	// swapped: table is in force. Where it is not, nothing is taken down.
	swapped bool
	waiters []waiter
	alarm   *time.Timer
	closing bool
	// swept counts the directories that were removed.
	swept int
	// nothingNew: the loop's latest message changes nothing.
	nothingNew bool
	// mutes are the servers that answer no health probe, and are not taken for broken yet.
	mutes map[*server]bool
	// cutSince is when no server of any node answered the last time; zero: there always was one.
	cutSince time.Time
}

// server is a process with what the loop knows of it.
type server struct {
	*decide.Server
	// process is nil while it starts.
	process driver.Server
	// routes are the names that it has had in route tables.
	routes map[string]bool
	// warmed are the server's statistics of models after their warm-up.
	warmed map[string][]*tritonpb.ModelStatistics
	// touched is when conch last loaded or unloaded a model, as the watch counts
	// its looks: an older look is out of date.
	touched map[string]uint64
	watch   *watch
	// looked is the number of the last look that was taken in, or of the second that
	// failed; those up to stale began before the state that is desired now.
	looked, stale uint64
	// reported: OnPartition has been called with it up.
	reported bool
	// answered is when the last health probe that it answered was sent.
	answered time.Time
	// silent is since when it answers none, and how; nil: it does.
	silent *silence
}

// measuring is for how long models of a GPU were measured, and when last.
type measuring struct {
	took time.Duration
	last time.Time
}

// measuringPause is after which a GPU's models may be measured anew.
const measuringPause = time.Minute

type conditionKey struct {
	partition, model string
	kind             decide.ConditionKind
}

// waiter waits in Settle.
type waiter struct {
	generation uint64
	models     []string
	result     chan<- error
	ctx        context.Context
}

func newLoop(r *Reconciler) *loop {
	return &loop{
		r: r, files: files{}, specs: map[decide.Key]driver.Spec{}, restarts: map[string]int{}, reasons: map[string]string{},
		starts: map[decide.Key]decide.Failure{}, loads: map[decide.Load]decide.Failure{}, errs: map[decide.Load]error{},
		kept: map[decide.Load]keeping{}, timed: map[timing]bool{}, measured: map[string]measuring{}, accepts: map[string]bool{}, mutes: map[*server]bool{}, under: map[decide.Slot]*task{}, since: map[conditionKey]time.Time{},
	}
}

// run decides until Close. A decision is made whenever a message came or a
// time has come, and not twice for what came together.
func (l *loop) run() {
	defer close(l.r.ended)
	l.alarm = time.NewTimer(0)
	defer l.alarm.Stop()
	for {
		select {
		case <-l.r.box.signal:
		case <-l.alarm.C:
		}
		messages := l.r.box.take()
		news := len(messages) == 0 // the alarm, then
		for _, message := range messages {
			l.nothingNew = false
			message(l)
			news = news || !l.nothingNew
		}
		if l.closing {
			return
		}
		if news {
			l.step()
		}
	}
}

// step is one turn: decide, route, do, tell.
func (l *loop) step() {
	if l.desired == nil {
		return
	}
	now := time.Now()
	l.last = decide.Decide(l.want, l.seen(now), now)
	l.route()
	l.supersede()
	begins := l.swapped && l.r.o.Fence() == nil
	if begins {
		l.begin()
	}
	l.publish(now)
	l.settle()
	next := l.last.Wake
	if !begins {
		next = now.Add(time.Second)
	}
	if !next.IsZero() {
		l.alarm.Reset(max(next.Sub(now), time.Millisecond))
	}
}

func (l *loop) seen(now time.Time) decide.Seen {
	s := decide.Seen{
		Starts: l.starts, Loads: l.loads, Measured: map[string]time.Duration{}, MeasureBudget: l.r.o.WarmUpBudget, ParallelLoads: l.r.o.ParallelLoads,
	}
	for gpu, m := range l.measured {
		if now.Sub(m.last) < measuringPause {
			s.Measured[gpu] = m.took
		}
	}
	for _, v := range l.servers {
		v.Busy = map[string]decide.Action{}
		s.Servers = append(s.Servers, v.Server)
	}
	for slot, t := range l.under {
		v := l.server(slot.Server)
		if v == nil {
			continue
		}
		v.Busy[slot.Model] = t.Action
		if t.Kind == decide.WarmUp && t.Measure {
			s.Measured[v.GPU] += now.Sub(t.begin) // it may never end
		}
	}
	return s
}

// set takes in another desired state.
func (l *loop) set(d *Desired) {
	l.forget()
	l.remember(d.Revision)
	l.desired = d
	before := l.specs
	l.want, l.specs = wanted(d, l.r.o.Driver)
	l.wantedAt = make(map[string]int, len(l.want.Partitions))
	if len(l.want.Partitions) == 0 {
		l.r.cut.Store(nil)
	}
	for i, p := range l.want.Partitions {
		l.wantedAt[p.Partition] = i
	}
	for k, spec := range before {
		if _, still := l.specs[k]; !still && len(l.byKey[k]) == 0 {
			l.sweep(spec)
		}
	}
	for k := range l.starts {
		if _, still := l.specs[k]; !still {
			delete(l.starts, k)
		}
	}
	for k := range l.loads {
		if l.revisionOf(k.Model) != k.Revision {
			delete(l.loads, k)
			delete(l.errs, k)
		}
	}
	for k := range l.timed {
		if l.want.Models[k.model].Revision != k.revision {
			delete(l.timed, k)
		}
	}
	for k := range l.kept {
		if l.revisionOf(k.Model) != k.Revision {
			delete(l.kept, k)
		}
	}
	for _, v := range l.servers {
		if d.Given && v.watch != nil {
			// The desired state is what was observed there a moment ago.
			v.stale = v.watch.anew()
		}
		for model, loaded := range v.Loaded {
			if m, ok := l.want.Models[model]; ok {
				loaded.Memory = m.Memory
				v.Loaded[model] = loaded
			}
		}
	}
}

// revisionOf is what is wanted of a model, or of a member that serves in the place of its merge group.
func (l *loop) revisionOf(model string) string {
	if m, ok := l.want.Models[model]; ok {
		return m.Revision
	}
	return l.want.Members[model].Revision
}

// calls are the models that the steps of a loaded one call, as far as is known.
func (l *loop) calls(model, revision string) (all []string) {
	if m := l.files[fileKey(model, revision)]; m != nil {
		for _, step := range m.Config.GetEnsembleScheduling().GetStep() {
			all = append(all, step.GetModelName())
		}
	}
	return all
}

// members are those of a loaded merge group, as far as is known.
func (l *loop) members(model, revision string) []string {
	if m := l.files[fileKey(model, revision)]; m != nil {
		return m.Derived.MemberNames()
	}
	return nil
}

// forget drops the files that neither a server has nor the desired state.
func (l *loop) forget() {
	kept := files{}
	for _, v := range l.servers {
		for model, loaded := range v.Loaded {
			if m := l.files[fileKey(model, loaded.Revision)]; m != nil {
				kept[fileKey(model, loaded.Revision)] = m
			}
		}
	}
	if l.desired != nil {
		l.files = kept
	}
}

// remember notes the files of a repository revision: servers may have them.
func (l *loop) remember(r *repo.Revision) {
	for _, m := range r.Models {
		if m.Config != nil {
			l.files[fileKey(m.Name, m.StagedRevision())] = m
		}
	}
}

// find takes in a server of an earlier conch.
func (l *loop) find(s driver.Server) {
	spec := s.Spec()
	l.lastID++
	v := l.newServer(decide.Key{Partition: spec.Partition.GetId(), Hash: spec.Hash}, spec)
	v.Phase = decide.Up
	v.process = s
	l.startWatch(v)
}

// takeOver says which of the servers that were found are as the desired state has them.
func (l *loop) takeOver() (t TakeOver) {
	there := map[decide.Key]bool{}
	for _, v := range l.servers {
		if there[v.Key] = true; l.wants(v) {
			t.Kept = append(t.Kept, v.Partition)
		} else {
			t.Unwanted = append(t.Unwanted, v.Partition)
		}
	}
	for k := range l.specs {
		if !there[k] {
			t.Missing = append(t.Missing, k.Partition)
		}
	}
	slices.Sort(t.Kept)
	slices.Sort(t.Unwanted)
	slices.Sort(t.Missing)
	return t
}

func (l *loop) newServer(k decide.Key, spec driver.Spec) *server {
	l.lastID++
	v := &server{
		Server: &decide.Server{
			ID: l.lastID, Key: k, GPU: spec.Partition.GetNode() + "/" + spec.GPU.GetId(), Memory: spec.Partition.GetMemoryLimitBytes(), Claim: spec.Claim,
			Loaded: map[string]decide.Loaded{}, Hung: map[string]bool{},
		},
		routes: map[string]bool{}, warmed: map[string][]*tritonpb.ModelStatistics{}, touched: map[string]uint64{},
	}
	l.add(v)
	return v
}

// wants reports that a server is one of those desired.
func (l *loop) wants(v *server) bool { _, ok := l.specs[v.Key]; return ok }

// supersede cancels what is under way and should not be. The end of a server is
// not cancelled: it is half gone.
func (l *loop) supersede() {
	wanted := map[decide.Slot]decide.Action{}
	for _, a := range l.last.Actions {
		wanted[a.Slot()] = a
	}
	for slot, t := range l.under {
		if wanted[slot] != t.Action && t.Kind != decide.Kill && !t.final.Load() {
			t.cancel()
		}
	}
}

// begin starts what should be under way and is not. What is cancelled keeps its
// slot until it has ended.
func (l *loop) begin() {
	for _, a := range l.last.Actions {
		if l.under[a.Slot()] == nil {
			l.do(a)
		}
	}
}

// close ends the loop; what it returns are the servers that run.
func (l *loop) close() []*server {
	l.closing = true
	l.r.box.close()
	var all []*server
	for _, v := range l.servers {
		if v.process != nil {
			all = append(all, v)
		}
	}
	for _, w := range l.waiters {
		w.result <- ErrClosed
	}
	return all
}

// route puts the decision's routes in force.
func (l *loop) route() {
	t := l.tableOf(l.last.Routes)
	for _, p := range l.last.Routes.Partitions {
		if p.Server == 0 { // reported before the table names it, so that no request goes there
			l.r.o.Router.SetPartitionState(p.ID, false, "its server is to come")
		}
	}
	if !l.swapped || l.table == nil || !sameTable(l.table, t) {
		began := time.Now()
		err := l.r.o.Router.Swap(l.r.life, t)
		if l.r.o.OnAction != nil {
			l.r.o.OnAction(Action{Kind: decide.Swap, Start: began, Duration: time.Since(began), Err: err})
		}
		if err != nil {
			if l.swapped || l.table == nil {
				l.r.o.Logger.Error("the route table could not be put in force; nothing is taken down, and it is tried again", "error", err)
			}
			l.swapped, l.table = false, t
			return
		}
		l.table, l.swapped = t, true
	}
	for _, p := range l.last.Routes.Partitions {
		if p.Server != 0 {
			l.server(p.Server).routes[p.ID] = true
			l.r.o.Router.SetPartitionState(p.ID, true, "")
		}
	}
}
