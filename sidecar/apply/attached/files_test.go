// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package attached_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply/attached"
	"github.com/conch-serving/conch/sidecar/apply/driver"
)

func write(t *testing.T, dir, name, extra string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, name, "1"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, name, "config.pbtxt"), []byte(`backend: "python"
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: 1 }
output { name: "OUT" data_type: TYPE_FP32 dims: 1 }
`+extra), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, name, "1", "model.py"), []byte("# "+name), 0o644))
}

func config(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name, "config.pbtxt"))
	require.NoError(t, err)
	return string(text)
}

// A server's own repository, before conch, under it and after it.
func TestFilesPutAsideAndBack(t *testing.T) {
	source, dir := t.TempDir(), filepath.Join(t.TempDir(), "models")
	write(t, source, "theirs", "")
	write(t, source, "tuned", "dynamic_batching { max_queue_delay_microseconds: 9 }\n")
	write(t, source, "plain", "")
	write(t, dir, "theirs", "# as it was\n")
	write(t, dir, "bystander", "")
	store, err := repo.Open(t.TempDir(), repo.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	revision, err := store.Import(t.Context(), source, repo.Origin{})
	require.NoError(t, err)

	var reloaded []string
	files := attached.NewFiles(store, []string{dir}, func(_ context.Context, _, model string) error {
		reloaded = append(reloaded, model)
		return nil
	})
	models := []string{"theirs", "tuned", "plain"}
	require.NoError(t, files.Stage(t.Context(), revision.ID, models, dir))
	require.NoError(t, files.Stage(t.Context(), revision.ID, models, dir), "again, as after a restart")
	require.NotContains(t, config(t, dir, "theirs"), "as it was")
	require.NotContains(t, config(t, dir, "tuned"), "max_queue_delay")
	require.FileExists(t, filepath.Join(dir+".before", "theirs", "config.pbtxt"))

	// The models are taken back one by one, and no other model is removed.
	require.NoError(t, files.Unstage(t.Context(), dir, "theirs", "bystander"))
	require.Contains(t, config(t, dir, "theirs"), "as it was")
	require.FileExists(t, filepath.Join(dir, "bystander", "config.pbtxt"))
	require.NoDirExists(t, dir+".before")
	require.NoError(t, files.Stage(t.Context(), revision.ID, []string{"theirs"}, dir))

	s := &servers{states: []driver.EndpointState{state("one", true)}}
	s.states[0].Repository = dir
	c := attached.New("node", s, files)
	delay := func(string) time.Duration { return 40 * time.Millisecond }
	dry, err := c.HandBack(t.Context(), true, delay)
	require.NoError(t, err)
	require.Empty(t, reloaded)
	done, err := c.HandBack(t.Context(), false, delay)
	require.NoError(t, err)
	require.Equal(t, dry, done)
	require.ElementsMatch(t, models, reloaded)
	require.Contains(t, config(t, dir, "theirs"), "as it was")
	require.Equal(t, config(t, source, "tuned"), config(t, dir, "tuned"))
	require.Contains(t, config(t, dir, "plain"), "max_queue_delay_microseconds: 40000")
	require.NotContains(t, config(t, source, "plain"), "dynamic_batching", "the operator's repository is only read")

	done, err = c.HandBack(t.Context(), false, delay)
	require.NoError(t, err)
	require.Empty(t, done, "released twice is released once")
	require.NoError(t, files.Unstage(t.Context(), dir))
	require.FileExists(t, filepath.Join(dir, "plain", "1", "model.py"), "it is the operator's now")
}

// A server that is down keeps what it has until it is back.
func TestFilesOfAServerThatIsDownWait(t *testing.T) {
	source, dir := t.TempDir(), filepath.Join(t.TempDir(), "models")
	write(t, source, "m", "")
	store, err := repo.Open(t.TempDir(), repo.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, store.Close()) }()
	revision, err := store.Import(t.Context(), source, repo.Origin{})
	require.NoError(t, err)
	files := attached.NewFiles(store, []string{dir}, nil)
	require.NoError(t, files.Stage(t.Context(), revision.ID, []string{"m"}, dir))
	s := &servers{states: []driver.EndpointState{state("one", false)}}
	s.states[0].Repository = dir
	done, err := attached.New("node", s, files).HandBack(t.Context(), false, func(string) time.Duration { return 0 })
	require.NoError(t, err)
	require.Len(t, done, 1)
	require.ErrorIs(t, done[0].Err, driver.ErrDown)
	staged, err := store.Staged(dir)
	require.NoError(t, err)
	require.Equal(t, []string{"m"}, staged)
}
