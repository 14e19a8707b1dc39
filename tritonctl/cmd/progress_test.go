// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cmd_test

import (
	"bytes"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/tritonctl/cmd"
	"github.com/conch-serving/conch/tritonctl/factory"
)

// Commands that take long show at a terminal how far they are, and leave nothing of it there; elsewhere nothing is written.
func TestProgressIsForPeopleAtATerminal(t *testing.T) {
	w := &world{revision: 7, logs: t.TempDir()}
	server := httptest.NewServer(admin.NewHandler(w, nil, slog.New(slog.DiscardHandler)))
	defer server.Close()
	raw, err := w.Snapshot(t.Context())
	require.NoError(t, err)
	line := strings.ReplaceAll(string(raw), "\n", " ") + "\n"
	snapshots, scenario := filepath.Join(t.TempDir(), "many.jsonl"), filepath.Join(t.TempDir(), "small.yaml")
	require.NoError(t, os.WriteFile(snapshots, []byte(line+line+line+line), 0o600))
	require.NoError(t, os.WriteFile(scenario, []byte(`apiVersion: conch-sim/v1
duration: 1s
gpus: [{type: A100}]
models: [{name: a, profile: {alpha: 1ms, beta: 5ms}, slo: 50ms, rate: 50}]
`), 0o600))
	for _, c := range []struct {
		args  []string
		shows string
		also  string // what goes to stderr besides
	}{
		{[]string{"repo", "import", "/models"}, "reading the repository", ""},
		{[]string{"calibrate", "--gpu", "A100"}, "measuring micro-models", ""},
		{[]string{"calibrate", "model", "counter"}, "measuring counter", ""},
		{[]string{"merge", "verify", "ner", "sentiment"}, "verifying the merge", ""},
		{[]string{"policy", "try", "static", "--snapshots", snapshots}, "asking static", "4 snapshots in"},
		{[]string{"simulate", scenario, "--goodput"}, "searching the highest rate", ""},
	} {
		t.Run(strings.Join(c.args[:2], " "), func(t *testing.T) {
			for _, terminal := range []bool{false, true} {
				var out, errs bytes.Buffer
				f := &factory.Factory{Out: &out, Err: &errs, ErrTerminal: terminal, Getenv: func(string) string { return server.URL }}
				require.Equal(t, cmd.ExitOK, cmd.Run(t.Context(), f, c.args), errs.String())
				lines := strings.Split(errs.String(), "\r\x1b[K")
				require.Contains(t, lines[len(lines)-1], c.also)
				if terminal {
					require.Contains(t, errs.String(), c.shows)
					require.NotContains(t, lines[len(lines)-1], c.shows)
				} else {
					require.NotContains(t, errs.String(), "\x1b")
					require.Equal(t, c.also == "", errs.Len() == 0, errs.String())
				}
				require.NotContains(t, out.String(), "\x1b")
				require.NotEmpty(t, out.String())
			}
		})
	}
}

// TestProgressOnATerminal runs the program with a terminal as its standard error: it finds that it is one, draws how far it is, and leaves nothing of
// that behind.
func TestProgressOnATerminal(t *testing.T) {
	server := httptest.NewServer(admin.NewHandler(&world{revision: 7}, nil, slog.New(slog.DiscardHandler)))
	defer server.Close()
	for _, c := range []struct {
		args          []string
		shows, prints string
	}{
		{[]string{"calibrate", "--gpu", "A100"}, "measuring micro-models", "kept by conch"},
		{[]string{"calibrate", "model", "counter"}, "measuring counter", "9ms"},
		{[]string{"merge", "verify", "ner", "sentiment"}, "verifying the merge", "verified: 16 runs on triton 2.51"},
	} {
		t.Run(strings.Join(c.args[:2], " "), func(t *testing.T) {
			terminal, program, err := pty.Open()
			require.NoError(t, err)
			defer terminal.Close()
			require.NoError(t, pty.Setsize(program, &pty.Winsize{Cols: 100, Rows: 24}))
			drawn := make(chan string)
			go func() {
				text, _ := io.ReadAll(terminal) // a terminal that the last program has left fails
				drawn <- string(text)
			}()
			command := exec.CommandContext(t.Context(), "tritonctl", c.args...) //nolint:gosec // this program, by testscript.Main
			command.Env = append(os.Environ(), factory.AddressVariable+"="+server.URL, "TERM=xterm")
			command.Stderr = program
			out, err := command.Output()
			require.NoError(t, program.Close())
			screen := <-drawn
			require.NoError(t, err, screen)
			require.Contains(t, string(out), c.prints)
			require.NotContains(t, string(out), "\x1b")
			lines := strings.Split(screen, "\r\x1b[K")
			require.Contains(t, screen, c.shows)
			require.Empty(t, lines[len(lines)-1], "nothing is left on the screen")
		})
	}
}
