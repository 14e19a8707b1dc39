// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package triton_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/minitriton"
	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/zoo"
)

// TestClient goes once through everything a driver asks of a server.
func TestClient(t *testing.T) {
	repo := t.TempDir()
	require.NoError(t, zoo.Write(repo, zoo.Model{Name: "m", Profile: zoo.Profile{Model: "m", Beta: time.Millisecond}, MaxBatchSize: 4}))
	s, err := minitriton.New(minitriton.Options{Repository: repo})
	require.NoError(t, err)
	socket := filepath.Join(t.TempDir(), "s")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	require.NoError(t, err)
	require.NoError(t, s.Start(t.Context(), minitriton.Listeners{GRPC: l}))
	defer func() { require.NoError(t, s.Close()) }()
	c, err := triton.Dial("unix:" + socket)
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	ctx := t.Context()

	live, err := c.Live(ctx)
	require.NoError(t, err)
	require.True(t, live)
	ready, err := c.Ready(ctx)
	require.NoError(t, err)
	require.True(t, ready)
	meta, err := c.Metadata(ctx)
	require.NoError(t, err)
	require.Equal(t, "triton", meta.Name)

	index, err := c.Index(ctx, false)
	require.NoError(t, err)
	require.Len(t, index, 1)
	require.Empty(t, index[0].State, "never loaded")
	require.NoError(t, c.Load(ctx, "m"))
	index, err = c.Index(ctx, true)
	require.NoError(t, err)
	require.Equal(t, triton.StateReady, index[0].State)
	ready, err = c.ModelReady(ctx, "m", "1")
	require.NoError(t, err)
	require.True(t, ready)
	config, err := c.ModelConfig(ctx, "m", "")
	require.NoError(t, err)
	require.Equal(t, int32(4), config.MaxBatchSize)
	model, err := c.ModelMetadata(ctx, "m", "")
	require.NoError(t, err)
	require.Equal(t, []int64{-1, 16}, model.Inputs[0].Shape)
	stats, err := c.Statistics(ctx, "m", "")
	require.NoError(t, err)
	require.Len(t, stats, 1)
	require.NoError(t, c.Unload(ctx, "m"))
	_, err = c.ModelConfig(ctx, "m", "")
	require.True(t, triton.IsNotFound(err))
}

func TestClientErrors(t *testing.T) {
	_, err := triton.Dial("")
	require.ErrorContains(t, err, "empty endpoint")

	socket := filepath.Join(t.TempDir(), "nobody")
	c, err := triton.Dial("unix:" + socket)
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	err = c.Load(t.Context(), "resnet")
	var failed *triton.Error
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "unix:"+socket, failed.Endpoint)
	require.ErrorContains(t, err, `triton unix:`+socket+`: load model "resnet": Unavailable: `)
	require.Equal(t, codes.Unavailable, status.Code(err))
	require.False(t, triton.IsNotFound(err))
	_, statErr := os.Stat(socket)
	require.ErrorIs(t, statErr, os.ErrNotExist)
}
