// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/conch-serving/conch/internal/minitriton"
	"github.com/conch-serving/conch/internal/triton"
)

// ServerOptions say which server to start.
type ServerOptions struct {
	// Server is the path of tritonserver, or empty for minitriton in this process.
	Server string
	// Repository is the model repository. Nothing of it is loaded: the server is in explicit control mode.
	Repository string
	// Flags are further flags of tritonserver, and Environment further variables, as NAME=value.
	Flags, Environment []string
}

// Server is one Triton without Conch in front of it.
type Server struct {
	// GRPC, HTTP and Metrics are its addresses, host:port.
	GRPC, HTTP, Metrics string

	dir, repository string
	mini            *minitriton.Server
	child           *child
	ports           *ports
}

// StartServer starts a server and returns once it is live. Close it.
func StartServer(ctx context.Context, o ServerOptions) (*Server, error) {
	dir, err := os.MkdirTemp("", "conch-rig-")
	if err != nil {
		return nil, fmt.Errorf("rig: %w", err)
	}
	s := &Server{dir: dir, repository: o.Repository}
	begin := s.startReal
	if o.Server == "" {
		begin = s.startMini
	}
	if err := begin(ctx, o); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Server) startMini(ctx context.Context, o ServerOptions) error {
	mini, err := minitriton.New(minitriton.Options{Repository: o.Repository})
	if err != nil {
		return fmt.Errorf("rig: %w", err)
	}
	listeners, err := minitriton.Loopback()
	if err != nil {
		return fmt.Errorf("rig: %w", err)
	}
	if err := mini.Start(context.WithoutCancel(ctx), listeners); err != nil {
		return fmt.Errorf("rig: %w", err)
	}
	s.mini = mini
	end := mini.Endpoint()
	s.GRPC, s.HTTP, s.Metrics = end.GRPC, end.HTTP, end.Metrics
	return nil
}

func (s *Server) startReal(ctx context.Context, o ServerOptions) error {
	free, err := freePorts(3)
	if err != nil {
		return err
	}
	s.ports = free
	ports := free.numbers
	arguments := append([]string{
		"--model-repository=" + o.Repository, "--model-control-mode=explicit", "--disable-auto-complete-config", "--strict-readiness=false",
		"--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1",
		fmt.Sprintf("--http-port=%d", ports[0]), fmt.Sprintf("--grpc-port=%d", ports[1]), fmt.Sprintf("--metrics-port=%d", ports[2]),
		"--exit-timeout-secs=2", "--backend-config=python,shm-region-prefix-name=" + filepath.Base(s.dir),
	}, o.Flags...)
	if s.child, err = start("tritonserver", filepath.Join(s.dir, "tritonserver.log"), o.Server, arguments, o.Environment); err != nil {
		return err
	}
	address := func(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }
	s.HTTP, s.GRPC, s.Metrics = address(ports[0]), address(ports[1]), address(ports[2])
	client, err := triton.Dial(s.GRPC)
	if err != nil {
		return fmt.Errorf("rig: %w", err)
	}
	defer client.Close() //nolint:errcheck // it has done its work
	return s.child.await(ctx, func(ctx context.Context) error {
		live, err := client.Live(ctx)
		if err == nil && !live {
			err = errors.New("not live")
		}
		if err == nil {
			_, err = readUsage(ctx, s.Metrics) // the door that a tritonserver opens last
		}
		return err
	})
}

// Pid is the process id of a tritonserver.
func (s *Server) Pid() int { return s.child.cmd.Process.Pid }

// Ended says whether a tritonserver's process has ended. It waits a second for it: a caller sees the connection close a moment before.
// A minitriton is no process of its own.
func (s *Server) Ended() bool {
	if s.child == nil {
		return false
	}
	select {
	case <-s.child.done:
		return true
	case <-time.After(time.Second):
		return false
	}
}

// LogTail is the end of a tritonserver's output.
func (s *Server) LogTail() string {
	if s.child == nil {
		return "minitriton has no log"
	}
	return s.child.tail()
}

// Close ends the server and removes its files and its shared memory.
func (s *Server) Close() error {
	var errs []error
	if s.mini != nil {
		errs = append(errs, s.mini.Close())
	}
	if s.child != nil {
		// Its own exit timeout bounds nothing while a stub or a connection hangs, and how it ends is not what is tested.
		_ = s.child.stopGroup(5 * time.Second)
		// A server that ran into its exit timeout leaves the memory of its python models.
		left, err := filepath.Glob(filepath.Join("/dev/shm", filepath.Base(s.dir)+"*"))
		errs = append(errs, err)
		for _, file := range left {
			errs = append(errs, os.Remove(file))
		}
	}
	if s.ports != nil {
		s.ports.release()
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}
