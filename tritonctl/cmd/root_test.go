// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cmd_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/tritonctl/cmd"
	"github.com/conch-serving/conch/tritonctl/factory"
)

func TestTheExitCodeSaysWhoseFaultItWas(t *testing.T) {
	for _, c := range []struct {
		name    string
		answer  *api.Error
		args    []string
		address string
		want    int
	}{
		{name: "done", args: []string{"model", "ls"}, want: cmd.ExitOK},
		{name: "conch failed", args: []string{"model", "ls"}, answer: &api.Error{Code: api.CodeInternal}, want: cmd.ExitFailed},
		{name: "bad input", args: []string{"model", "ls"}, answer: &api.Error{Code: api.CodeInvalid}, want: cmd.ExitUsage},
		{name: "unknown flag", args: []string{"model", "ls", "--nonsense"}, want: cmd.ExitUsage},
		{name: "unknown command", args: []string{"nonsense"}, want: cmd.ExitUsage},
		{name: "unknown command of a group", args: []string{"plan", "dif"}, want: cmd.ExitUsage},
		{name: "bad parameter", args: []string{"policy", "use", "static", "--set", "x"}, want: cmd.ExitUsage},
		{name: "missing argument", args: []string{"model", "get"}, want: cmd.ExitUsage},
		{name: "an argument too many", args: []string{"plan", "apply", "plan.json"}, want: cmd.ExitUsage},
		{name: "none of several flags", args: []string{"policy", "try", "static"}, want: cmd.ExitUsage},
		{name: "no such directory", args: []string{"repo", "validate", "/nowhere"}, want: cmd.ExitUsage},
		{name: "no directory", args: []string{"repo", "validate", "/dev/null"}, want: cmd.ExitUsage},
		{name: "no such scenario", args: []string{"simulate", "/nowhere"}, want: cmd.ExitUsage},
		{name: "no such model to estimate", args: []string{"estimate", "/nowhere"}, want: cmd.ExitUsage},
		{name: "no such directory to estimate", args: []string{"estimate", "--all", "/nowhere"}, want: cmd.ExitUsage},
		{name: "no such trace", args: []string{"replay", "/nowhere"}, want: cmd.ExitUsage},
		{name: "unknown format", args: []string{"model", "ls", "-o", "xml"}, want: cmd.ExitUsage},
		{name: "nobody there", args: []string{"model", "ls"}, address: "unix:///nowhere/admin.sock", want: cmd.ExitUnreachable},
		{name: "not found", args: []string{"model", "get", "x"}, answer: &api.Error{Code: api.CodeNotFound}, want: cmd.ExitNotFound},
		{name: "conflict", args: []string{"plan", "apply", "--yes"}, answer: &api.Error{Code: api.CodeConflict}, want: cmd.ExitConflict},
		{name: "refused", args: []string{"plan", "apply", "--yes"}, answer: &api.Error{Code: api.CodeRefused}, want: cmd.ExitRefused},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if c.answer == nil {
					_, _ = w.Write([]byte("[]"))
					return
				}
				w.WriteHeader(http.StatusTeapot)
				_ = json.NewEncoder(w).Encode(map[string]any{"error": c.answer})
			}))
			defer server.Close()
			address := c.address
			if address == "" {
				address = server.URL
			}
			var out, errs bytes.Buffer
			f := &factory.Factory{Out: &out, Err: &errs, Getenv: func(string) string { return address }}
			require.Equal(t, c.want, cmd.Run(t.Context(), f, c.args), errs.String())
			require.Equal(t, c.want == cmd.ExitOK, errs.Len() == 0, "errors, and only they, go to stderr")
		})
	}
}
