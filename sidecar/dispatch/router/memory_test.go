// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package router_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// sharer is a server that takes regions as Triton does: it opens their objects, in a directory that stands for its /dev/shm.
type sharer struct {
	tritonpb.UnimplementedGRPCInferenceServiceServer
	directory string
	regions   map[string]bool
}

func (s *sharer) SystemSharedMemoryRegister(_ context.Context, r *tritonpb.SystemSharedMemoryRegisterRequest) (*tritonpb.SystemSharedMemoryRegisterResponse, error) {
	if _, err := os.Stat(filepath.Join(s.directory, r.GetKey())); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "Unable to open shared memory region: '%s'", r.GetKey())
	}
	s.regions[r.GetName()] = true
	return &tritonpb.SystemSharedMemoryRegisterResponse{}, nil
}

func (s *sharer) SystemSharedMemoryUnregister(_ context.Context, r *tritonpb.SystemSharedMemoryUnregisterRequest) (*tritonpb.SystemSharedMemoryUnregisterResponse, error) {
	delete(s.regions, r.GetName())
	return &tritonpb.SystemSharedMemoryUnregisterResponse{}, nil
}

// TestCheckMemory: only a server with this host's shared memory passes, and nothing of the check stays with it or here.
func TestCheckMemory(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s, server := &sharer{directory: "/dev/shm", regions: map[string]bool{}}, grpc.NewServer()
	tritonpb.RegisterGRPCInferenceServiceServer(server, s)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	address := l.Addr().String()
	check := func(address string) error { return router.CheckMemory(t.Context(), address, forward.Options{}) }

	require.NoError(t, check(address))
	require.Empty(t, s.regions)
	s.directory = t.TempDir() // a container's own
	err = check(address)
	require.ErrorContains(t, err, "Unable to open shared memory region")
	require.NotErrorIs(t, err, router.ErrSilent)
	require.ErrorContains(t, check("triton.example:8001"), "is not an address that only this host has")
	server.Stop()
	<-done
	require.ErrorIs(t, check(address), router.ErrSilent)
}
