// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cmd_test

import (
	"bytes"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
