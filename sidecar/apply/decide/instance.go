// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"cmp"
	"fmt"
	"slices"
)

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

// measured reports that a model of the GPU is being measured, or is going to be.
func (j *judgement) measured(gpu string) bool {
	return j.measuring[gpu] || slices.ContainsFunc(j.onGPU[gpu], func(v *Server) bool {
		for _, b := range v.Busy {
			if b.Kind == WarmUp && b.Measure {
				return true
			}
		}
		return false
	})
}

// instance decides for one model of a server that is up; a load is returned, for
// loads take turns.
func (j *judgement) instance(p Partition, v *Server, model string, wants map[string]bool) (Action, bool) {
	c := Condition{Partition: p.Partition, Model: model}
	load := Action{Kind: LoadIt, Key: v.Key, Server: v.ID, Model: model, Revision: j.want.Models[model].Revision}
	loaded, has := v.Loaded[model]
	if has && j.faulted(v, model) && !j.want.Given {
		f := j.seen.Loads[Load{v.Key, model, loaded.Revision}]
		c.Kind, c.Reason, c.Attempts, c.Next = IsFailing, f.Reason, f.Attempts, f.Next
		j.condition(c)
		j.act(Action{Kind: Unload, Key: v.Key, Server: v.ID, Model: model})
		return Action{}, false
	}
	if has && j.current(v, model) && !j.released[place{v.ID, model}] {
		if !loaded.Tried {
			warm := Action{Kind: WarmUp, Key: v.Key, Server: v.ID, Model: model, Revision: loaded.Revision}
			warm.Measure = j.seen.Measured[v.GPU] < j.seen.MeasureBudget
			c.Kind, c.Reason = IsWarmingUp, "its first request is under way"
			waits := false
			if b := v.Busy[model]; b.Kind == WarmUp && b.Revision == warm.Revision {
				warm = b // it is not begun anew because the budget is used up by now
			} else if waits = warm.Measure && j.measured(v.GPU); waits {
				// Side by side they would take each other's turns, and measure that.
				c.Reason = "after another model of its GPU, which is being measured"
				j.wake(j.now.Add(j.seen.MeasureBudget - j.seen.Measured[v.GPU])) // it may hang
			}
			if f, failed := j.failure(p.Key, model); failed {
				c.Kind, c.Reason, c.Attempts, c.Next = IsFailing, f.Reason, f.Attempts, f.Next
				j.condition(c)
				if f.Next.After(j.now) {
					j.wake(f.Next)
					return Action{}, false
				}
			} else {
				j.condition(c)
				j.pending = true
			}
			if !waits {
				j.measuring[v.GPU] = j.measuring[v.GPU] || warm.Measure
				j.act(warm)
			}
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
	c := j.canaryOf(model)
	return c.tried || c.last == nil || later(c.last, &p) <= 0
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
