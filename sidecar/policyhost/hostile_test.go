// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policyhost_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/policyhost"
	"github.com/conch-serving/conch/sidecar/policyhost/confine"
)

// launchWord makes the test binary the launcher of policies.
const launchWord = "launch-policy"

var nothing = &policy.Partition{}

// Bounds that hold for the tests even if no limit did: nothing here harms the machine.
const (
	mostChildren = 200
	mostBytes    = 1 << 30
)

// misuse tries to take more than a policy is given, and reports the results.
func misuse(how string) string {
	switch how {
	case "fork bomb":
		for i := range mostChildren {
			if err := exec.CommandContext(context.Background(), "/bin/sleep", "20").Start(); err != nil {
				return fmt.Sprintf("stopped at %d", i)
			}
		}
		return "not stopped"
	case "memory bomb":
		var all [][]byte
		for n := 0; n < mostBytes; n += 16 << 20 {
			block := make([]byte, 16<<20)
			for i := 0; i < len(block); i += 4096 {
				block[i] = 1
			}
			all = append(all, block)
		}
		runtime.KeepAlive(all)
		return "not stopped"
	case "files":
		for i := range 10_000 {
			if _, err := os.Open("/dev/null"); err != nil {
				return fmt.Sprintf("stopped at %d", i)
			}
		}
		return "not stopped"
	case "sockets":
		// In the one directory that it may write, and the host's connection among them.
		for i := range 10_000 {
			var held net.ListenConfig
			if _, err := held.Listen(context.Background(), "unix", filepath.Join(os.TempDir(), strconv.Itoa(i))); err != nil {
				return fmt.Sprintf("stopped at %d", i)
			}
		}
		return "not stopped"
	case "read":
		_, secret := os.ReadFile(os.Getenv(fileVariable))
		_, beside := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(os.Getenv(fileVariable))), "open"))
		write := os.WriteFile(filepath.Join(filepath.Dir(filepath.Dir(os.Getenv(fileVariable))), "written"), nil, 0o600)
		return fmt.Sprintf("secret %v, beside %v, written %v", secret != nil, beside != nil, write != nil)
	case "dial":
		_, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", os.Getenv(fileVariable))
		return fmt.Sprint(err)
	}
	return how
}

// confined lets a world's policies be launched, with tight limits.
func confined(t *testing.T, hidden ...string) func(*policyhost.Options) {
	self, err := os.Executable()
	require.NoError(t, err)
	return func(o *policyhost.Options) {
		o.Launcher = []string{self, launchWord}
		o.Limits = confine.Limits{Data: 256 << 20, Processes: 64, Files: 64, Hidden: hidden, User: confine.Nobody}
		o.Budget = 20 * time.Second
	}
}

func TestPoliciesAreConfined(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("policies are confined on Linux only")
	}
	if raceDetector {
		t.Skip("the race detector does not start within the limits of a policy")
	}
	dir, err := os.MkdirTemp("", "conch-confine-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755)) //nolint:gosec // the policy's user has to be able to read it, where nothing else keeps it from that
	state := filepath.Join(dir, "state")
	require.NoError(t, os.Mkdir(state, 0o755)) //nolint:gosec // the same
	secret := filepath.Join(state, "secret")
	for _, path := range []string{secret, filepath.Join(dir, "open")} {
		require.NoError(t, os.WriteFile(path, []byte("x"), 0o644)) //nolint:gosec // the same
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()

	for name, test := range map[string]struct{ file, says string }{
		"good":      {"", "colour=blue"},
		"fork bomb": {"", "stopped at "},
		"files":     {"", "stopped at "},
		"sockets":   {"", "stopped at "},
		"read":      {secret, "secret true, beside false, written true"},
		"dial":      {listener.Addr().String(), "permission denied"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, confined(t, state))
			r := mode(t, name)
			r.Executable.Env = append(r.Executable.Env, fileVariable+"="+test.file)
			_, err := w.Use(t.Context(), r)
			require.NoError(t, err)
			answer, err := w.Plan(t.Context(), &policy.Snapshot{Revision: 3})
			require.NoError(t, err)
			require.Contains(t, answer.GetReasons()[0].GetText(), test.says)
		})
	}
	t.Run("memory bomb", func(t *testing.T) {
		w := newWorld(t, confined(t, state))
		_, err := w.Use(t.Context(), mode(t, "memory bomb"))
		require.NoError(t, err)
		_, err = w.Plan(t.Context(), &policy.Snapshot{Revision: 3})
		require.ErrorIs(t, err, policyhost.ErrCrashed)
	})
}

// parentWord as its argument lets a test binary launch a program and wait for its own end.
const parentWord = "launch-and-wait"

func parent() error {
	cmd, err := launch("sleep", "600")
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return err
	}
	fmt.Println(cmd.Process.Pid)
	return cmd.Wait()
}

// launch is a program as the launcher runs policies.
func launch(name string, args ...string) (*exec.Cmd, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return nil, err
	}
	program, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	command, err := confine.Command([]string{os.Args[0], launchWord}, path, false, args, confine.Limits{User: confine.Nobody})
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(context.Background(), command[0], command[1:]...)
	cmd.ExtraFiles = []*os.File{program}
	return cmd, nil
}

// TestAPolicyEndsWithConch: a policy ends when the process that launched it is killed.
func TestAPolicyEndsWithConch(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("policies are launched on Linux only")
	}
	self, err := os.Executable()
	require.NoError(t, err)
	t.Run("while it runs", func(t *testing.T) {
		for range 10 {
			conch := exec.CommandContext(t.Context(), self, parentWord)
			conch.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			out, err := conch.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, conch.Start())
			var pid int
			_, err = fmt.Fscan(out, &pid)
			require.NoError(t, err)
			runs := func() bool { // the program, not the launcher; a process that is not reaped yet has no command line either
				text, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
				return bytes.HasSuffix(text, []byte("sleep\x00600\x00")) && !bytes.Contains(text, []byte(launchWord))
			}
			require.Eventually(t, runs, 20*time.Second, time.Millisecond)
			require.NoError(t, conch.Process.Kill())
			require.Error(t, conch.Wait())
			require.Eventually(t, func() bool { return !runs() }, 20*time.Second, time.Millisecond)
		}
	})
	t.Run("while it is launched", func(t *testing.T) {
		// A shell between the two is what the launcher finds after the death of conch: another parent.
		cmd, err := launch("sleep", "600")
		require.NoError(t, err)
		cmd.Path, cmd.Args = "/bin/sh", slices.Concat([]string{"sh", "-c", `"$@"; exit 7`, "sh"}, cmd.Args)
		out, err := cmd.CombinedOutput()
		require.ErrorContains(t, err, "exit status 7")
		require.Contains(t, string(out), "which launches this policy, has ended")
	})
}

// TestPoliciesAreConfinedWhereConchIsNotRoot: the same limits for a conch that cannot run policies as another user.
func TestPoliciesAreConfinedWhereConchIsNotRoot(t *testing.T) {
	if runtime.GOOS != "linux" || os.Getuid() != 0 {
		t.Skip("only root can become another user on Linux; for who is none the other tests are these")
	}
	if raceDetector {
		t.Skip("the race detector does not start within the limits of a policy")
	}
	dir, err := os.MkdirTemp("", "conch-confine-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chown(dir, confine.Nobody, confine.Nobody))
	self, err := os.Executable()
	require.NoError(t, err)
	program, err := os.ReadFile(self)
	require.NoError(t, err)
	test := filepath.Join(dir, "test") // where go test leaves it no other user can read it
	require.NoError(t, os.WriteFile(test, program, 0o755))
	cmd := exec.CommandContext(t.Context(), test, "-test.run=^(TestPoliciesAreConfined|TestAReplacedProgramIsNotRun)$", "-test.v", "-test.timeout=5m")
	cmd.Dir = dir
	cmd.Env = []string{"TMPDIR=" + dir, "PATH=" + os.Getenv("PATH"), "HOME=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: confine.Nobody, Gid: confine.Nobody}}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, name := range []string{"fork_bomb", "sockets", "files", "read", "dial", "memory_bomb"} {
		require.Contains(t, string(out), "--- PASS: TestPoliciesAreConfined/"+name)
	}
	require.Contains(t, string(out), "--- PASS: TestAReplacedProgramIsNotRun")
}

// TestSocketsOfOthers: a policy that names a socket at which another process listens is refused, and in time.
func TestSocketsOfOthers(t *testing.T) {
	dir, err := os.MkdirTemp("", "conch-socket-") // t.TempDir's names are too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	listen := func(name string) (net.Listener, string) {
		path := filepath.Join(dir, name)
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
		require.NoError(t, err)
		return l, path
	}
	silent, silentPath := listen("silent")
	defer silent.Close()
	web, webPath := listen("web")
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.NotFoundHandler()}
	go func() { _ = server.Serve(web) }() // it ends with Close
	defer server.Close()
	for name, path := range map[string]string{
		"that nobody serves": filepath.Join(dir, "nobody"), "that answers nothing": silentPath, "of a web server": webPath,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(o *policyhost.Options) { o.StartTimeout, o.Budget = 2*time.Second, 2*time.Second })
			began := time.Now()
			_, err := w.Use(t.Context(), mode(t, "another's socket", fileVariable+"="+path))
			require.Error(t, err)
			require.Less(t, time.Since(began), 15*time.Second)
			require.Equal(t, policyhost.StateNone, w.Status().State)
			require.FileExists(t, silentPath, "what belongs to others stays")
		})
	}
}

// TestEndlessQuestions: questions about no plan use up no evaluations, but the policy's own time.
func TestEndlessQuestions(t *testing.T) {
	w := newWorld(t, func(o *policyhost.Options) { o.Evaluator = &evaluator{} })
	_, err := w.Use(t.Context(), mode(t, "endless questions"))
	require.NoError(t, err)
	s := evaluated(64)
	s.PlanningBudgetUs = (300 * time.Millisecond).Microseconds()
	began := time.Now()
	_, err = w.Plan(t.Context(), s)
	require.ErrorIs(t, err, policyhost.ErrDeadline)
	require.Less(t, time.Since(began), 15*time.Second)
}

// TestHostileAnswersCostLittle: an answer of many empty messages or names is refused before it fills conch's memory.
func TestHostileAnswersCostLittle(t *testing.T) {
	for _, name := range []string{"empty partitions", "names"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, func(o *policyhost.Options) { o.Budget = 10 * time.Minute })
			_, err := w.Use(t.Context(), mode(t, name))
			require.NoError(t, err)
			runtime.GC()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err = w.Plan(t.Context(), &policy.Snapshot{Revision: 3})
			runtime.ReadMemStats(&after)
			require.ErrorIs(t, err, policyhost.ErrGarbage)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(100<<20), "all that was allocated for it")
		})
	}
}

// TestAReplacedProgramIsNotRun: what runs is what the pin says, looked at anew at every start.
func TestAReplacedProgramIsNotRun(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("elsewhere a program is run by its path")
	}
	if raceDetector {
		t.Skip("the race detector does not start within the limits of a policy")
	}
	self, err := os.Executable()
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "policy")
	from, err := os.Open(self)
	require.NoError(t, err)
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o755) //nolint:gosec // it is a program
	require.NoError(t, err)
	hash := sha256.New()
	_, err = io.Copy(io.MultiWriter(to, hash), from)
	require.NoError(t, err)
	require.NoError(t, from.Close())
	require.NoError(t, to.Close())

	w := newWorld(t, confined(t))
	r := mode(t, "good")
	r.Executable.Path, r.Executable.SHA256 = path, hex.EncodeToString(hash.Sum(nil))
	_, err = w.Use(t.Context(), r)
	require.NoError(t, err)
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\nexit 1\n"), 0o755)) //nolint:gosec // it is a program
	_, err = w.Use(t.Context(), r)
	require.ErrorIs(t, err, policyhost.ErrChecksum)
}

// TestACrashLeavesNoChild: what a policy started ends with it, also where it ends by itself.
func TestACrashLeavesNoChild(t *testing.T) {
	w := newWorld(t, nil)
	file := filepath.Join(t.TempDir(), "pid")
	_, err := w.Use(t.Context(), mode(t, "leave a child", fileVariable+"="+file))
	require.NoError(t, err)
	_, err = w.Plan(t.Context(), snapshot(1, 30*time.Second))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return w.Status().State == policyhost.StateDown }, 20*time.Second, 10*time.Millisecond)
	pid, err := os.ReadFile(file)
	require.NoError(t, err)
	number, err := strconv.Atoi(string(pid))
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Kill(number, syscall.SIGKILL) })
	require.Eventually(t, func() bool {
		line, err := os.ReadFile(filepath.Join("/proc", string(pid), "cmdline"))
		return err != nil || len(line) == 0 // gone, or not reaped yet
	}, 20*time.Second, 10*time.Millisecond)
}

// TestAFloodIsCut: of a policy that prints without end only so much comes into the log.
func TestAFloodIsCut(t *testing.T) {
	w := newWorld(t, nil)
	_, err := w.Use(t.Context(), mode(t, "flood"))
	require.NoError(t, err)
	_, err = w.Plan(t.Context(), snapshot(1, 5*time.Minute))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.Contains(t, w.logged(), "left out")
	require.Less(t, strings.Count(w.logged(), "\n"), 1000)
}

// TestAPlanHasTheNameOfItsPolicy: names of policies are labels of metrics, of which there must not be any number.
func TestAPlanHasTheNameOfItsPolicy(t *testing.T) {
	w := newWorld(t, nil)
	_, err := w.Use(t.Context(), mode(t, "many names"))
	require.NoError(t, err)
	answer, err := w.Plan(t.Context(), snapshot(1, 30*time.Second))
	require.NoError(t, err)
	require.Equal(t, "fake 9.8.7", answer.GetPolicy()+" "+answer.GetPolicyVersion())
}

// TestDescriptionsAreBounded: a description is shown in tables, and kept.
func TestDescriptionsAreBounded(t *testing.T) {
	for _, name := range []string{"name of lines", "long name", "many parameters", "long documentation"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, nil)
			_, err := w.Use(t.Context(), mode(t, name))
			require.ErrorIs(t, err, policyhost.ErrGarbage)
			require.Less(t, len(err.Error()), 2000)
		})
	}
}

// TestALongRefusalIsCut: what a policy says of a failure is logged, kept and shown.
func TestALongRefusalIsCut(t *testing.T) {
	w := newWorld(t, nil)
	_, err := w.Use(t.Context(), mode(t, "refuse at length"))
	require.NoError(t, err)
	_, err = w.Plan(t.Context(), snapshot(1, 30*time.Second))
	require.ErrorIs(t, err, policyhost.ErrRefused)
	require.ErrorContains(t, err, "the moon is wrong")
	require.Less(t, len(err.Error()), 10_000)
}
