// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/apply/driver/shim"
)

// processServer is a tritonserver under a shim.
type processServer struct {
	calls
	*shim.Handle
	driver *Processes
	spec   Spec
	at     Endpoint
}

func (s *processServer) Spec() Spec         { return s.spec }
func (s *processServer) Endpoint() Endpoint { return s.at }

// ready waits until the server answers at its three doors, which open one after
// the other. Those of requests are sockets in a directory that is conch's alone;
// a stranger could only be on the port of the metrics.
func (s *processServer) ready(ctx context.Context, metricsPort int) error {
	within, cancel := whileAlive(ctx, s)
	defer cancel()
	for {
		r, err := s.client.Stub.ServerReady(within, &tritonpb.ServerReadyRequest{}, grpc.WaitForReady(true))
		if err == nil && r.GetReady() {
			break
		}
		if err == nil {
			err = errors.New("it says that it is not ready")
		}
		if !sleep(within, 5*time.Millisecond) {
			return s.notReady(within, err)
		}
	}
	for !s.opened() || !listensIn(s.ServerPID(), metricsPort) {
		if !sleep(within, 5*time.Millisecond) {
			return s.notReady(within, errors.New("its port of HTTP or of metrics is not open"))
		}
	}
	return nil
}

// opened reports that the HTTP door is open.
func (s *processServer) opened() bool {
	conn, err := net.Dial("unix", strings.TrimPrefix(s.at.HTTP, "unix:"))
	if err == nil {
		_ = conn.Close() // nothing was sent
	}
	return err == nil
}

// notReady says why the wait for a server ended, and what the server lacked when it was last looked at.
func (s *processServer) notReady(ctx context.Context, last error) error {
	select {
	case <-s.Done():
		return errors.New(s.Death())
	default:
		return fmt.Errorf("tritonserver did not get ready in time: %w; at the last look: %w", context.Cause(ctx), last)
	}
}

// Load implements Server. A repository that cannot be polled has its reason only
// in the log.
func (s *processServer) Load(ctx context.Context, model string) error {
	mark := size(s.Log())
	watched, release := s.whileModelLives(ctx, model)
	defer release()
	err := loadIn(watched, s, model, func(ctx context.Context) error {
		err := s.load(ctx, model)
		for tries := 0; err != nil && status.Code(err) == codes.Internal && tries < 20; tries++ {
			// The answer may overtake the line in the log.
			if logged := errorsAbout(s.Log(), mark, model); logged != "" {
				return fmt.Errorf("%w; it logged: %s", err, logged)
			}
			if !sleep(ctx, 5*time.Millisecond) {
				break
			}
		}
		return err
	})
	if ctx.Err() == nil && errors.Is(context.Cause(watched), errModelDied) {
		return &LoadError{Model: model, Hung: true, Died: true, Err: errModelDied}
	}
	return err
}

func size(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// errorsAbout are the error lines that name a model in a log from a mark on.
func errorsAbout(path string, mark int64, model string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	if info.Size() < mark { // a new file since
		mark = 0
	}
	text := make([]byte, min(info.Size()-mark, 256<<10))
	n, _ := f.ReadAt(text, mark)
	var found []string
	for line := range strings.Lines(string(text[:n])) {
		if shim.IsError(line) && strings.Contains(line, model) {
			found = append(found, shim.Message(strings.TrimSpace(line)))
		}
	}
	return strings.Join(found[max(0, len(found)-3):], "; ")
}

// Unload implements Server.
func (s *processServer) Unload(ctx context.Context, model string) error {
	within, release := whileAlive(ctx, s)
	defer release()
	if err := s.unload(within, model); err != nil {
		return fmt.Errorf("unload %q: %w", model, err)
	}
	return nil
}

// Stop implements Server: every model is unloaded, so that accepted requests are
// answered, then the server is asked to end (SIGTERM; Triton's own exit timeout is
// no bound), then it is killed.
func (s *processServer) Stop(ctx context.Context) error {
	unclean := s.release(ctx)
	if unclean == nil {
		if err := s.Terminate(); err != nil {
			s.driver.o.Logger.Debug("SIGTERM did not reach tritonserver", "error", err) // it is killed below, if it runs
		}
		timer := time.NewTimer(s.driver.o.StopTimeout)
		defer timer.Stop()
		select {
		case <-s.Done():
			return nil
		case <-timer.C:
			unclean = fmt.Errorf("tritonserver did not end within %s of SIGTERM", s.driver.o.StopTimeout)
		case <-ctx.Done():
			unclean = fmt.Errorf("tritonserver had not ended: %w", ctx.Err())
		}
	}
	select {
	case <-s.Done():
		return fmt.Errorf("died while it was stopped: %s", s.Death())
	default:
	}
	return errors.Join(fmt.Errorf("killed, requests may have been cut off: %w", unclean), s.Kill(context.WithoutCancel(ctx)))
}

// release unloads everything. The unload of a model whose python process is dead
// never ends, and so does a load that hangs: such a server ignores SIGTERM.
func (s *processServer) release(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, s.driver.o.DrainTimeout)
	defer cancel()
	return (&Remote{calls: s.calls, life: s, at: s.at}).Release(bounded)
}

// Leave implements Server.
func (s *processServer) Leave() error { return s.Close() }
