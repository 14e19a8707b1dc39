// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cmd_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/sim/advise"
	"github.com/conch-serving/conch/tritonctl/cmd"
	"github.com/conch-serving/conch/tritonctl/factory"
)

// endless sends a trace and half an entry more, and then waits for its caller to go.
type endless struct {
	world
}

func (e *endless) Record(ctx context.Context, w io.Writer) (api.Recorded, error) {
	if _, err := e.world.Record(ctx, w); err != nil {
		return api.Recorded{}, err
	}
	if _, err := w.Write([]byte{1}); err != nil {
		return api.Recorded{}, err
	}
	if err := w.(interface{ Flush() error }).Flush(); err != nil {
		return api.Recorded{}, err
	}
	<-ctx.Done()
	return api.Recorded{}, ctx.Err()
}

// busy is recording already.
type busy struct{ world }

func (busy) Record(context.Context, io.Writer) (api.Recorded, error) {
	return api.Recorded{}, &api.Error{Code: api.CodeConflict, Message: "somebody is recording"}
}

// A recording that cannot begin leaves the file of an earlier one alone, and its error is printed once.
func TestARecordingThatIsRefusedKeepsTheTrace(t *testing.T) {
	server := httptest.NewServer(admin.NewHandler(&busy{}, nil, slog.New(slog.DiscardHandler)))
	defer server.Close()
	path := filepath.Join(t.TempDir(), "trace")
	for address, want := range map[string]int{server.URL: cmd.ExitConflict, "unix:///nowhere/admin.sock": cmd.ExitUnreachable} {
		require.NoError(t, os.WriteFile(path, []byte("an earlier trace"), 0o644))
		var out, errs bytes.Buffer
		f := &factory.Factory{Out: &out, Err: &errs, Getenv: func(string) string { return address }}
		require.Equal(t, want, cmd.Run(t.Context(), f, []string{"record", "--file", path}))
		kept, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, "an earlier trace", string(kept))
		require.Equal(t, 1, strings.Count(errs.String(), "\n"), errs.String())
	}
}

func TestARecordingThatIsEndedEarlyCanBeRead(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	server := httptest.NewServer(admin.NewHandler(&endless{}, nil, slog.New(slog.DiscardHandler)))
	defer server.Close()
	var out, errs bytes.Buffer
	f := &factory.Factory{Out: &out, Err: &errs, Getenv: func(string) string { return server.URL }}
	path := filepath.Join(t.TempDir(), "trace")
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer interrupt()
		for ctx.Err() == nil { // until the file shows that the recording has begun
			if info, err := os.Stat(path); err == nil && info.Size() > 0 {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	require.Equal(t, cmd.ExitOK, cmd.Run(ctx, f, []string{"record", "--for", "1h", "--file", path}), errs.String())
	<-done
	require.Contains(t, out.String(), "ended early")
	file, err := os.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	_, err = advise.ReadTraffic(file)
	require.NoError(t, err, "what was cut off in the middle of an entry holds whole entries only")
}
