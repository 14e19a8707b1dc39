// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/apply/decide"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func key(partition string) decide.Key { return decide.Key{Partition: partition, Hash: "h"} }

// want is a desired state: models by partition.
func want(revision string, partitions ...any) decide.Want {
	w := decide.Want{Models: map[string]decide.Model{}, Memory: map[string]uint64{"g": 100}}
	for i := 0; i < len(partitions); i += 2 {
		p := decide.Partition{Key: key(partitions[i].(string)), GPU: "g", Rank: i / 2}
		for _, m := range partitions[i+1].([]string) {
			p.Instances = append(p.Instances, decide.Instance{Model: m})
			w.Models[m] = decide.Model{Revision: revision}
		}
		w.Partitions = append(w.Partitions, p)
	}
	return w
}

// up is a server that answers with models of a revision.
func up(id uint64, k decide.Key, revision string, models ...string) *decide.Server {
	v := &decide.Server{ID: id, Key: k, GPU: "g", Phase: decide.Up, Known: true, Loaded: map[string]decide.Loaded{}}
	for _, m := range models {
		v.Loaded[m] = decide.Loaded{Revision: revision, Answers: true, Tried: true}
	}
	return v
}

type does []string

// actions in a few words, with where requests for model m go.
func actions(d decide.Decision) (all does) {
	for _, a := range d.Actions {
		text := string(a.Kind) + " " + a.Partition
		if a.Model != "" {
			text += "/" + a.Model
		}
		all = append(all, text)
	}
	return all
}

func routes(d decide.Decision, model string) (all does) {
	for _, p := range d.Routes.Places[model] {
		all = append(all, p.Route)
	}
	return all
}

func TestDecide(t *testing.T) {
	moved := decide.Key{Partition: "p", Hash: "other"}
	for _, c := range []struct {
		name    string
		want    decide.Want
		seen    decide.Seen
		actions does
		routes  does // of model m
		settled bool
	}{
		{
			name: "nothing is there: a server is started, requests wait", want: want("1", "p", []string{"m"}),
			actions: does{"start p"}, routes: does{"p (to come)"},
		},
		{
			name: "a server without its model", want: want("1", "p", []string{"m"}),
			seen:    decide.Seen{Servers: []*decide.Server{up(1, key("p"), "1")}},
			actions: does{"load p/m"}, routes: does{"p (to come)"},
		},
		{
			name: "a server is to be started anew: requests go elsewhere, and it ends", want: want("1", "p", []string{"m"}, "q", []string{"m"}),
			seen: decide.Seen{Servers: []*decide.Server{func() *decide.Server {
				v := up(1, key("p"), "1", "m")
				v.Anew = "ada wants it"
				return v
			}(), up(2, key("q"), "1", "m")}},
			actions: does{"stop p"}, routes: does{"q"},
		},
		{
			name: "everything is as it is wanted", want: want("1", "p", []string{"m"}),
			seen:   decide.Seen{Servers: []*decide.Server{up(1, key("p"), "1", "m")}},
			routes: does{"p"}, settled: true,
		},
		{
			name: "a model is loaded and has not answered: it is not routed to", want: want("1", "p", []string{"m"}),
			seen: decide.Seen{Servers: []*decide.Server{func() *decide.Server {
				v := up(1, key("p"), "1")
				v.Loaded["m"] = decide.Loaded{Revision: "1"}
				return v
			}()}},
			actions: does{"warm_up p/m"}, routes: does{"p (to come)"},
		},
		{
			name: "make before break: the old partition serves while the new one starts", want: want("1", "q", []string{"m"}),
			seen:    decide.Seen{Servers: []*decide.Server{up(1, key("p"), "1", "m")}},
			actions: does{"start q"}, routes: does{"p"},
		},
		{
			name: "the new one is ready: the old one goes", want: want("1", "q", []string{"m"}),
			seen:    decide.Seen{Servers: []*decide.Server{up(1, key("p"), "1", "m"), up(2, key("q"), "1", "m")}},
			actions: does{"stop p"}, routes: does{"q"}, settled: true,
		},
		{
			name: "a partition is resized: two servers of one name", want: want("1", "p", []string{"m", "n"}),
			seen:    decide.Seen{Servers: []*decide.Server{up(1, moved, "1", "m", "n"), up(2, key("p"), "1", "n")}},
			actions: does{"load p/m"}, routes: does{"p (old 1)"},
		},
		{
			name: "one of two new places is not enough", want: want("1", "q", []string{"m"}, "r", []string{"m"}),
			seen:    decide.Seen{Servers: []*decide.Server{up(1, key("p"), "1", "m"), up(2, key("q"), "1", "m")}},
			actions: does{"start r"}, routes: does{"q", "p"},
		},
		{
			name: "a model that is not wanted is unloaded", want: want("1", "p", []string{"n"}),
			seen:    decide.Seen{Servers: []*decide.Server{up(1, key("p"), "1", "m", "n")}},
			actions: does{"unload p/m"}, settled: true,
		},
		{
			name: "a model moves between partitions that stay", want: want("1", "p", []string{"n"}, "q", []string{"m"}),
			seen:    decide.Seen{Servers: []*decide.Server{up(1, key("p"), "1", "m", "n"), up(2, key("q"), "1")}},
			actions: does{"load q/m"}, routes: does{"p"},
		},
		{
			name: "a model was unloaded behind conch's back", want: want("1", "p", []string{"m"}, "q", []string{"m"}),
			seen:    decide.Seen{Servers: []*decide.Server{up(1, key("p"), "1"), up(2, key("q"), "1", "m")}},
			actions: does{"load p/m"}, routes: does{"q"},
		},
		{
			name: "files changed: one partition goes first, the old files serve", want: want("2", "p", []string{"m"}, "q", []string{"m"}),
			seen:    decide.Seen{Servers: []*decide.Server{up(1, key("p"), "1", "m"), up(2, key("q"), "1", "m")}},
			actions: does{"load q/m"}, routes: does{"p", "q"},
		},
		{
			name: "the canary answers: the others follow", want: want("2", "p", []string{"m"}, "q", []string{"m"}),
			seen:    decide.Seen{Servers: []*decide.Server{up(1, key("p"), "1", "m"), up(2, key("q"), "2", "m")}},
			actions: does{"load p/m"}, routes: does{"p", "q"},
		},
		{
			name: "the canary fails: the others keep what they have", want: want("2", "p", []string{"m"}, "q", []string{"m"}),
			seen: decide.Seen{
				Servers: []*decide.Server{up(1, key("p"), "1", "m"), up(2, key("q"), "1", "m")},
				Loads:   map[decide.Load]decide.Failure{{Key: key("q"), Model: "m", Revision: "2"}: {Attempts: 1, Next: t0.Add(time.Second)}},
			},
			routes: does{"p", "q"}, settled: true,
		},
		{
			name: "one model does not load: nothing waits for it", want: want("1", "p", []string{"bad", "m", "n"}),
			seen: decide.Seen{
				Servers: []*decide.Server{up(1, key("p"), "1", "m")},
				Loads:   map[decide.Load]decide.Failure{{Key: key("p"), Model: "bad", Revision: "1"}: {Attempts: 3, Next: t0.Add(time.Second)}},
			},
			actions: does{"load p/n"}, routes: does{"p"},
		},
		{
			name: "it is tried again once its time has come", want: want("1", "p", []string{"m"}),
			seen: decide.Seen{
				Servers: []*decide.Server{up(1, key("p"), "1")},
				Loads:   map[decide.Load]decide.Failure{{Key: key("p"), Model: "m", Revision: "1"}: {Attempts: 3, Next: t0}},
			},
			actions: does{"load p/m"}, settled: true,
		},
		{
			name: "mended files are loaded at once", want: want("2", "p", []string{"m"}),
			seen: decide.Seen{
				Servers: []*decide.Server{up(1, key("p"), "1")},
				Loads:   map[decide.Load]decide.Failure{{Key: key("p"), Model: "m", Revision: "1"}: {Attempts: 3, Next: t0.Add(time.Hour)}},
			},
			actions: does{"load p/m"}, routes: does{"p (to come)"},
		},
		{
			name: "a suspect, in whose load a server died, is loaded alone", want: want("1", "p", []string{"bad", "n"}),
			seen: decide.Seen{
				Servers: []*decide.Server{up(1, key("p"), "1")}, ParallelLoads: 3,
				Loads: map[decide.Load]decide.Failure{{Key: key("p"), Model: "bad", Revision: "1"}: {Attempts: 1, Next: t0, Deaths: 1}},
			},
			actions: does{"load p/n"},
		},
		{
			name: "a load that hangs and a server with nothing else: it is started again", want: want("1", "p", []string{"m"}),
			seen: decide.Seen{
				Servers: []*decide.Server{func() *decide.Server {
					v := up(1, key("p"), "1")
					v.Hung = map[string]bool{"m": true}
					return v
				}()},
				Loads: map[decide.Load]decide.Failure{{Key: key("p"), Model: "m", Revision: "1"}: {Attempts: 1, Next: t0, Hung: true}},
			},
			actions: does{"kill p"}, settled: true,
		},
		{
			name: "a load that hangs does not cost its neighbours their server", want: want("1", "p", []string{"bad", "m"}),
			seen: decide.Seen{
				Servers: []*decide.Server{func() *decide.Server {
					v := up(1, key("p"), "1", "m")
					v.Hung = map[string]bool{"bad": true}
					return v
				}()},
				Loads: map[decide.Load]decide.Failure{{Key: key("p"), Model: "bad", Revision: "1"}: {Attempts: 1, Next: t0, Hung: true}},
			},
			routes: does{"p"}, settled: true,
		},
		{
			name: "an ensemble waits for the models that it calls", want: func() decide.Want {
				w := want("1", "p", []string{"m", "ensemble"})
				w.Models["ensemble"] = decide.Model{Revision: "1", Calls: []string{"m"}}
				return w
			}(),
			seen:    decide.Seen{Servers: []*decide.Server{up(1, key("p"), "1")}, ParallelLoads: 3},
			actions: does{"load p/m"}, routes: does{"p (to come)"},
		},
		{
			name: "a broken server is killed", want: want("1", "p", []string{"m"}),
			seen: decide.Seen{Servers: []*decide.Server{func() *decide.Server {
				v := up(1, key("p"), "1", "m")
				v.Broken = "it hangs"
				return v
			}()}},
			actions: does{"kill p"}, routes: does{"p (to come)"},
		},
		{
			name: "a server that cannot be started is tried again later", want: want("1", "p", []string{"m"}),
			seen:   decide.Seen{Starts: map[decide.Key]decide.Failure{key("p"): {Attempts: 2, Next: t0.Add(time.Second)}}},
			routes: does{"p (to come)"}, settled: true,
		},
		{
			name: "found after a restart: nothing is torn down before it was asked what it serves", want: want("1", "q", []string{"m"}),
			seen: decide.Seen{Servers: []*decide.Server{func() *decide.Server {
				v := up(1, key("p"), "1")
				v.Known = false
				return v
			}()}},
			actions: does{"start q"}, routes: does{"q (to come)"},
		},
		{
			name: "a GPU that cannot hold both: the old server goes first, requests wait", want: func() decide.Want {
				w := want("1", "q", []string{"m"})
				w.Partitions[0].Memory = 60
				return w
			}(),
			seen: decide.Seen{Servers: []*decide.Server{func() *decide.Server {
				v := up(1, key("p"), "1", "m")
				v.Memory = 60
				return v
			}()}},
			actions: does{"stop p"}, routes: does{"q (to come)"},
		},
		{
			name: "a partition that cannot hold both files: its old ones go first, one place at a time", want: func() decide.Want {
				w := want("2", "p", []string{"m"}, "q", []string{"m"})
				w.Models["m"] = decide.Model{Revision: "2", Memory: 30}
				w.Partitions[0].Memory, w.Partitions[1].Memory = 50, 50
				return w
			}(),
			seen: decide.Seen{Servers: []*decide.Server{full(1, "p", "m", 30), full(2, "q", "m", 30)}},
			// The canary is q, and p serves.
			actions: does{"unload q/m"}, routes: does{"p"},
		},
		{
			name: "a partition that cannot hold what comes beside what leaves", want: func() decide.Want {
				w := want("1", "p", []string{"m"}, "q", []string{"n"})
				w.Models["m"] = decide.Model{Revision: "1", Memory: 30}
				w.Partitions[0].Memory = 50
				return w
			}(),
			seen:    decide.Seen{Servers: []*decide.Server{full(1, "p", "n", 30)}},
			actions: does{"unload p/n", "start q"}, routes: does{"p (to come)"},
		},
		{
			name: "servers of others: what they have loaded is routed to, nothing is ordered", want: func() decide.Want {
				w := want("", "p", []string{"m", "n"})
				w.Given = true
				return w
			}(),
			seen:   decide.Seen{Servers: []*decide.Server{up(1, key("p"), "", "m", "x")}},
			routes: does{"p"}, settled: true,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := decide.Decide(c.want, c.seen, t0)
			require.Equal(t, c.actions, actions(d))
			require.Equal(t, c.routes, routes(d, "m"))
			require.Equal(t, c.settled, d.Settled, "conditions: %+v", d.Conditions)
		})
	}
}

// Servers that take whole GPUs of a node are replaced one after the other, while the others serve: the successor of one finds no GPU before the old one has gone.
func TestServersOfWholeGPUsAreReplacedOneAfterTheOther(t *testing.T) {
	w := want("1", "p", []string{"m"}, "q", []string{"n"})
	w.Whole, w.Memory = map[string]int{"node": 2}, nil
	w.Partitions[0].GPU, w.Partitions[1].GPU = "node/0", "node/1"
	at := func(v *decide.Server, gpu string) *decide.Server { v.GPU = gpu; return v }
	before := func(id uint64, partition, model, gpu string) *decide.Server {
		return at(up(id, decide.Key{Partition: partition, Hash: "of the image before"}, "1", model), gpu)
	}
	starting := at(up(3, key("p"), "1"), "node/0")
	starting.Phase, starting.Known = decide.Starting, false
	stopping := before(1, "p", "m", "node/0")
	stopping.Phase = decide.Stopping
	failed := map[decide.Key]decide.Failure{key("p"): {Attempts: 1, Next: t0.Add(time.Minute), Reason: "no such image"}}
	for _, c := range []struct {
		name    string
		servers []*decide.Server
		starts  map[decide.Key]decide.Failure
		actions does
	}{
		{"all are old", []*decide.Server{before(1, "p", "m", "node/0"), before(2, "q", "n", "node/1")}, nil, does{"stop p"}},
		{"the first ends", []*decide.Server{stopping, before(2, "q", "n", "node/1")}, nil, does{"stop p"}},
		{"it has ended", []*decide.Server{before(2, "q", "n", "node/1")}, nil, does{"start p"}},
		{"its successor starts", []*decide.Server{before(2, "q", "n", "node/1"), starting}, nil, does{"start p"}},
		{"it is up, without its model", []*decide.Server{before(2, "q", "n", "node/1"), at(up(3, key("p"), "1"), "node/0")}, nil, does{"load p/m"}},
		{"it is there", []*decide.Server{before(2, "q", "n", "node/1"), at(up(3, key("p"), "1", "m"), "node/0")}, nil, does{"stop q"}},
		{"it failed once, and another has its GPU by now", []*decide.Server{before(1, "p", "m", "node/0"), at(up(5, key("q"), "1", "n"), "node/1")}, failed, does{"stop p"}},
		{"it does not start, on the node's only other GPU", []*decide.Server{before(2, "q", "n", "node/1"), before(4, "r", "x", "node/0")}, failed, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := decide.Decide(w, decide.Seen{Servers: c.servers, Starts: c.starts}, t0)
			got := slices.DeleteFunc(actions(d), func(a string) bool { return a == "stop r" }) // not wanted, and routed to by nobody
			require.Equal(t, len(c.actions), len(got), "%v", got)
			require.ElementsMatch(t, c.actions, got)
			require.Empty(t, d.Blocked)
		})
	}
	two := w
	two.Partitions = slices.Clone(w.Partitions)
	two.Partitions[1].GPU, two.Whole = "other/0", map[string]int{"node": 2, "other": 1}
	one := decide.Decide(two, decide.Seen{Servers: []*decide.Server{before(2, "q", "n", "other/0")}}, t0)
	require.Equal(t, does{"start p"}, actions(one), "one after the other, of all nodes")
	for k := range failed {
		failed[k] = decide.Failure{Attempts: 2, Next: t0.Add(time.Minute), Reason: "no such image"}
	}
	w.Partitions[1].GPU, w.Whole = "other/0", map[string]int{"node": 2, "other": 1}
	d := decide.Decide(w, decide.Seen{Servers: []*decide.Server{before(2, "q", "n", "other/0")}, Starts: failed}, t0)
	require.Empty(t, actions(d))
	require.Contains(t, d.Blocked[key("q")], "node other has no GPU left for it, and no old server goes while that of partition p does not start: no such image")
}

// Servers whose GPUs are claimed anew are replaced one GPU after the other: no two claims of a GPU are there at once.
func TestGPUsAreClaimedAnewOneAfterTheOther(t *testing.T) {
	w := want("1", "p", []string{"m"}, "q", []string{"n"}, "r", []string{"o"})
	for i, gpu := range []string{"node/0", "node/0", "other/0"} {
		w.Partitions[i].GPU, w.Partitions[i].Claim = gpu, gpu+" alone"
	}
	server := func(id uint64, k decide.Key, model, gpu, how string, phase decide.Phase) *decide.Server {
		v := up(id, k, "1", model)
		v.GPU, v.Claim, v.Phase = gpu, gpu+how, phase
		return v
	}
	before := func(partition string) decide.Key { return decide.Key{Partition: partition, Hash: "by MPS"} }
	p, q := server(1, before("p"), "m", "node/0", " by MPS", decide.Up), server(2, before("q"), "n", "node/0", " by MPS", decide.Up)
	r := server(3, before("r"), "o", "other/0", " by MPS", decide.Up)
	stopping := server(2, before("q"), "n", "node/0", " by MPS", decide.Stopping)
	next := func(id uint64, partition, model string, phase decide.Phase) *decide.Server {
		return server(id, key(partition), model, "node/0", " alone", phase)
	}
	empty := next(4, "p", "m", decide.Up)
	delete(empty.Loaded, "m")
	for name, c := range map[string]struct {
		servers []*decide.Server
		actions does
	}{
		"all are old":                   {[]*decide.Server{p, q, r}, does{"stop p", "stop q"}},
		"one of a GPU has gone":         {[]*decide.Server{stopping, r}, does{"stop q"}},
		"both have":                     {[]*decide.Server{r}, does{"start p", "start q"}},
		"their successors start":        {[]*decide.Server{r, next(4, "p", "m", decide.Starting), next(5, "q", "n", decide.Starting)}, does{"start p", "start q"}},
		"one of them is not yet there":  {[]*decide.Server{r, empty, next(5, "q", "n", decide.Up)}, does{"load p/m"}},
		"both are: the next GPU's turn": {[]*decide.Server{r, next(4, "p", "m", decide.Up), next(5, "q", "n", decide.Up)}, does{"stop r"}},
		"all have gone":                 {[]*decide.Server{next(4, "p", "m", decide.Up), next(5, "q", "n", decide.Up)}, does{"start r"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := decide.Decide(w, decide.Seen{Servers: c.servers}, t0)
			require.ElementsMatch(t, c.actions, actions(d))
			for _, a := range d.Actions {
				if a.Kind == decide.Stop && a.Partition != "r" {
					require.Contains(t, d.Conditions, decide.Condition{Partition: "p", Kind: decide.IsWaiting, Reason: "for the end of old servers that have GPU node/0 claimed in another way"})
				}
			}
		})
	}
	failed := map[decide.Key]decide.Failure{key("p"): {Attempts: 2, Next: t0.Add(time.Minute), Reason: "no such image"}}
	d := decide.Decide(w, decide.Seen{Servers: []*decide.Server{r, next(5, "q", "n", decide.Up)}, Starts: failed}, t0)
	require.Empty(t, actions(d))
	require.Contains(t, d.Blocked[key("r")], "GPU other/0 is claimed in another way, and no old server goes while that of partition p does not start: no such image")
}

// full is a server with a model that takes memory.
func full(id uint64, partition, model string, memory uint64) *decide.Server {
	v := up(id, key(partition), "1")
	v.Loaded[model] = decide.Loaded{Revision: "1", Answers: true, Tried: true, Memory: memory}
	return v
}

// A failure that lies ahead says when to look again.
func TestWake(t *testing.T) {
	w := want("1", "p", []string{"m"}, "q", []string{"m"})
	d := decide.Decide(w, decide.Seen{Starts: map[decide.Key]decide.Failure{key("p"): {Next: t0.Add(3 * time.Second)}, key("q"): {Next: t0.Add(2 * time.Second)}}}, t0)
	require.Equal(t, t0.Add(2*time.Second), d.Wake)
}

// TestModelsOfAGPUAreMeasuredInTurns: what runs beside a measurement would be measured, too. Models that are not measured need not wait.
func TestModelsOfAGPUAreMeasuredInTurns(t *testing.T) {
	fresh := func(id uint64, k decide.Key, models ...string) *decide.Server {
		v := up(id, k, "1", models...)
		for _, m := range models {
			v.Loaded[m] = decide.Loaded{Revision: "1"}
		}
		return v
	}
	w := want("1", "p", []string{"a", "b"}, "q", []string{"c"}, "far", []string{"d"})
	w.Partitions[2].GPU = "other"
	p, q, far := fresh(1, key("p"), "a", "b"), fresh(2, key("q"), "c"), fresh(3, key("far"), "d")
	far.GPU = "other"
	seen := decide.Seen{Servers: []*decide.Server{p, q, far}, MeasureBudget: time.Second}
	d := decide.Decide(w, seen, t0)
	require.Equal(t, does{"warm_up p/a", "warm_up far/d"}, actions(d))
	require.False(t, d.Settled)
	require.Contains(t, d.Conditions, decide.Condition{Partition: "p", Model: "b", Kind: decide.IsWarmingUp, Reason: "after another model of its GPU, which is being measured"})
	require.Equal(t, t0.Add(time.Second), d.Wake, "or once the time for measuring is over, if that one hangs")

	// The one that has begun goes on, wherever it is in the order.
	q.Busy = map[string]decide.Action{"c": {Kind: decide.WarmUp, Key: key("q"), Server: 2, Model: "c", Revision: "1", Measure: true}}
	require.Equal(t, does{"warm_up q/c", "warm_up far/d"}, actions(decide.Decide(w, seen, t0)))
	// Once the time for measuring is over all that are left go at once.
	seen.Measured = map[string]time.Duration{"g": time.Second}
	require.Equal(t, does{"warm_up p/a", "warm_up p/b", "warm_up q/c", "warm_up far/d"}, actions(decide.Decide(w, seen, t0)))
}
