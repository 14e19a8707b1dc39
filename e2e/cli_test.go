// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/rig"
)

// tritonctl runs the program as a person does, and returns all it prints and its exit code.
func tritonctl(t *testing.T, c *rig.Conch, arguments ...string) (out string, code int) {
	t.Helper()
	command := exec.CommandContext(t.Context(), filepath.Join(setting(t, "CONCH_BIN"), "tritonctl"), arguments...)
	command.Env = append(os.Environ(), "CONCH_ADMIN="+c.Admin)
	data, err := command.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return string(data), exit.ExitCode()
	}
	require.NoError(t, err)
	return string(data), 0
}

// inOrder runs scripts one after the other; testscript would run them in parallel.
type inOrder struct{ *testing.T }

func (t inOrder) Parallel() {}

func (t inOrder) Verbose() bool { return testing.Verbose() }

func (t inOrder) Run(name string, script func(testscript.T)) {
	t.T.Run(name, func(t *testing.T) { script(inOrder{t}) })
}

// await is the script's command `await PATTERN COMMAND...`: the command runs until its output matches, as a user would repeat it while a server
// starts. It runs every 50 ms: it waits for a real process, which no virtual clock moves.
func await(ts *testscript.TestScript, _ bool, args []string) {
	pattern := regexp.MustCompile("(?m)" + args[0])
	for deadline := time.Now().Add(90 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		err := ts.Exec(args[1], args[2:]...)
		if out := ts.ReadFile("stdout"); pattern.MatchString(out) {
			return
		} else if time.Now().After(deadline) {
			ts.Fatalf("%s: no match for %s after 90 s: %v\n%s", strings.Join(args[1:], " "), pattern, err, out)
		}
	}
}

// The scripts of testdata/script drive tritonctl against one conch, one after the other. Each leaves it as it found it, but for the
// history.
func TestScripts(t *testing.T) {
	t.Parallel()
	c := start(t, 2, nil, "emulated", "encoder")
	bin := setting(t, "CONCH_BIN")
	own, more := repository(t, "emulated", "encoder"), repository(t, "emulated", "encoder", "fragile")
	broken := repository(t, "emulated", "encoder")
	require.NoError(t, os.WriteFile(filepath.Join(broken, "encoder", "config.pbtxt"), []byte("name: \"encoder\"\nmax_batch_size: \"many\"\n"), 0o644))
	testscript.RunT(inOrder{t}, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds:                map[string]func(*testscript.TestScript, bool, []string){"await": await},
		Setup: func(e *testscript.Env) error {
			e.Setenv("PATH", bin+string(filepath.ListSeparator)+e.Getenv("PATH"))
			e.Setenv("CONCH_ADMIN", c.Admin)
			e.Setenv("OWN", own)
			e.Setenv("MORE", more)
			e.Setenv("BROKEN", broken)
			return nil
		},
	})
}
