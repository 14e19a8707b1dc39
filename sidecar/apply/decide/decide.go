// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Decide says what follows from what is wanted and seen at a time.
func Decide(w Want, s Seen, now time.Time) Decision {
	j := &judgement{want: w, seen: s, now: now, servers: map[Key]*Server{}, wanted: map[Key]bool{}, released: map[place]bool{}}
	for _, p := range w.Partitions {
		j.wanted[p.Key] = true
	}
	for _, v := range s.Servers {
		j.servers[v.Key] = v
	}
	j.fallBack()
	j.release()
	j.route()
	for _, p := range j.want.Partitions {
		j.partition(p)
	}
	for _, v := range s.Servers {
		if !j.wanted[v.Key] {
			j.retire(v)
		}
	}
	j.out.Settled = j.settled()
	return j.out
}

// judgement is one Decide.
type judgement struct {
	want Want
	seen Seen
	now  time.Time

	servers map[Key]*Server
	wanted  map[Key]bool
	// released are places that go before their successors are ready, for memory.
	released map[place]bool
	// routed are the places in the new routes.
	routed map[place]bool
	// pending are wanted instances that are neither ready nor failed.
	pending bool
	out     Decision
}

// place is a model on a server; of any model where Model is empty.
type place struct {
	server uint64
	model  string
}

// server of a wanted partition; nil where there is none that can serve.
func (j *judgement) up(k Key) *Server {
	if v := j.servers[k]; v != nil && v.Phase == Up && v.Broken == "" && v.Known {
		return v
	}
	return nil
}

// serves reports that requests for the model may go to the server.
func (j *judgement) serves(v *Server, model string) bool {
	l, ok := v.Loaded[model]
	return ok && l.Answers && !l.Leaving && v.Phase == Up && v.Broken == "" && !j.released[place{v.ID, model}] && !j.released[place{v.ID, ""}]
}

// current reports that the server has the model as it is wanted.
func (j *judgement) current(v *Server, model string) bool {
	l, ok := v.Loaded[model]
	want := j.want.Models[model].Revision
	return ok && !l.Leaving && (want == "" || l.Revision == want)
}

// failure of the wanted revision of a model on a server.
func (j *judgement) failure(k Key, model string) (Failure, bool) {
	f, ok := j.seen.Loads[Load{k, model, j.want.Models[model].Revision}]
	return f, ok
}

// route decides where requests go.
func (j *judgement) route() {
	j.routed = map[place]bool{}
	names := j.routeNames()
	r := Routes{Places: map[string][]Place{}}
	used := map[uint64]bool{}
	waiting := map[string]bool{}
	for _, model := range j.models() {
		var ready, old []Place
		wanted := 0
		for _, p := range j.want.Partitions {
			i := slices.IndexFunc(p.Instances, func(in Instance) bool { return in.Model == model })
			if i < 0 {
				continue
			}
			wanted++
			if v := j.up(p.Key); v != nil && j.serves(v, model) {
				// Files of before serve on where they are: the server changes over by itself.
				ready = append(ready, Place{Route: names[v.ID], MaxBatch: p.Instances[i].MaxBatch, Revision: v.Loaded[model].Revision})
				j.routed[place{v.ID, model}] = true
			}
		}
		if len(ready) < max(1, wanted-j.want.Models[model].Unavailable) {
			for _, v := range j.seen.Servers {
				if j.serves(v, model) && !j.routed[place{v.ID, model}] {
					old = append(old, Place{Route: names[v.ID], MaxBatch: v.Loaded[model].MaxBatch, Revision: v.Loaded[model].Revision})
					j.routed[place{v.ID, model}] = true
				}
			}
		}
		all := append(ready, old...)
		if len(all) == 0 {
			all = j.coming(model, waiting)
		}
		if len(all) > 0 {
			r.Places[model] = all
		}
	}
	for _, model := range sortedKeys(j.want.Instead) {
		if places := j.retained(model, names, r.Places); len(places) > 0 {
			r.Places[model] = places
		}
	}
	for _, member := range j.members() {
		if places := j.merged(member, names, r.Places); len(places) > 0 {
			r.Places[member] = places
		}
	}
	for at := range j.routed {
		used[at.server] = true
	}
	for _, v := range j.seen.Servers {
		if used[v.ID] {
			r.Partitions = append(r.Partitions, RoutePartition{ID: names[v.ID], Server: v.ID, Partition: v.Partition})
		}
	}
	for _, p := range j.want.Partitions {
		if waiting[p.Partition] {
			r.Partitions = append(r.Partitions, RoutePartition{ID: p.Partition + waitingSuffix, Partition: p.Partition})
		}
	}
	j.out.Routes = r
}

// retained are the old places of a model that others are to take the place of,
// none of which is ready.
func (j *judgement) retained(model string, names map[uint64]string, routed map[string][]Place) (old []Place) {
	if _, wanted := j.want.Models[model]; wanted {
		return nil
	}
	for _, other := range j.want.Instead[model] {
		if slices.ContainsFunc(routed[other], func(p Place) bool { return !p.Waiting }) {
			return nil
		}
	}
	for _, v := range j.seen.Servers {
		if j.serves(v, model) {
			old = append(old, Place{Route: names[v.ID], MaxBatch: v.Loaded[model].MaxBatch, Revision: v.Loaded[model].Revision})
			j.routed[place{v.ID, model}] = true
		}
	}
	return old
}

// waitingSuffix ends the name of a route that nothing is behind yet.
const waitingSuffix = " (to come)"

// coming are the places that a model without any will have: its requests wait
// for them. There are none once it is known that it does not load.
func (j *judgement) coming(model string, waiting map[string]bool) []Place {
	var all []Place
	for _, p := range j.want.Partitions {
		f, failed := j.failure(p.Key, model)
		if failed && !f.chance() || j.want.Given && j.up(p.Key) != nil {
			continue
		}
		for _, in := range p.Instances {
			if in.Model == model {
				waiting[p.Partition] = true
				all = append(all, Place{Route: p.Partition + waitingSuffix, MaxBatch: in.MaxBatch, Revision: j.want.Models[model].Revision, Waiting: true})
			}
		}
	}
	return all
}

// routeNames gives every server a name in the route table: its partition's, or
// where an old and a new one of a partition serve, the old one gets another.
func (j *judgement) routeNames() map[uint64]string {
	names := map[uint64]string{}
	taken := map[string]bool{}
	name := func(v *Server) {
		names[v.ID] = v.Partition
		for n := 2; taken[names[v.ID]]; n++ {
			names[v.ID] = fmt.Sprintf("%s (old %d)", v.Partition, n-1)
		}
		taken[names[v.ID]] = true
	}
	members := map[string]bool{}
	for _, member := range j.members() {
		members[member] = true
	}
	serving := func(v *Server) bool {
		for model := range v.Loaded {
			_, wanted := j.want.Models[model]
			_, replaced := j.want.Instead[model]
			if (wanted || replaced || members[model] || len(v.Loaded[model].Members) > 0) && j.serves(v, model) {
				return true
			}
		}
		return false
	}
	for _, p := range j.want.Partitions {
		if v := j.servers[p.Key]; v != nil && serving(v) {
			name(v)
		}
	}
	for _, v := range j.seen.Servers {
		if _, has := names[v.ID]; !has && serving(v) {
			name(v)
		}
	}
	return names
}

// models are those that are wanted, sorted.
func (j *judgement) models() []string {
	all := make([]string, 0, len(j.want.Models))
	for m := range j.want.Models {
		all = append(all, m)
	}
	slices.Sort(all)
	return all
}

// partition decides for a partition that is wanted.
func (j *judgement) partition(p Partition) {
	v := j.servers[p.Key]
	switch {
	case v == nil:
		j.start(p)
	case v.Phase == Stopping:
		// Wanted again while it ends: another is started once it has.
		j.act(Action{Kind: Stop, Key: v.Key, Server: v.ID})
		j.condition(Condition{Partition: p.Partition, Kind: IsWaiting, Reason: "for the end of its last server"})
		j.pending = true
	case v.Broken != "":
		j.act(Action{Kind: Kill, Key: v.Key, Server: v.ID})
		j.condition(Condition{Partition: p.Partition, Kind: IsFailing, Reason: v.Broken})
		j.pending = true
	case v.Phase == Starting:
		j.act(Action{Kind: Start, Key: p.Key})
		j.condition(Condition{Partition: p.Partition, Kind: IsStarting, Reason: "the server does not answer yet"})
		j.pending = true
	case !v.Known:
		j.condition(Condition{Partition: p.Partition, Kind: IsStarting, Reason: "the server is asked what it has loaded"})
		j.pending = true
	default:
		j.instances(p, v)
	}
}

// start starts a server, if the last one did not fail a moment ago and the GPU
// has room.
func (j *judgement) start(p Partition) {
	f, failed := j.seen.Starts[p.Key]
	if failed {
		j.condition(Condition{Partition: p.Partition, Kind: IsFailing, Reason: f.Reason, Attempts: f.Attempts, Next: f.Next})
		if f.Next.After(j.now) {
			j.wake(f.Next)
			return
		}
	} else {
		j.pending = true
	}
	if !j.fits(p) {
		j.condition(Condition{Partition: p.Partition, Kind: IsWaiting, Reason: fmt.Sprintf("for memory of GPU %s that old servers have", p.GPU)})
		j.pending = true
		return
	}
	j.act(Action{Kind: Start, Key: p.Key})
	if !failed {
		j.condition(Condition{Partition: p.Partition, Kind: IsStarting, Reason: "the server is started"})
	}
}

// instances decides for the models of a server that is up.
func (j *judgement) instances(p Partition, v *Server) {
	wants := map[string]bool{}
	for _, in := range p.Instances {
		wants[in.Model] = true
	}
	var loads []Action
	for _, in := range p.Instances {
		if a, ok := j.instance(p, v, in.Model, wants); ok {
			loads = append(loads, a)
		}
	}
	j.load(v, loads)
	if j.want.Given {
		return
	}
	for _, model := range sortedKeys(v.Loaded) {
		switch {
		case wants[model] && !j.released[place{v.ID, model}]:
		case j.routed[place{v.ID, model}]:
			j.condition(Condition{Partition: p.Partition, Model: model, Kind: IsRetiring, Reason: "it serves until enough of its new places are ready"})
		case j.called(v, model, wants):
			// Triton never ends the unload of a model whose ensemble is being unloaded.
			j.condition(Condition{Partition: p.Partition, Model: model, Kind: IsUnloading, Reason: "after the ensemble that calls it"})
		default:
			j.act(Action{Kind: Unload, Key: v.Key, Server: v.ID, Model: model})
			j.condition(Condition{Partition: p.Partition, Model: model, Kind: IsUnloading, Reason: "once its last request is answered"})
		}
	}
}

// instance decides for one model of a server that is up; a load is returned, for
// loads take turns.
func (j *judgement) instance(p Partition, v *Server, model string, wants map[string]bool) (Action, bool) {
	c := Condition{Partition: p.Partition, Model: model}
	load := Action{Kind: LoadIt, Key: v.Key, Server: v.ID, Model: model, Revision: j.want.Models[model].Revision}
	loaded, has := v.Loaded[model]
	if has && j.current(v, model) && !j.released[place{v.ID, model}] {
		if !loaded.Tried {
			if f, failed := j.failure(p.Key, model); failed {
				c.Kind, c.Reason, c.Attempts, c.Next = IsFailing, f.Reason, f.Attempts, f.Next
				j.condition(c)
				if f.Next.After(j.now) {
					j.wake(f.Next)
					return Action{}, false
				}
			} else {
				c.Kind, c.Reason = IsWarmingUp, "its first request is under way"
				j.condition(c)
				j.pending = true
			}
			warm := Action{Kind: WarmUp, Key: v.Key, Server: v.ID, Model: model, Revision: loaded.Revision}
			warm.Measure = j.seen.Measured[v.GPU] < j.seen.MeasureBudget
			if b := v.Busy[model]; b.Kind == WarmUp && b.Revision == warm.Revision {
				warm = b // it is not begun anew because the budget is used up by now
			}
			j.act(warm)
		}
		return Action{}, false
	}
	if j.want.Given {
		c.Kind, c.Reason = IsWaiting, "those who run the server have it unloaded"
		j.condition(c)
		return Action{}, false
	}
	if f, failed := j.failure(p.Key, model); failed {
		c.Kind, c.Reason, c.Attempts, c.Next = IsFailing, f.Reason, f.Attempts, f.Next
		if f.Next.IsZero() || f.Hung && v.Hung[model] && j.others(v, model) {
			// Another try would take the server from its neighbours.
			j.condition(c)
			return Action{}, false
		}
		if f.Next.After(j.now) {
			j.condition(c)
			j.wake(f.Next)
			return Action{}, false
		}
		j.condition(c)
		if v.Hung[model] {
			j.act(Action{Kind: Kill, Key: v.Key, Server: v.ID})
			return Action{}, false
		}
		return load, true
	}
	pending := j.pending
	j.pending = true
	c.Kind = IsWaiting
	switch {
	case v.Hung[model]:
		// Its files were mended; the server goes on with the old load for ever.
		j.act(Action{Kind: Kill, Key: v.Key, Server: v.ID})
		c.Kind, c.Reason = IsLoading, "the server is started again, for an earlier load of it never ends"
	case j.released[place{v.ID, model}] && has:
		c.Reason = "for the memory of its old files"
	case j.crowded(p, v, model):
		c.Reason = "for the memory of models that leave"
	case has && !j.canary(p, model):
		c.Reason = "for the canary: its new files are tried in one partition first"
		j.pending = pending || !j.failed(model)
	default:
		if callee := j.callee(v, model, wants); callee != "" {
			c.Reason = fmt.Sprintf("for model %s, which it calls", callee)
			break
		}
		c.Kind, c.Reason = IsLoading, "the server loads it"
		j.condition(c)
		return load, true
	}
	j.condition(c)
	return Action{}, false
}

// called reports that an ensemble that leaves a server calls a model.
func (j *judgement) called(v *Server, model string, wants map[string]bool) bool {
	for other, l := range v.Loaded {
		if other != model && !wants[other] && slices.Contains(l.Calls, model) && !slices.Contains(v.Loaded[model].Calls, other) {
			return true
		}
	}
	return false
}

// others reports that a server serves something else.
func (j *judgement) others(v *Server, model string) bool {
	for other := range v.Loaded {
		if other != model && j.routed[place{v.ID, other}] {
			return true
		}
	}
	return false
}

// callee is a model that an ensemble calls and that is still to come on its
// server; empty where there is none. One that failed is not waited for: the
// server says best what it is missing.
func (j *judgement) callee(v *Server, model string, wants map[string]bool) string {
	for _, called := range j.want.Models[model].Calls {
		if !wants[called] || called == model || j.current(v, called) {
			continue
		}
		if _, failed := j.failure(v.Key, called); !failed && !slices.Contains(j.want.Models[called].Calls, model) {
			return called
		}
	}
	return ""
}

// canary reports whether changed files of a model may be loaded in a partition:
// where no place answers with them yet, one partition goes first, that of the
// highest rank, whose requests are the fewest.
func (j *judgement) canary(p Partition, model string) bool {
	first := p
	for _, q := range j.want.Partitions {
		if !slices.ContainsFunc(q.Instances, func(in Instance) bool { return in.Model == model }) {
			continue
		}
		v := j.up(q.Key)
		if v == nil {
			continue
		}
		if l := v.Loaded[model]; l.Tried && j.current(v, model) {
			return true
		}
		if _, has := v.Loaded[model]; !has {
			continue
		}
		if cmp.Or(cmp.Compare(q.Rank, first.Rank), cmp.Compare(q.Partition, first.Partition)) > 0 {
			first = q
		}
	}
	return first.Key == p.Key
}

// failed reports that a model failed to load wherever it was tried.
func (j *judgement) failed(model string) bool {
	somewhere := false
	for _, p := range j.want.Partitions {
		if _, failed := j.failure(p.Key, model); failed {
			somewhere = true
		}
	}
	return somewhere
}

// load begins as many loads as a server takes at a time, those under way first.
// A suspect, in whose load a server has died, is loaded alone and last.
func (j *judgement) load(v *Server, loads []Action) {
	suspect := func(a Action) bool {
		f, ok := j.seen.Loads[Load{v.Key, a.Model, a.Revision}]
		return ok && f.Deaths > 0
	}
	slices.SortStableFunc(loads, func(a, b Action) int {
		rank := func(a Action) int {
			switch {
			case v.Busy[a.Model] == a:
				return 0
			case !suspect(a):
				return 1
			default:
				return 2
			}
		}
		return cmp.Compare(rank(a), rank(b))
	})
	begun := 0
	for _, a := range loads {
		full := begun >= max(1, j.seen.ParallelLoads)
		if suspect(a) && begun > 0 || full {
			continue
		}
		begun++
		if suspect(a) {
			begun = max(begun, j.seen.ParallelLoads)
		}
		j.act(a)
	}
}

// retire ends a server that is not wanted, once it is not routed to.
func (j *judgement) retire(v *Server) {
	for model := range v.Loaded {
		if j.routed[place{v.ID, model}] {
			j.condition(Condition{Partition: v.Partition, Kind: IsRetiring, Reason: "its old server serves until enough new places are ready"})
			return
		}
	}
	if v.Phase == Starting || !v.Known && v.Phase == Up && v.Broken == "" {
		return // its start is superseded, or it is being asked what it serves
	}
	kind := Stop
	if v.Broken != "" {
		kind = Kill
	}
	j.act(Action{Kind: kind, Key: v.Key, Server: v.ID})
	j.condition(Condition{Partition: v.Partition, Kind: IsStopping, Reason: "once its last request is answered"})
}

// settled reports that every wanted instance is routed to or has failed.
func (j *judgement) settled() bool { return !j.pending }

func (j *judgement) act(a Action) { j.out.Actions = append(j.out.Actions, a) }

func (j *judgement) condition(c Condition) { j.out.Conditions = append(j.out.Conditions, c) }

func (j *judgement) wake(at time.Time) {
	if j.out.Wake.IsZero() || at.Before(j.out.Wake) {
		j.out.Wake = at
	}
}

func sortedKeys[V any](m map[string]V) []string {
	all := make([]string, 0, len(m))
	for k := range m {
		all = append(all, k)
	}
	slices.Sort(all)
	return all
}
