// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/sidecar/apply/decide"
)

// world does what Decide says, an action at a time and in any order, while plans
// change and servers die. It knows what is true; Decide sees it.
type world struct {
	want   decide.Want
	seen   decide.Seen
	under  map[decide.Slot]decide.Action
	lastID uint64
	now    time.Time
	// bad are models that do not load.
	bad map[string]bool
	// routed is the table in force.
	routed decide.Routes
	d      decide.Decision
	// faulty: a server or model was lost since the want was set, so that places may
	// be missing.
	faulty bool
	tight  bool
	// turns is why servers are replaced in turns: their GPUs are claimed, or taken whole; empty: they are not.
	turns  string
	before map[string]bool // models with a place when the want was set
}

func (w *world) decide() {
	for _, v := range w.seen.Servers {
		v.Busy = map[string]decide.Action{}
		for slot, a := range w.under {
			if slot.Server == v.ID {
				v.Busy[slot.Model] = a
			}
		}
	}
	w.d = decide.Decide(w.want, w.seen, w.now)
	w.routed = w.d.Routes
	wanted := map[decide.Slot]decide.Action{}
	for _, a := range w.d.Actions {
		wanted[a.Slot()] = a
	}
	for slot, a := range w.under {
		if wanted[slot] != a && a.Kind != decide.Stop && a.Kind != decide.Kill {
			if a.Kind == decide.Start {
				w.remove(func(v *decide.Server) bool { return v.Key == a.Key && v.Phase == decide.Starting })
			}
			delete(w.under, slot)
		}
	}
	for slot, a := range wanted {
		if _, busy := w.under[slot]; busy {
			continue
		}
		if a.Kind == decide.Start {
			if slices.ContainsFunc(w.seen.Servers, func(v *decide.Server) bool { return v.Key == a.Key }) {
				panic(fmt.Sprintf("a second server of %v", a.Key))
			}
			w.lastID++
			v := &decide.Server{ID: w.lastID, Key: a.Key, Phase: decide.Starting, GPU: "g", Loaded: map[string]decide.Loaded{}, Hung: map[string]bool{}}
			for _, p := range w.want.Partitions {
				if p.Key == a.Key {
					v.Memory, v.GPU, v.Claim = p.Memory, p.GPU, p.Claim
				}
			}
			w.seen.Servers = append(w.seen.Servers, v)
		}
		if v := w.server(a.Server); v != nil && (a.Kind == decide.Stop || a.Kind == decide.Kill) {
			v.Phase = decide.Stopping
		}
		w.under[slot] = a
	}
}

func (w *world) server(id uint64) *decide.Server {
	for _, v := range w.seen.Servers {
		if v.ID == id {
			return v
		}
	}
	return nil
}

func (w *world) remove(which func(*decide.Server) bool) {
	w.seen.Servers = slices.DeleteFunc(w.seen.Servers, which)
	for slot := range w.under {
		if slot.Server != 0 && w.server(slot.Server) == nil {
			delete(w.under, slot)
		}
	}
}

// finish ends an action that is under way.
func (w *world) finish(a decide.Action) {
	delete(w.under, a.Slot())
	v := w.server(a.Server)
	switch a.Kind {
	case decide.Start:
		for _, s := range w.seen.Servers {
			if s.Key == a.Key && s.Phase == decide.Starting {
				s.Phase, s.Known = decide.Up, true
			}
		}
	case decide.LoadIt:
		if w.bad[a.Model] {
			w.seen.Loads[decide.Load{Key: a.Key, Model: a.Model, Revision: a.Revision}] = decide.Failure{Attempts: 1, Next: w.now.Add(time.Second)}
			return
		}
		delete(w.seen.Loads, decide.Load{Key: a.Key, Model: a.Model, Revision: a.Revision})
		was := v.Loaded[a.Model]
		v.Loaded[a.Model] = decide.Loaded{Revision: a.Revision, Answers: was.Answers, Memory: w.want.Models[a.Model].Memory}
	case decide.WarmUp:
		l := v.Loaded[a.Model]
		l.Answers, l.Tried = true, true
		v.Loaded[a.Model] = l
	case decide.Unload:
		delete(v.Loaded, a.Model)
	case decide.Stop, decide.Kill:
		w.remove(func(s *decide.Server) bool { return s.ID == a.Server })
	}
}

// check holds what is true at every moment.
func (w *world) check(t *rapid.T) {
	memory := uint64(0)
	for _, v := range w.seen.Servers {
		memory += v.Memory
	}
	if w.turns == "whole" {
		require.LessOrEqual(t, len(w.seen.Servers), 3, "more servers than GPUs")
	}
	claims := map[string]string{}
	for _, v := range w.seen.Servers {
		if of, is := claims[v.GPU]; is {
			require.Equal(t, of, v.Claim, "two claims of a GPU")
		}
		claims[v.GPU] = v.Claim
	}
	servers := map[string]uint64{}
	for _, r := range w.routed.Partitions {
		require.NotContains(t, servers, r.ID)
		servers[r.ID] = r.Server
	}
	for model, places := range w.routed.Places {
		for _, p := range places {
			require.Contains(t, servers, p.Route)
			if p.Waiting {
				require.Zero(t, servers[p.Route])
				continue
			}
			v := w.server(servers[p.Route])
			require.NotNil(t, v)
			require.Contains(t, v.Loaded, model, "routed to where it is not loaded")
			require.Equal(t, decide.Up, v.Phase)
			require.NotEqual(t, decide.Unload, w.under[decide.Slot{Key: v.Key, Server: v.ID, Model: model}].Kind, "unloaded while routed to")
		}
	}
	for model := range w.before {
		if _, wanted := w.want.Models[model]; wanted && !w.faulty && !w.tight {
			require.NotEmpty(t, w.routed.Places[model], "%s has lost its last place", model)
			require.False(t, w.routed.Places[model][0].Waiting, "%s waits without need", model)
		}
	}
}

func (w *world) set(t *rapid.T) {
	next := decide.Want{Models: map[string]decide.Model{}, Memory: map[string]uint64{"g": 100}}
	w.tight = rapid.Bool().Draw(t, "tight")
	one := rapid.SampledFrom([]string{"1", "2"}).Draw(t, "hash of all")
	if w.turns == "whole" {
		next.Whole = map[string]int{"n": 3}
	}
	for _, id := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"p", "q", "r"}), 1, 3, rapid.ID[string]).Draw(t, "partitions") {
		p := decide.Partition{Key: decide.Key{Partition: id, Hash: rapid.SampledFrom([]string{"1", "2"}).Draw(t, "hash")}, GPU: "g", Rank: len(next.Partitions)}
		if w.tight {
			p.Memory = 30
		}
		switch w.turns {
		case "claims": // that of p and q is the same
			p.GPU, p.Hash = map[string]string{"p": "n/0", "q": "n/0", "r": "m/0"}[id], one
			p.Claim, next.Memory[p.GPU] = p.GPU+" as "+one, 100
		case "whole":
			p.GPU = "n/" + id
		}
		for _, m := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a", "b", "c", "d"}), 0, 3, rapid.ID[string]).Draw(t, "models") {
			p.Instances = append(p.Instances, decide.Instance{Model: m})
			if _, known := next.Models[m]; !known {
				model := decide.Model{Revision: rapid.SampledFrom([]string{"1", "2"}).Draw(t, "revision")}
				if w.tight {
					model.Memory = 10
				}
				next.Models[m] = model
			}
		}
		next.Partitions = append(next.Partitions, p)
	}
	w.before = map[string]bool{}
	for model, places := range w.routed.Places {
		w.before[model] = !places[0].Waiting
		if places[0].Waiting {
			delete(w.before, model)
		}
	}
	// What an older want may have released for memory, or for its turn, is no loss of this one's.
	w.tight = w.tight || w.turns != "" || slices.ContainsFunc(w.seen.Servers, func(v *decide.Server) bool { return v.Memory > 0 })
	w.want, w.faulty = next, false
	w.decide()
}

// TestMachine: whatever plans come and whatever fails in between, no model that
// stays wanted loses its last place, and in the end there is what is wanted and
// nothing else.
func TestMachine(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{
			seen:  decide.Seen{Starts: map[decide.Key]decide.Failure{}, Loads: map[decide.Load]decide.Failure{}, ParallelLoads: 2},
			under: map[decide.Slot]decide.Action{}, now: t0, bad: map[string]bool{}, routed: decide.Routes{},
		}
		w.turns = rapid.SampledFrom([]string{"", "claims", "whole"}).Draw(t, "turns")
		w.set(t)
		pick := func() (decide.Action, bool) {
			var all []decide.Action
			for _, a := range w.under {
				all = append(all, a)
			}
			if len(all) == 0 {
				return decide.Action{}, false
			}
			slices.SortFunc(all, func(a, b decide.Action) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
			return rapid.SampledFrom(all).Draw(t, "action"), true
		}
		t.Repeat(map[string]func(*rapid.T){
			"set": w.set,
			"finish": func(t *rapid.T) {
				if a, ok := pick(); ok {
					w.finish(a)
					w.decide()
				}
			},
			"more": func(t *rapid.T) {
				for range 5 {
					if a, ok := pick(); ok {
						w.finish(a)
						w.decide()
					}
				}
			},
			"die": func(t *rapid.T) {
				if len(w.seen.Servers) > 0 {
					w.faulty = true
					id := rapid.SampledFrom(w.seen.Servers).Draw(t, "server").ID
					for slot, a := range w.under {
						if a.Kind == decide.Start && w.server(id) != nil && a.Key == w.server(id).Key {
							delete(w.under, slot)
						}
					}
					w.remove(func(v *decide.Server) bool { return v.ID == id })
					w.decide()
				}
			},
			"lose": func(t *rapid.T) {
				for _, v := range w.seen.Servers {
					for _, m := range []string{"a", "b"} {
						delete(v.Loaded, m)
					}
				}
				w.faulty = true
				w.decide()
			},
			"break": func(t *rapid.T) { w.bad["d"] = true },
			"mend":  func(t *rapid.T) { delete(w.bad, "d") },
			"wait": func(t *rapid.T) {
				w.now = w.now.Add(2 * time.Second)
				w.decide()
			},
			"": func(t *rapid.T) { w.check(t) },
		})
		// Left alone and mended, it gets there.
		clear(w.bad)
		for range 1000 {
			w.now = w.now.Add(2 * time.Second)
			w.decide()
			a, ok := pick()
			if !ok {
				break
			}
			w.finish(a)
			w.check(t)
		}
		w.decide()
		require.True(t, w.d.Settled, "%+v", w.d.Conditions)
		require.Empty(t, w.d.Actions)
		require.Len(t, w.seen.Servers, len(w.want.Partitions))
		for _, p := range w.want.Partitions {
			i := slices.IndexFunc(w.seen.Servers, func(v *decide.Server) bool { return v.Key == p.Key })
			require.GreaterOrEqual(t, i, 0)
			require.Len(t, w.seen.Servers[i].Loaded, len(p.Instances))
			for _, in := range p.Instances {
				require.Equal(t, w.want.Models[in.Model].Revision, w.seen.Servers[i].Loaded[in.Model].Revision)
			}
		}
	})
}
