// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/sidecar/admin/api"
)

// logged is a conch with one partition, whose log is at a path that may change.
type logged struct {
	admin.API
	path chan string
}

func (l logged) LogFile(context.Context, string) (string, error) {
	path := <-l.path
	l.path <- path
	return path, nil
}

// elsewhere is a conch whose servers' logs are.
type elsewhere struct {
	admin.API
	text string
	err  error
}

func (e elsewhere) LogStream(_ context.Context, partition string, lines int, follow bool) (io.ReadCloser, error) {
	if e.err != nil {
		return nil, e.err
	}
	return io.NopCloser(io.MultiReader(strings.NewReader(fmt.Sprintln(partition, lines, follow)), strings.NewReader(e.text))), nil
}

// TestALogThatIsElsewhere: it is passed on as it comes, or the caller learns why not.
func TestALogThatIsElsewhere(t *testing.T) {
	var got strings.Builder
	require.NoError(t, serveAPI(t, elsewhere{text: "loaded\n"}).Log(t.Context(), "node-1.gpu-0", 7, true, &got))
	require.Equal(t, "node-1.gpu-0 7 true\nloaded\n", got.String())
	err := serveAPI(t, elsewhere{err: &api.Error{Code: api.CodeUnavailable, Message: "partition p has no Pod"}}).Log(t.Context(), "p", -1, false, io.Discard)
	require.ErrorContains(t, err, "partition p has no Pod")
}

// TestALogIsFollowedOverRotationsAndRestarts: every line comes once, in order.
func TestALogIsFollowedOverRotationsAndRestarts(t *testing.T) {
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first.log"), filepath.Join(dir, "second.log")
	write := func(path, line string) {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		require.NoError(t, err)
		_, err = f.WriteString(line + "\n")
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	write(first, "zero")
	write(first, "one")
	l := logged{path: make(chan string, 1)}
	l.path <- first
	c := serveAPI(t, l)

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got := make(chan string, 100)
	ended := make(chan error, 1)
	go func() {
		ended <- c.Log(ctx, "p", 1, true, writing(func(p []byte) (int, error) { got <- string(p); return len(p), nil }))
	}()
	require.Equal(t, "one\n", <-got)
	write(first, "two")
	require.Equal(t, "two\n", <-got)
	require.NoError(t, os.Rename(first, first+".1"))
	write(first+".1", "three") // the server wrote it before it went over
	write(first, "four")
	require.Equal(t, "three\n", <-got)
	require.Equal(t, "four\n", <-got)
	write(second, "five")
	<-l.path
	l.path <- second
	require.Equal(t, "five\n", <-got)
	cancel()
	require.NoError(t, <-ended, "who follows a log ends it")
}
