// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package router

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// TestPlacesThatAreTakenAwayAreUnsettledNoMore: an ejected place leaves the table, at once or once its last lease is back, and comes back. Its partition does not look for unsettled places
// from then on.
func TestPlacesThatAreTakenAwayAreUnsettledNoMore(t *testing.T) {
	r := New(Options{Clock: clock.Timers()})
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	revision := uint64(0)
	commit := func(places ...Place) {
		revision++
		c, err := r.Prepare(&Table{
			Revision:   revision,
			Partitions: []*PartitionSpec{{ID: "p", Endpoint: Endpoint{GRPC: "unix:/nobody/p"}}, {ID: "q", Endpoint: Endpoint{GRPC: "unix:/nobody/q"}}},
			Models:     map[string]*Model{"m": {Name: "m", Config: &tritonpb.ModelConfig{Name: "m"}, Places: places}},
		})
		require.NoError(t, err)
		c.Commit()
	}
	on, both := []Place{{Partition: "q"}}, []Place{{Partition: "p"}, {Partition: "q"}}
	for _, leased := range []bool{false, true} {
		commit(both...)
		p := r.partitions["p"]
		require.Zero(t, p.unsettled)
		lease, err := r.Take(p, "m")
		require.NoError(t, err)
		fault := lease.Faulted(status.Error(codes.Internal, "broken"), OfPlaceForGood)
		require.True(t, fault.Ejected)
		require.Equal(t, 1, p.unsettled)
		if !leased {
			lease.Release()
		}
		commit(on...)
		if leased {
			require.Equal(t, 1, p.unsettled, "an execution goes on there")
			lease.Release()
		}
		require.Zero(t, p.unsettled)
		fault.Excuse()
		require.Zero(t, p.unsettled, "it has been counted out")
	}
}
