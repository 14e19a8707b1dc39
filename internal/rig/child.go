// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// child is a process that the rig started, with its output in a file.
type child struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed once the process has ended
	err  error         // how it ended; read after done
}

// start starts a program. Environment is added to this process's own.
func start(name, log, program string, arguments, environment []string) (*child, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, fmt.Errorf("rig: log of %s: %w", name, err)
	}
	defer out.Close() //nolint:errcheck // the child writes it
	c := &child{name: name, log: log, done: make(chan struct{})}
	c.cmd = exec.Command(program, arguments...) //nolint:noctx // ended by stop, which lets it drain
	c.cmd.Stdout, c.cmd.Stderr = out, out
	c.cmd.Env = append(os.Environ(), environment...)
	// A process group of its own: Ctrl-C in the terminal reaches only the parent, which ends its children in order.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("rig: start %s: %w", name, err)
	}
	go func() {
		c.err = c.cmd.Wait()
		close(c.done)
	}()
	return c, nil
}

// await polls until ready says nil, the process ends, or ctx does.
func (c *child) await(ctx context.Context, ready func(context.Context) error) error {
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-c.done:
			return fmt.Errorf("rig: %s ended before it was ready (%w):\n%s", c.name, c.err, c.tail())
		case <-ctx.Done():
			return fmt.Errorf("rig: %s is not ready: %w:\n%s", c.name, errors.Join(ctx.Err(), err), c.tail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stop sends SIGTERM and, if the process has not ended after the patience, SIGKILL.
func (c *child) stop(patience time.Duration) error {
	select {
	case <-c.done:
		return nil
	default:
	}
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // fails only if it has ended, which is waited for below
	select {
	case <-c.done:
		return nil
	case <-time.After(patience):
		_ = c.cmd.Process.Kill()
		<-c.done
		return fmt.Errorf("rig: %s did not end within %v of SIGTERM and was killed", c.name, patience)
	}
}

// stopGroup stops a tritonserver, and kills what is left of its process group: a python stub whose server was killed may wait for it forever.
func (c *child) stopGroup(patience time.Duration) error {
	err := c.stop(patience)
	_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL) // fails if nothing is left
	return err
}

// tail is the end of the output.
func (c *child) tail() string {
	data, err := os.ReadFile(c.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}
