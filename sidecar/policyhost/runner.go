// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policyhost

import (
	"context"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	goplugin "github.com/hashicorp/go-plugin/runner"
)

// drainTime is how long the pipes of a killed process are still read. They end
// with it, unless it left a child behind that holds them open.
const drainTime = time.Second

// runner starts and kills a policy's process for go-plugin. In contrast to
// go-plugin's own it puts the process into a group of its own, which is killed
// as a whole, gives it none of the host's environment and no standard input,
// and does not wait for ever for pipes that another process holds.
type runner struct {
	cmd            *exec.Cmd
	stdout, stderr io.ReadCloser
	pid            atomic.Int64
	// killed asks a process that is just being started to end; reaped says that
	// its number may be another's by now.
	killed, reaped atomic.Bool
	drain          sync.Once
}

var _ goplugin.Runner = (*runner)(nil)

func newRunner(path string, args, env []string) (*runner, error) {
	// The process outlives the context of the call that starts it.
	cmd := exec.CommandContext(context.Background(), path, args...)
	cmd.Env = env
	cmd.SysProcAttr = processAttributes()
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	return &runner{cmd: cmd, stdout: stdout, stderr: stderr}, nil
}

// Start implements goplugin.Runner.
func (r *runner) Start(context.Context) error {
	if err := r.cmd.Start(); err != nil {
		return err
	}
	r.pid.Store(int64(r.cmd.Process.Pid))
	if r.killed.Load() {
		r.kill()
	}
	return nil
}

// Wait implements goplugin.Runner.
func (r *runner) Wait(context.Context) error {
	// Before the process is reaped its number is its group's alone, also where it ended by itself: what it left goes now.
	if pid := int(r.pid.Load()); ended(pid) {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
	err := r.cmd.Wait()
	r.reaped.Store(true)
	return err
}

// Kill implements goplugin.Runner.
func (r *runner) Kill(context.Context) error {
	r.kill()
	return nil
}

// kill ends the process and all that it started; also before it is started. It
// may be called at any time and any number of times.
func (r *runner) kill() {
	r.killed.Store(true)
	pid := int(r.pid.Load())
	if pid == 0 || r.reaped.Load() {
		return
	}
	_ = syscall.Kill(-pid, syscall.SIGKILL)
	r.drain.Do(func() {
		time.AfterFunc(drainTime, func() {
			_ = r.stdout.Close()
			_ = r.stderr.Close()
		})
	})
}

// Stdout implements goplugin.Runner.
func (r *runner) Stdout() io.ReadCloser { return r.stdout }

// Stderr implements goplugin.Runner.
func (r *runner) Stderr() io.ReadCloser { return r.stderr }

// Name implements goplugin.Runner.
func (r *runner) Name() string { return r.cmd.Path }

// ID implements goplugin.Runner; empty before the start.
func (r *runner) ID() string {
	if pid := r.pid.Load(); pid != 0 {
		return strconv.FormatInt(pid, 10)
	}
	return ""
}

// Diagnose implements goplugin.Runner.
func (r *runner) Diagnose(context.Context) string {
	return r.cmd.Path + " did not print the line of the handshake; its own words are in the log"
}

// PluginToHost implements goplugin.Runner: both see the same file system.
func (r *runner) PluginToHost(network, address string) (string, string, error) {
	return network, address, nil
}

// HostToPlugin implements goplugin.Runner.
func (r *runner) HostToPlugin(network, address string) (string, string, error) {
	return network, address, nil
}

// environment is all that a policy inherits.
func environment(lookup func(string) (string, bool)) []string {
	var env []string
	for _, name := range []string{"PATH", "HOME", "LANG", "TMPDIR"} {
		if value, ok := lookup(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}

func hostEnvironment() []string { return environment(os.LookupEnv) }
