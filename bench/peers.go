// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
)

// peers are the programs that are measured beside conch, each in a process of its own: the measuring program starts itself again as one.
func peers() []*cobra.Command {
	return []*cobra.Command{forwarderPeer(), libraryPeer(), replicaPeer()}
}

// slack is what keeps Go's collector from running after every few requests, as conch has it: a program that is measured beside conch has it too,
// or a call straight to the server would cost more than one through conch. It is to be kept alive.
func slack() []byte { return make([]byte, 32<<20) }

// forwarderPeer copies bytes between connections and knows no protocol: what a perfect proxy would cost on this machine. It takes the
// targets' addresses, prints one of its own for each, and ends with its standard input.
func forwarderPeer() *cobra.Command {
	return &cobra.Command{
		Use: "forward TARGET...", Short: "A plain TCP forwarder for measurements", Hidden: true, Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, end := context.WithCancel(cmd.Context())
			defer end()
			go func() {
				defer end()
				_, _ = io.Copy(io.Discard, os.Stdin) // it ends with the process that measures
			}()
			var addresses []any
			done := make(chan error, len(args))
			for _, target := range args {
				l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
				if err != nil {
					return err
				}
				addresses = append(addresses, l.Addr())
				go func() { done <- forward(ctx, l, target) }()
			}
			fmt.Println(addresses...)
			var errs []error
			for range args {
				errs = append(errs, <-done)
			}
			return errors.Join(errs...)
		},
	}
}

// forward serves connections until ctx ends.
func forward(ctx context.Context, l net.Listener, target string) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	var connections sync.WaitGroup
	defer connections.Wait()
	for {
		from, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		to, err := (&net.Dialer{}).DialContext(ctx, "tcp", target)
		if err != nil {
			return errors.Join(err, from.Close())
		}
		connections.Go(func() { _, _ = io.Copy(to, from); _ = to.(*net.TCPConn).CloseWrite() })
		connections.Go(func() { _, _ = io.Copy(from, to); _ = from.(*net.TCPConn).CloseWrite() })
		context.AfterFunc(ctx, func() { _, _ = from.Close(), to.Close() })
	}
}

// peer is one of these programs that runs, and says where it listens when it does.
type peer struct {
	Addresses []string

	cmd   *exec.Cmd
	stdin io.Closer
}

// startPeer starts the program as one of its peers, whose first line of output is its addresses.
func startPeer(ctx context.Context, args ...string) (*peer, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &peer{cmd: exec.CommandContext(ctx, program, args...)}
	p.cmd.Stderr = os.Stderr
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.stdin = stdin
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", args[0], err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: its addresses: %w", args[0], err), p.Close())
	}
	p.Addresses = strings.Fields(line)
	return p, nil
}

// Close ends the process.
func (p *peer) Close() error {
	err := p.stdin.Close()
	p.cmd.WaitDelay = 5 * time.Second
	return errors.Join(err, p.cmd.Wait())
}

// newLauncher writes, into a directory of its own, a program that starts as tritonserver would and is the one at a path; empty: serverPeer. It leaves its process's number
// beside itself.
func newLauncher(server string) (directory, launcher string, err error) {
	program, err := os.Executable()
	if err != nil {
		return "", "", err
	}
	if directory, err = os.MkdirTemp("", "conch-bench-"); err != nil {
		return "", "", err
	}
	launcher = filepath.Join(directory, "tritonserver")
	command := "'" + program + "' minitriton"
	if server != "" {
		command = "'" + server + "'"
	}
	script := fmt.Appendf(nil, "#!/bin/sh\necho $$ >'%s'\nexport CONCH_EMULATION_DIR='%s'\nexec %s \"$@\"\n", filepath.Join(directory, pidFile), directory, command)
	if err := os.WriteFile(launcher, script, 0o755); err != nil {
		return "", "", errors.Join(err, os.RemoveAll(directory))
	}
	return directory, launcher, nil
}

// pidFile is where the launcher leaves the number of the server's process.
const pidFile = "pid"

// Pid is the number of the process.
func (p *peer) Pid() int { return p.cmd.Process.Pid }
