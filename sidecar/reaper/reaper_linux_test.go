// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package reaper_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/reaper"
)

// TestMain is the reaper when a test starts it as a process: a reaper waits for every child of its process.
func TestMain(m *testing.M) {
	script := os.Getenv("REAPER_TEST_SCRIPT")
	if script == "" {
		os.Exit(m.Run())
	}
	settled, err := time.ParseDuration(os.Getenv("REAPER_TEST_SETTLED"))
	if err != nil {
		panic(err)
	}
	status, err := reaper.Run(reaper.Options{
		Program: "/bin/sh", Arguments: []string{"-c", script}, Settled: settled, Pause: 10 * time.Millisecond, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		panic(err)
	}
	os.Exit(status)
}

// run starts a reaper of a shell script in a directory of its own.
func run(t *testing.T, settled, script string) (dir string, command *exec.Cmd, log *bytes.Buffer) {
	dir, log = t.TempDir(), &bytes.Buffer{}
	command = exec.CommandContext(t.Context(), os.Args[0])
	command.Dir, command.Stderr = dir, log
	command.Env = append(os.Environ(), "REAPER_TEST_SCRIPT="+script, "REAPER_TEST_SETTLED="+settled)
	command.WaitDelay = 10 * time.Second
	require.NoError(t, command.Start())
	return dir, command, log
}

func status(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 0
}

// number is what a script writes into a file, once it has.
func number(t *testing.T, dir, file string) (n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil || !strings.HasSuffix(string(text), "\n") {
			return false
		}
		n, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil
	}, time.Minute, 5*time.Millisecond, file)
	return n
}

func TestWhatTheProgramKeepsOutlivesItsCrash(t *testing.T) {
	t.Parallel()
	dir, command, log := run(t, "1h", `
		if [ ! -e kept ]; then
			sleep 1000 >/dev/null 2>&1 & echo $! > kept
			kill -9 $$
		fi
		trap 'exit 7' TERM
		echo $$ > second
		while :; do sleep .02; done`)
	kept := number(t, dir, "kept")
	number(t, dir, "second")
	require.NoError(t, syscall.Kill(kept, 0), "the first life's process lives in the second one")
	parent, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", kept))
	require.NoError(t, err)
	require.Regexp(t, fmt.Sprintf(`\) [A-Z] %d `, command.Process.Pid), string(parent), "the reaper is its parent, whatever it does")

	require.NoError(t, syscall.Kill(kept, syscall.SIGKILL))
	require.Eventually(t, func() bool { return errors.Is(syscall.Kill(kept, 0), syscall.ESRCH) }, time.Minute, 5*time.Millisecond, "no zombie is left of it")

	require.NoError(t, command.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 7, status(command.Wait()), "the signal went on, and the status is the program's\n%s", log)
	require.Equal(t, 1, strings.Count(log.String(), "conch crashed and is started again"))
}

func TestOtherSignalsGoOn(t *testing.T) {
	t.Parallel()
	dir, command, _ := run(t, "1h", `trap 'echo 1 > reloaded' HUP; trap 'exit 0' INT; echo $$ > ready; while :; do sleep .02; done`)
	number(t, dir, "ready")
	require.NoError(t, command.Process.Signal(syscall.SIGHUP))
	number(t, dir, "reloaded")
	require.NoError(t, command.Process.Signal(syscall.SIGINT))
	require.NoError(t, command.Wait())
}

func TestWhoeverEndsByItselfIsNotStartedAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		settled, script string
		status, starts  int
	}{
		"a wrong configuration":           {"1h", `echo x >> starts; exit 3`, 3, 1},
		"done":                            {"0s", `echo x >> starts; exit 0`, 0, 1},
		"failed after it had settled":     {"0s", `echo x >> starts; [ $(wc -l < starts) = 3 ] && exit 0; exit 3`, 0, 3},
		"killed, and killed, and stopped": {"1h", `echo x >> starts; [ $(wc -l < starts) = 3 ] && exit 4; kill -9 $$`, 4, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, command, log := run(t, c.settled, c.script)
			require.Equal(t, c.status, status(command.Wait()), log)
			starts, err := os.ReadFile(filepath.Join(dir, "starts"))
			require.NoError(t, err)
			require.Equal(t, c.starts, strings.Count(string(starts), "x"))
		})
	}
}
