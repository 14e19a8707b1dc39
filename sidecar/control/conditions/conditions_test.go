// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conditions_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/apply/decide"
	"github.com/conch-serving/conch/sidecar/control/conditions"
)

func at(second int) time.Time { return time.Date(2026, 1, 2, 3, 4, second, 0, time.UTC) }

// seen is partition p, which is to serve a and b.
func seen(up bool, serving []string, missing []string, all ...decide.Condition) apply.Observed {
	o := apply.Observed{Settled: true, Partitions: []apply.PartitionState{{ID: "p", Up: up, Reason: "killed", Models: serving, Missing: missing}}}
	for _, c := range all {
		o.Conditions = append(o.Conditions, apply.Condition{Condition: c, Since: at(7)})
	}
	return o
}

var wanted = conditions.Wanted{
	Places:  map[string][]string{"a": {"p"}, "b": {"p"}},
	Without: map[string][2]string{"z": {"unplaced", "0/1 partitions: 1 memory"}},
}

func TestConditions(t *testing.T) {
	loading := decide.Condition{Partition: "p", Model: "b", Kind: decide.IsLoading, Reason: "revision r2"}
	failing := decide.Condition{Partition: "p", Model: "b", Kind: decide.IsFailing, Reason: "no module named torch", Attempts: 3, Next: at(30)}
	server := decide.Condition{Partition: "p", Kind: decide.IsFailing, Reason: "port in use"}
	for name, c := range map[string]struct {
		observed apply.Observed
		kind     conditions.Kind
		of       string
		// ready, progressing, degraded: "yes" or "no", with reason and message where there are any.
		want    [3]string
		differs bool
	}{
		"as it should be":               {seen(true, []string{"a", "b"}, nil), conditions.Partition, "p", [3]string{"yes", "no", "no"}, false},
		"its model, too":                {seen(true, []string{"a", "b"}, nil), conditions.Model, "a", [3]string{"yes", "no", "no"}, false},
		"a load":                        {seen(true, []string{"a"}, []string{"b"}, loading), conditions.Partition, "p", [3]string{"no models_missing it does not serve yet as the plan asks: b", "yes loading b: revision r2", "no"}, true},
		"the model that loads":          {seen(true, []string{"a"}, []string{"b"}, loading), conditions.Model, "b", [3]string{"no loading p: revision r2", "yes loading p: revision r2", "no"}, true},
		"the model beside it":           {seen(true, []string{"a"}, []string{"b"}, loading), conditions.Model, "a", [3]string{"yes", "no", "no"}, true},
		"a model that fails":            {seen(true, []string{"a"}, []string{"b"}, failing), conditions.Model, "b", [3]string{"no failing p: no module named torch", "no", "yes failing p: no module named torch"}, true},
		"it fails beside what serves":   {seen(true, []string{"a", "b"}, []string{"b"}, failing), conditions.Model, "b", [3]string{"yes", "no", "yes failing p: no module named torch"}, true},
		"its partition":                 {seen(true, []string{"a"}, []string{"b"}, failing), conditions.Partition, "p", [3]string{"no models_missing it does not serve yet as the plan asks: b", "no", "yes failing b: no module named torch"}, true},
		"a dead server":                 {seen(false, nil, []string{"a", "b"}, server), conditions.Partition, "p", [3]string{"no down killed", "no", "yes failing port in use"}, true},
		"the models of a dead server":   {seen(false, nil, []string{"a", "b"}, server), conditions.Model, "a", [3]string{"no failing p: port in use", "no", "no"}, true},
		"a model without a place":       {seen(true, []string{"a", "b"}, nil), conditions.Model, "z", [3]string{"no unplaced 0/1 partitions: 1 memory", "no", "no"}, false},
		"an old server beside the plan": {apply.Observed{Settled: true, Partitions: []apply.PartitionState{{ID: "p", Up: true, Models: []string{"a", "b"}}, {ID: "p", Up: true, Retiring: true}}}, conditions.Partition, "p", [3]string{"yes", "no", "no"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			var tracker conditions.Tracker
			list := tracker.Look(c.observed, wanted, at(9)).Of(c.kind, c.of)
			require.Len(t, list, 3)
			for i, condition := range list {
				text := "no"
				if condition.Holds {
					text = "yes"
				}
				if condition.Reason != "" {
					text += " " + condition.Reason + " " + condition.Message
				}
				require.Equal(t, c.want[i], text, condition.Type)
			}
			require.Equal(t, c.differs, conditions.Differs(c.observed))
		})
	}
}

// The cluster has conditions where servers are Pods: it is degraded while its API server does not answer, whatever its servers do.
func TestTheClusterHasConditions(t *testing.T) {
	var tracker conditions.Tracker
	o := seen(true, []string{"a", "b"}, nil)
	require.Nil(t, tracker.Look(o, wanted, at(1)).Of(conditions.OfCluster, "serving"), "there is none")
	in := wanted
	in.Cluster = &conditions.Cluster{Release: "serving"}
	is := func(now int) (ready, degraded api.Condition) {
		all := tracker.Look(o, in, at(now)).Of(conditions.OfCluster, "serving")
		require.Len(t, all, 3)
		return all[0], all[2]
	}
	ready, degraded := is(1)
	require.True(t, ready.Holds)
	require.False(t, degraded.Holds)
	in.Cluster = &conditions.Cluster{Release: "serving", Silent: at(5), Cause: "connection refused"}
	is(9)
	ready, degraded = is(20)
	require.False(t, ready.Holds)
	require.True(t, degraded.Holds)
	require.Equal(t, at(9), degraded.Since)
	require.Equal(t, "api_server_silent", degraded.Reason)
	require.Equal(t, "the API server has not answered since 2026-01-02T03:04:05Z: requests go on, and what a plan changes in the cluster waits: connection refused", degraded.Message)
	in.Cluster = &conditions.Cluster{Release: "serving"}
	ready, degraded = is(30)
	require.True(t, ready.Holds)
	require.False(t, degraded.Holds)
	require.Equal(t, at(30), degraded.Since)
}

// TestSinceIsWhenAConditionTurned, and not when it was looked at, nor when only its message changed.
func TestSinceIsWhenAConditionTurned(t *testing.T) {
	var tracker conditions.Tracker
	failing := func(reason string) apply.Observed {
		return seen(true, []string{"a"}, []string{"b"}, decide.Condition{Partition: "p", Model: "b", Kind: decide.IsFailing, Reason: reason})
	}
	ready := func(all conditions.All) api.Condition {
		c, ok := api.ConditionOf(all.Of(conditions.Model, "b"), api.ConditionReady)
		require.True(t, ok)
		return c
	}
	first := tracker.Look(seen(true, []string{"a", "b"}, nil), wanted, at(1))
	require.Equal(t, at(1), ready(first).Since)
	require.Equal(t, at(1), ready(tracker.Look(seen(true, []string{"a", "b"}, nil), wanted, at(2))).Since)
	second := tracker.Look(failing("one"), wanted, at(8))
	require.Equal(t, at(8), ready(second).Since)
	third := tracker.Look(failing("two"), wanted, at(9))
	require.Equal(t, at(8), ready(third).Since)
	require.Equal(t, "p: two", ready(third).Message)

	require.Equal(t, []conditions.Subject{{Kind: conditions.Model, Name: "b"}, {Kind: conditions.Partition, Name: "p"}}, conditions.Turned(first, second, api.ConditionDegraded))
	require.Empty(t, conditions.Turned(second, third, api.ConditionDegraded))
}
