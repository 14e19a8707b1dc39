// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/apply/decide"
)

// grouped is a desired state with merge group g of a and b on the partitions.
func grouped(revision string, partitions ...string) decide.Want {
	w := want(revision)
	for i, p := range partitions {
		w.Partitions = append(w.Partitions, decide.Partition{Key: key(p), GPU: "g", Rank: i, Instances: []decide.Instance{{Model: "g"}}})
	}
	w.Models["g"] = decide.Model{Revision: revision, Members: []string{"a", "b"}}
	w.Members = map[string]decide.Model{"a": {Revision: revision}, "b": {Revision: revision}}
	return w
}

// with has servers that have merge group g loaded know its members.
func with(servers ...*decide.Server) decide.Seen {
	for _, v := range servers {
		if l, has := v.Loaded["g"]; has {
			l.Members = []string{"a", "b"}
			v.Loaded["g"] = l
		}
	}
	return decide.Seen{Servers: servers}
}

// via is where requests of a model go, with the group that they run in.
func via(d decide.Decision, model string) (all does) {
	for _, p := range d.Routes.Places[model] {
		at := p.Route
		if p.Group != "" {
			at += " in " + p.Group
		}
		all = append(all, at)
	}
	return all
}

func TestMergeGroups(t *testing.T) {
	failing := with(up(1, key("p"), "1", "a", "b"))
	failing.Loads = map[decide.Load]decide.Failure{{Key: key("p"), Model: "g", Revision: "1"}: {Attempts: 1, Next: t0.Add(time.Hour), Reason: "no"}}
	broken := with(up(1, key("p"), "1"))
	broken.Loads = failing.Loads
	faulty := func(again time.Duration, models ...string) decide.Seen {
		s := with(up(1, key("p"), "1", models...))
		s.Loads = map[decide.Load]decide.Failure{{Key: key("p"), Model: "g", Revision: "1"}: {Attempts: 1, Next: t0.Add(again), Reason: "its executions fail", Ran: true}}
		return s
	}
	elsewhere := faulty(time.Hour, "g")
	elsewhere.Servers = append(elsewhere.Servers, with(up(2, key("q"), "1", "g")).Servers...)
	for _, c := range []struct {
		name    string
		want    decide.Want
		seen    decide.Seen
		actions does
		a, g    does
	}{
		{
			name: "members serve until the group is ready", want: grouped("1", "p"), seen: with(up(1, key("p"), "1", "a", "b")),
			actions: does{"load p/g"}, a: does{"p"}, g: does{"p (to come)"},
		},
		{
			name: "the group is ready", want: grouped("1", "p"), seen: with(up(1, key("p"), "1", "a", "b", "g")),
			actions: does{"unload p/a", "unload p/b"}, a: does{"p in g"}, g: does{"p"},
		},
		{
			name: "in one place of two", want: grouped("1", "p", "q"), seen: with(up(1, key("p"), "1", "a", "b", "g"), up(2, key("q"), "1", "a", "b")),
			actions: does{"load q/g"}, a: does{"p", "q"}, g: does{"p"},
		},
		{
			name: "nothing was there before", want: grouped("1", "p"), seen: with(up(1, key("p"), "1")),
			actions: does{"load p/g"}, a: does{"p (to come) in g"}, g: does{"p (to come)"},
		},
		{
			name: "a group that does not load: members stay", want: grouped("1", "p"), seen: failing,
			a: does{"p"},
		},
		{
			name: "a group that does not load, and no members: they are loaded", want: grouped("1", "p"), seen: broken,
			actions: does{"load p/a", "load p/b"}, a: does{"p (to come)"},
		},
		{
			name: "executions of the group fail: members are loaded, and it goes", want: grouped("1", "p"), seen: faulty(time.Hour, "g"),
			actions: does{"unload p/g", "load p/a", "load p/b"}, a: does{"p (to come)"},
		},
		{
			name: "members that are there serve at once", want: grouped("1", "p"), seen: faulty(time.Hour, "a", "b", "g"),
			actions: does{"unload p/g"}, a: does{"p"},
		},
		{
			name: "the pause is not over", want: grouped("1", "p"), seen: faulty(time.Hour, "a", "b"),
			a: does{"p"},
		},
		{
			name: "it is over: members serve until the group answers", want: grouped("1", "p"), seen: faulty(0, "a", "b"),
			actions: does{"load p/g"}, a: does{"p"},
		},
		{
			name: "executions fail in one place of two", want: grouped("1", "p", "q"), seen: elsewhere,
			actions: does{"unload p/g"}, a: does{"q in g"}, g: does{"q"},
		},
		{
			name: "a failing group that nobody wants any more serves nobody", want: want("1", "p", []string{"a", "b"}), seen: faulty(time.Hour, "g"),
			actions: does{"load p/a", "load p/b", "unload p/g"}, a: does{"p (to come)"},
		},
		{
			name: "not merged any more: the group serves until the members do", want: want("1", "p", []string{"a", "b"}), seen: with(up(1, key("p"), "1", "g")),
			actions: does{"load p/a", "load p/b"}, a: does{"p in g"}, g: does{"p"},
		},
		{
			name: "one member is back", want: want("1", "p", []string{"a", "b"}), seen: with(up(1, key("p"), "1", "a", "g")),
			actions: does{"load p/b"}, a: does{"p"}, g: does{"p"},
		},
		{
			name: "both are", want: want("1", "p", []string{"a", "b"}), seen: with(up(1, key("p"), "1", "a", "b", "g")),
			actions: does{"unload p/g"}, a: does{"p"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.seen.ParallelLoads = 3
			d := decide.Decide(c.want, c.seen, t0)
			require.Equal(t, c.actions, actions(d))
			require.Equal(t, c.a, via(d, "a"))
			require.Equal(t, c.g, via(d, "g"))
		})
	}
}
