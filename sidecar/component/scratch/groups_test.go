// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/apply/driver"
)

// refusing notes what is to be started, and starts nothing.
type refusing struct {
	driver.Driver
	asked *driver.Spec
}

var errRefused = errors.New("no room")

func (refusing) Hash(*policy.Partition, *policy.GPU) string { return "h" }

func (r refusing) Start(_ context.Context, s driver.Spec) (driver.Server, error) {
	*r.asked = s
	_, err := os.Stat(s.RepositoryDir)
	return nil, errors.Join(errRefused, err)
}

func TestAScratchServerGoesWhereSomethingNewMay(t *testing.T) {
	node := &policy.Node{Name: "n", Gpus: []*policy.GPU{{Id: "gpu0"}, {Id: "gpu1", Unavailable: true}, {Id: "gpu2"}}}
	within := t.TempDir()
	asked := &driver.Spec{}
	_, err := startScratch(t.Context(), refusing{asked: asked}, node, func(gpu string) bool { return gpu == "gpu0" }, within)
	require.ErrorIs(t, err, errRefused)
	require.NotErrorIs(t, err, os.ErrNotExist, "its repository is there")
	require.Equal(t, []string{"gpu2"}, asked.Partition.GetGpus())
	require.Equal(t, within, filepath.Dir(filepath.Dir(asked.RepositoryDir)), "a conch that finds it removes the directory above its repository, which must be its own")
	left, err := os.ReadDir(within)
	require.NoError(t, err)
	require.Empty(t, left)

	_, err = startScratch(t.Context(), refusing{asked: asked}, node, func(string) bool { return true }, within)
	require.ErrorContains(t, err, "every GPU is unavailable, cordoned or drained")
}
