// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// start runs a program in the background, its output in log/NAME.log, its process id in NAME.pid. It does nothing where it runs already.
func (c *Cluster) start(name string, command []string) error {
	if c.runs(name) {
		return nil
	}
	log, err := os.OpenFile(filepath.Join(c.o.Dir, "log", name+".log"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the child has its own
	p := exec.Command(command[0], command[1:]...)
	p.Stdout, p.Stderr, p.Dir = log, log, c.o.Dir
	p.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := p.Start(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	go func() { _ = p.Wait() }() // or it stays as a zombie of this program
	return os.WriteFile(c.pidFile(name), []byte(strconv.Itoa(p.Process.Pid)), 0o644)
}

func (c *Cluster) pidFile(name string) string { return filepath.Join(c.o.Dir, name+".pid") }

// pid is the process id of a part; 0 where it does not run. The command line is looked at: the id of one that ended may be another's by now.
func (c *Cluster) pid(name string) int {
	text, err := os.ReadFile(c.pidFile(name))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !bytes.Contains(line, []byte(c.o.Bin)) {
		return 0
	}
	return pid
}

func (c *Cluster) runs(name string) bool { return c.pid(name) != 0 }

// end ends a part: it is asked to, and killed after five seconds.
func (c *Cluster) end(name string) error {
	pid := c.pid(name)
	if pid == 0 {
		return nil
	}
	for i, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("%s: %w", name, err)
		}
		for range 100 {
			if c.pid(name) == 0 {
				return os.Remove(c.pidFile(name))
			}
			time.Sleep(50 * time.Millisecond)
		}
		if i == 1 {
			break
		}
	}
	return fmt.Errorf("%s, process %d, does not end", name, pid)
}

// tail is the end of a part's log.
func (c *Cluster) tail(name string) string {
	text, err := os.ReadFile(filepath.Join(c.o.Dir, "log", name+".log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-1500):])
}

// output runs a program and returns what it printed; the error has what it complained of.
func output(ctx context.Context, name string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, name, args...)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return string(out), fmt.Errorf("%w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}
