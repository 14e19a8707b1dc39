// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/internal/minitriton"
)

// peers are the programs that are measured beside conch, each in a process of its own: the measuring program starts itself again as one.
func peers() []*cobra.Command {
	return []*cobra.Command{serverPeer(), forwarderPeer()}
}

// serverPeer is minitriton with the flags of tritonserver that conch's process driver uses, so that conch starts it like any server.
func serverPeer() *cobra.Command {
	var repository, grpcPort, httpPort, metricsPort string
	cmd := &cobra.Command{
		Use: "minitriton", Short: "A server for measurements", Hidden: true, Args: cobra.NoArgs,
		FParseErrWhitelist: cobra.FParseErrWhitelist{UnknownFlags: true},
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := minitriton.New(minitriton.Options{Repository: repository})
			if err != nil {
				return err
			}
			l, err := minitriton.Listen("127.0.0.1:"+grpcPort, "127.0.0.1:"+httpPort, "127.0.0.1:"+metricsPort)
			if err != nil {
				return err
			}
			if err := s.Start(cmd.Context(), l); err != nil {
				return err
			}
			<-cmd.Context().Done()
			return s.Close()
		},
	}
	cmd.Flags().StringVar(&repository, "model-repository", "", "")
	cmd.Flags().StringVar(&grpcPort, "grpc-port", "8001", "")
	cmd.Flags().StringVar(&httpPort, "http-port", "8000", "")
	cmd.Flags().StringVar(&metricsPort, "metrics-port", "8002", "")
	return cmd
}

// forwarderPeer copies bytes between connections and knows no protocol: what a perfect proxy would cost on this machine. It reads the
// target's address, prints its own, and ends with its standard input.
func forwarderPeer() *cobra.Command {
	return &cobra.Command{
		Use: "forward TARGET", Short: "A plain TCP forwarder for measurements", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, end := context.WithCancel(cmd.Context())
			defer end()
			go func() {
				defer end()
				_, _ = io.Copy(io.Discard, os.Stdin) // its end is the end of the one who measures
			}()
			l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
			if err != nil {
				return err
			}
			fmt.Println(l.Addr())
			return forward(ctx, l, args[0])
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

// forwarder is a running forwarderPeer.
type forwarder struct {
	Address string

	cmd   *exec.Cmd
	stdin io.Closer
}

func startForwarder(ctx context.Context, program, target string) (*forwarder, error) {
	f := &forwarder{cmd: exec.CommandContext(ctx, program, "forward", target)}
	f.cmd.Stderr = os.Stderr
	stdin, err := f.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	f.stdin = stdin
	stdout, err := f.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := f.cmd.Start(); err != nil {
		return nil, fmt.Errorf("forwarder: %w", err)
	}
	if _, err := fmt.Fscanln(stdout, &f.Address); err != nil {
		return nil, errors.Join(fmt.Errorf("forwarder: %w", err), f.Close())
	}
	return f, nil
}

// Close ends the process.
func (f *forwarder) Close() error {
	err := f.stdin.Close()
	f.cmd.WaitDelay = 5 * time.Second
	return errors.Join(err, f.cmd.Wait())
}

// writeLauncher writes a program that starts as tritonserver would and is serverPeer.
func writeLauncher(directory, program string) (string, error) {
	path := filepath.Join(directory, "tritonserver")
	return path, os.WriteFile(path, fmt.Appendf(nil, "#!/bin/sh\nexec '%s' minitriton \"$@\"\n", program), 0o755)
}
