// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merger_test

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/graphs"
	"github.com/conch-serving/conch/internal/modeldir"
	"github.com/conch-serving/conch/merger"
)

// What lies beside a graph and is no file of the model is neither read nor waited for.
func TestOnlyFilesOfTheModelAreRead(t *testing.T) {
	for name, c := range map[string]struct {
		put  func(dir string) error
		want error
	}{
		"a pipe":                {func(dir string) error { return syscall.Mkfifo(filepath.Join(dir, "1", "extra"), 0o600) }, modeldir.ErrNotRegular},
		"a link to a device":    {func(dir string) error { return os.Symlink("/dev/zero", filepath.Join(dir, "1", "extra")) }, modeldir.ErrOutside},
		"a link to a file":      {func(dir string) error { return os.Symlink("/etc/passwd", filepath.Join(dir, "1", "extra.txt")) }, modeldir.ErrOutside},
		"a link to a neighbour": {func(dir string) error { return os.Symlink("../../a/1/model.py", filepath.Join(dir, "1", "extra.py")) }, modeldir.ErrOutside},
		"a linked configuration": {func(dir string) error {
			return swap(dir, "config.pbtxt", func(to string) error { return os.Symlink("/dev/zero", to) })
		}, modeldir.ErrOutside},
		"a pipe for a configuration": {func(dir string) error {
			return swap(dir, "config.pbtxt", func(to string) error { return syscall.Mkfifo(to, 0o600) })
		}, modeldir.ErrNotRegular},
		"a link inside": {func(dir string) error { return os.Symlink("../1/model.py", filepath.Join(dir, "1", "extra.txt")) }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r := write(t, map[string]*graphs.Model{"a": chain(2, own("layer3")), "b": chain(3, own("layer3"))})
			for _, d := range r.directories {
				if name != "a link to a neighbour" || filepath.Base(d) == "b" {
					require.NoError(t, c.put(d))
				}
			}
			a := analyze(t, r, merger.Options{})
			require.True(t, a.Report.Mode(merger.Backbone).Feasible, a.Report.Mode(merger.Backbone).Reason)
			to := filepath.Join(t.TempDir(), "x")
			_, err := a.Emit(t.Context(), to, "x", merger.Backbone)
			if c.want == nil {
				require.NoError(t, err)
				text, err := os.ReadFile(filepath.Join(to, "x", "1", "extra.txt"))
				require.NoError(t, err)
				require.Equal(t, "# the model's own\n", string(text))
				return
			}
			require.ErrorIs(t, err, c.want)
			require.NoDirExists(t, to, "nothing half made stays")
		})
	}
}

// swap puts something else in the place of a file.
func swap(dir, name string, put func(to string) error) error {
	if err := os.Remove(filepath.Join(dir, name)); err != nil {
		return err
	}
	return put(filepath.Join(dir, name))
}

func TestAGraphOutsideOfItsModelIsRefused(t *testing.T) {
	r := write(t, map[string]*graphs.Model{"a": chain(2, nil), "b": chain(3, nil)})
	graph := filepath.Join(r.directories["b"], "1", "model.onnx")
	elsewhere := filepath.Join(t.TempDir(), "model.onnx")
	require.NoError(t, os.Rename(graph, elsewhere))
	require.NoError(t, os.Symlink(elsewhere, graph))
	a := analyze(t, r, merger.Options{})
	require.Contains(t, a.Report.Mode(merger.Backbone).Reason, modeldir.ErrOutside.Error())
	alone, err := merger.Find(graph)
	require.NoError(t, err)
	a = analyze(t, repository{members: []merger.Member{r.members[0], alone}}, merger.Options{})
	require.Empty(t, a.Report.Refusals, "a graph that is named itself may be a link")
}

func TestAMergeDirectoryIsReadWithoutItsLinks(t *testing.T) {
	r := write(t, map[string]*graphs.Model{"a": chain(2, own("layer3")), "b": chain(3, own("layer3"))})
	to := filepath.Join(t.TempDir(), "x")
	m, err := analyze(t, r, merger.Options{}).Emit(t.Context(), to, "x", merger.Backbone)
	require.NoError(t, err)
	require.NoError(t, syscall.Mkfifo(filepath.Join(to, "x", "1", "pipe"), 0o600))
	_, err = merger.Verify(t.Context(), to, r.directories, nil, merger.VerifyOptions{})
	require.ErrorIs(t, err, modeldir.ErrNotRegular, "%v", m.Name)
}

func TestEmitEndsWithItsContext(t *testing.T) {
	r := write(t, map[string]*graphs.Model{"a": chain(2, own("layer3")), "b": chain(3, own("layer3"))})
	a := analyze(t, r, merger.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	to := filepath.Join(t.TempDir(), "x")
	_, err := a.Emit(ctx, to, "x", merger.Backbone)
	require.ErrorIs(t, err, context.Canceled)
	require.NoDirExists(t, to)
}
