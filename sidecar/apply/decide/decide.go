// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"slices"
	"time"
)

// Decide says what follows from what is wanted and seen at a time.
func Decide(w Want, s Seen, now time.Time) Decision {
	j := &judgement{want: w, seen: s, now: now, servers: map[Key]*Server{}, wanted: map[Key]bool{}, released: map[place]bool{}, begun: map[string]int{}, measuring: map[string]bool{}, canaries: map[string]canary{}}
	for _, p := range w.Partitions {
		j.wanted[p.Key] = true
	}
	for _, v := range s.Servers {
		j.servers[v.Key] = v
	}
	j.out.Blocked = map[Key]string{}
	j.index()
	j.fallBack()
	j.holders = holders(j.want.Partitions)
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
	// loaded are the servers that have a model, by its name, and onGPU those of a GPU, both in their order.
	loaded map[string][]*Server
	onGPU  map[string][]*Server
	// holders are where each model is wanted, in the plan's order.
	holders map[string][]holder
	// failures are the models whose load failed in a wanted partition; nil: not asked for yet.
	failures map[string]bool
	// canaries of models that were asked for.
	canaries map[string]canary
	// groups are the merge groups of members; nil: not asked for yet.
	groups map[string]string
	// released are places that go before their successors are ready, for memory, a GPU or its claim.
	released map[place]bool
	// begun counts the servers that are to be started now, by the node of a GPU that is taken whole.
	begun map[string]int
	// routed are the places in the new routes.
	routed map[place]bool
	// measuring are the GPUs on which a warm-up was decided on that measures.
	measuring map[string]bool
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
	if v := j.servers[k]; v != nil && v.Stays() && v.Known {
		return v
	}
	return nil
}

// serves reports that requests for the model may go to the server.
func (j *judgement) serves(v *Server, model string) bool {
	l, ok := v.Loaded[model]
	return ok && l.Answers && !l.Leaving && !j.faulted(v, model) && v.Stays() && !j.released[place{v.ID, model}] && !j.released[place{v.ID, ""}]
}

// current reports that the server has the model as it is wanted.
func (j *judgement) current(v *Server, model string) bool {
	l, ok := v.Loaded[model]
	want := j.want.Models[model].Revision
	return ok && !l.Leaving && (want == "" || l.Revision == want)
}

// faulted reports that executions of what the server has loaded fail.
func (j *judgement) faulted(v *Server, model string) bool {
	return j.seen.Loads[Load{v.Key, model, v.Loaded[model].Revision}].Ran
}

// failure of the wanted revision of a model on a server.
func (j *judgement) failure(k Key, model string) (Failure, bool) {
	f, ok := j.seen.Loads[Load{k, model, j.want.Models[model].Revision}]
	return f, ok
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
	case v.Anew != "":
		j.act(Action{Kind: Stop, Key: v.Key, Server: v.ID})
		j.condition(Condition{Partition: p.Partition, Kind: IsStopping, Reason: v.Anew + ", once its last request is answered"})
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
	if !j.hasGPU(p) {
		j.condition(Condition{Partition: p.Partition, Kind: IsWaiting, Reason: fmt.Sprintf("for a GPU of node %s that an old server has", NodeOf(p.GPU))})
		j.pending = true
		return
	}
	if j.claimed(p) {
		j.condition(Condition{Partition: p.Partition, Kind: IsWaiting, Reason: fmt.Sprintf("for the end of old servers that have GPU %s claimed in another way", p.GPU)})
		j.pending = true
		return
	}
	if !j.fits(p) {
		j.condition(Condition{Partition: p.Partition, Kind: IsWaiting, Reason: fmt.Sprintf("for memory of GPU %s that old servers have", p.GPU)})
		j.pending = true
		return
	}
	j.begun[NodeOf(p.GPU)]++
	j.act(Action{Kind: Start, Key: p.Key})
	if !failed {
		j.condition(Condition{Partition: p.Partition, Kind: IsStarting, Reason: "the server is started"})
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
