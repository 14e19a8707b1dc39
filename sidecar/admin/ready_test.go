// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/apply/decide"
	"github.com/conch-serving/conch/sidecar/control"
)

// TestReadyWhileModelsFail: conch is not ready while every model of its plan fails. One that serves, and one that may yet, are worth sending clients
// for, and the body says what fails.
func TestReadyWhileModelsFail(t *testing.T) {
	fails := func(partition, model string) apply.Condition {
		return apply.Condition{Condition: decide.Condition{Partition: partition, Model: model, Kind: decide.IsFailing, Reason: "no module named torch"}}
	}
	loads := func(partition, model string) apply.Condition {
		return apply.Condition{Condition: decide.Condition{Partition: partition, Model: model, Kind: decide.IsLoading}}
	}
	server := func(id string, models, missing []string) apply.PartitionState {
		return apply.PartitionState{ID: id, Up: true, Models: models, Missing: missing}
	}
	for name, c := range map[string]struct {
		servers []apply.PartitionState
		awaited []apply.Condition
		without map[string]string
		want    api.Check
	}{
		"no model":   {want: api.Check{OK: true}},
		"all serve":  {servers: []apply.PartitionState{server("p", []string{"a", "b"}, nil)}, want: api.Check{OK: true}},
		"all load":   {servers: []apply.PartitionState{server("p", nil, []string{"a"})}, awaited: []apply.Condition{loads("p", "a")}, want: api.Check{OK: true}},
		"one fails":  {servers: []apply.PartitionState{server("p", []string{"b"}, []string{"a"})}, awaited: []apply.Condition{fails("p", "a")}, want: api.Check{OK: true, Reason: "1 of 2 models serve nowhere: a: no module named torch"}},
		"in a place": {servers: []apply.PartitionState{server("p", []string{"a"}, nil), server("q", nil, []string{"a"})}, awaited: []apply.Condition{fails("q", "a")}, want: api.Check{OK: true}},
		"all fail": {
			servers: []apply.PartitionState{server("p", nil, []string{"a", "b"}), server("q", nil, []string{"a"})}, awaited: []apply.Condition{fails("p", "b"), fails("p", "a"), fails("q", "a")},
			want: api.Check{Reason: "2 of 2 models serve nowhere: a: no module named torch; b: no module named torch"},
		},
		"one fails, one loads": {
			servers: []apply.PartitionState{server("p", nil, []string{"a", "b"})}, awaited: []apply.Condition{fails("p", "a"), loads("p", "b")},
			want: api.Check{OK: true, Reason: "1 of 2 models serve nowhere: a: no module named torch"},
		},
		"no place":          {without: map[string]string{"a": "no place: 0/1 partitions: 1 memory"}, want: api.Check{Reason: "1 of 1 models serve nowhere: a: no place: 0/1 partitions: 1 memory"}},
		"no place, another": {servers: []apply.PartitionState{server("p", []string{"b"}, nil)}, without: map[string]string{"a": "refused"}, want: api.Check{OK: true, Reason: "1 of 2 models serve nowhere: a: refused"}},
		"many fail": {
			servers: []apply.PartitionState{server("p", nil, []string{"a", "b", "c", "d", "e"})},
			awaited: []apply.Condition{fails("p", "a"), fails("p", "b"), fails("p", "c"), fails("p", "d"), fails("p", "e")},
			want:    api.Check{Reason: "5 of 5 models serve nowhere: a: no module named torch; b: no module named torch; c: no module named torch; and 2 more"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.want.Name = "models"
			checks := admin.Checks(control.Readiness{Planned: true, Servers: c.servers, Awaited: c.awaited, Without: c.without})
			require.Equal(t, c.want, checks[len(checks)-1])
		})
	}
}

// TestReadyWhileServersStart: what is waited for has a name from the first moment on.
func TestReadyWhileServersStart(t *testing.T) {
	for reason, want := range map[string]string{
		"":       "none of 1 partitions is up; gpu0: its server does not answer yet",
		"killed": "none of 1 partitions is up; gpu0: killed",
	} {
		checks := admin.Checks(control.Readiness{Planned: true, Servers: []apply.PartitionState{{ID: "gpu0", Reason: reason}}})
		require.Equal(t, api.Check{Name: "partitions", Reason: want}, checks[1])
	}
}
