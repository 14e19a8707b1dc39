// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observers

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch"
)

type executions struct {
	dispatch.Observer
	seen int
}

func (e *executions) Executed(dispatch.Execution) { e.seen++ }

func TestADeadStubRestartsItsPartitionOnce(t *testing.T) {
	next := &executions{}
	restarted := make(chan string)
	release := make(chan error)
	d := WatchStubs(next, func(partition, _ string) error {
		restarted <- partition
		return <-release
	}, slog.New(slog.DiscardHandler))
	dead := status.Error(codes.Internal, "Stub process 'm_0_0' is not healthy.")
	d.Executed(dispatch.Execution{Partition: "gpu0", Model: "m"})
	d.Executed(dispatch.Execution{Partition: "gpu0", Model: "m", Err: errors.New("ValueError: stub")})
	d.Executed(dispatch.Execution{Partition: "gpu0", Model: "m", Err: dead})
	require.Equal(t, "gpu0", <-restarted)
	d.Executed(dispatch.Execution{Partition: "gpu0", Model: "m", Err: dead}) // it is being restarted
	d.Executed(dispatch.Execution{Partition: "gpu1", Model: "m", Err: dead})
	require.Equal(t, "gpu1", <-restarted)
	release <- nil
	release <- errors.New("it is gone")
	require.NoError(t, d.Run(ended(t)))
	require.Equal(t, 5, next.seen)

	d.Executed(dispatch.Execution{Partition: "gpu0", Model: "m", Err: dead}) // its second life
	require.Equal(t, "gpu0", <-restarted)
	release <- nil
	require.NoError(t, d.Run(ended(t)))
}
