// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"maps"
	"slices"
	"time"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/apply/decide"
	"github.com/conch-serving/conch/sidecar/apply/mps"
)

// publish shows the loop's state to others.
func (l *loop) publish(now time.Time) {
	p := &picture{observed: Observed{Generation: l.desired.Generation, Settled: l.last.Settled && l.swapped}, warmed: map[string]map[string][]*tritonpb.ModelStatistics{}}
	p.observed.Conditions = l.conditions(now)
	for _, w := range l.want.Partitions {
		p.observed.Partitions = append(p.observed.Partitions, l.partitionState(w))
	}
	for _, v := range l.servers {
		if !l.wants(v) && v.process != nil {
			s := l.stateOf(v)
			s.Retiring = true
			p.observed.Partitions = append(p.observed.Partitions, s)
		}
	}
	for _, route := range l.last.Routes.Partitions {
		if v := l.server(route.Server); v != nil {
			p.warmed[route.ID] = maps.Clone(v.warmed)
		}
	}
	l.r.published.Store(p)
}

// conditions are those of the last decision, with since when they hold.
func (l *loop) conditions(now time.Time) []Condition {
	since := map[conditionKey]time.Time{}
	var all []Condition
	for _, c := range l.last.Conditions {
		k := conditionKey{c.Partition, c.Model, c.Kind}
		since[k] = now
		if before, held := l.since[k]; held {
			since[k] = before
		}
		condition := Condition{Condition: c, Since: since[k]}
		if at, wanted := l.wantedAt[c.Partition]; wanted && c.Kind == decide.IsFailing {
			condition.Err = l.errs[decide.Load{Key: l.want.Partitions[at].Key, Model: c.Model, Revision: l.want.Models[c.Model].Revision}]
		}
		all = append(all, condition)
	}
	l.since = since
	return all
}

// partitionState is that of a wanted partition, with or without a server.
func (l *loop) partitionState(w decide.Partition) PartitionState {
	s := PartitionState{ID: w.Partition, Reason: l.reasons[w.Partition], Restarts: l.restarts[w.Partition]}
	for _, v := range l.byKey[w.Key] {
		if v.process != nil {
			s = l.stateOf(v)
		}
	}
	spec := l.specs[w.Key]
	share := mps.Of(spec.Partition, spec.GPU, l.r.o.MPS)
	s.SharesEnforced, s.ShareReason = share.Enforced, share.Reason
	s.Missing = l.missing(w.Key)
	return s
}

func (l *loop) stateOf(v *server) PartitionState {
	s := PartitionState{
		ID: v.Partition, Endpoint: v.process.Endpoint(), Up: v.Phase == decide.Up && v.Broken == "", Reason: v.Broken,
		Restarts: l.restarts[v.Partition], Log: v.process.Log(), Begin: v.process.Begin(), Executions: max(1, l.r.executions(v.process).AtOnce),
	}
	if s.Reason == "" {
		s.Reason = l.reasons[v.Partition]
	}
	for model, loaded := range v.Loaded {
		if loaded.Answers && !loaded.Leaving && !l.isOut(v, model) {
			s.Models = append(s.Models, model)
		}
	}
	slices.Sort(s.Models)
	return s
}

// isOut reports that a merge group was taken out, since executions of what a server has loaded fail.
func (l *loop) isOut(v *server, model string) bool {
	return l.loads[decide.Load{Key: v.Key, Model: model, Revision: v.Loaded[model].Revision}].Ran
}

// missing are the models that a wanted partition does not serve as desired.
func (l *loop) missing(k decide.Key) []string {
	var all []string
	at, wanted := l.wantedAt[k.Partition]
	if !wanted || l.want.Partitions[at].Key != k {
		return nil
	}
	for _, in := range l.want.Partitions[at].Instances {
		if !l.ready(k, in.Model) {
			all = append(all, in.Model)
		}
	}
	slices.Sort(all)
	return all
}

// ready reports that a wanted partition serves a model as it is desired.
func (l *loop) ready(k decide.Key, model string) bool {
	for _, v := range l.byKey[k] {
		if !v.Stays() {
			continue
		}
		loaded, has := v.Loaded[model]
		revision := l.want.Models[model].Revision
		return has && loaded.Answers && loaded.Tried && !loaded.Leaving && !l.isOut(v, model) && (revision == "" || loaded.Revision == revision)
	}
	return false
}

// await adds a waiter.
func (l *loop) await(w waiter) { l.waiters = append(l.waiters, w) }

// settle answers those waiters that need wait no more.
func (l *loop) settle() {
	l.waiters = slices.DeleteFunc(l.waiters, func(w waiter) bool {
		if w.ctx.Err() != nil {
			return true
		}
		if w.generation == 0 {
			w.generation = l.desired.Generation
		}
		if w.generation < l.desired.Generation {
			w.result <- ErrSuperseded
			return true
		}
		if w.generation > l.desired.Generation || !l.swapped {
			return false
		}
		settled, failure := l.settled(w.models)
		if settled {
			w.result <- failure
		}
		return settled
	})
}

// settled reports whether every wanted instance, of the models if there are any,
// is ready or has failed, and the first failure.
func (l *loop) settled(models []string) (settled bool, failure error) {
	// What others have loaded and unloaded is known by a look that began since, or not to be had.
	settled = !l.want.Given || !slices.ContainsFunc(l.servers, func(v *server) bool { return v.looked <= v.stale && l.hasServer(v.Key) })
	for _, p := range l.want.Partitions {
		for _, in := range p.Instances {
			if len(models) > 0 && !slices.Contains(models, in.Model) || l.ready(p.Key, in.Model) {
				continue
			}
			key := decide.Load{Key: p.Key, Model: in.Model, Revision: l.want.Models[in.Model].Revision}
			err := l.errs[key]
			if l.loads[key].Deaths == 1 {
				err = nil // it is tried once more: what killed the server may have been another load
			}
			if reason := l.unstarted(p.Key); err == nil && reason != "" {
				err = &StartError{Partition: p.Partition, Reason: reason}
			}
			switch {
			case err != nil && failure == nil:
				failure = err
			case err == nil && !l.held(p.Key, in.Model):
				settled = false
			}
		}
	}
	if len(models) == 0 {
		for _, p := range l.want.Partitions {
			reason := l.unstarted(p.Key)
			if !l.hasServer(p.Key) && reason == "" {
				settled = false
			} else if reason != "" && failure == nil {
				failure = &StartError{Partition: p.Partition, Reason: reason}
			}
		}
	}
	return settled, failure
}

// unstarted says why a partition has no server and may have none for long; empty where it has one, or is about to.
func (l *loop) unstarted(k decide.Key) string {
	switch f := l.starts[k]; {
	case l.hasServer(k):
		return ""
	case f.Attempts > 1:
		return f.Reason
	}
	return l.last.Blocked[k]
}

func (l *loop) hasServer(k decide.Key) bool {
	return slices.ContainsFunc(l.byKey[k], func(v *server) bool { return v.Phase == decide.Up && v.process != nil })
}

// held reports whether an instance may wait for ever: the canary of its model has
// failed, or the server's own operator has unloaded it.
func (l *loop) held(k decide.Key, model string) bool {
	if l.want.Given && l.hasServer(k) {
		return true
	}
	for f := range l.loads {
		if f.Model == model && f.Revision == l.want.Models[model].Revision && f.Key != k {
			if there := l.byKey[k]; len(there) > 0 {
				_, old := there[0].Loaded[model]
				return old
			}
		}
	}
	return false
}
