// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// ports of one server.
type ports struct{ grpc, http, metrics int }

func (p ports) endpoint() Endpoint {
	at := func(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
	return Endpoint{GRPC: at(p.grpc), HTTP: at(p.http), Metrics: at(p.metrics)}
}

// freePorts finds three ports that nobody listens on at the moment.
func freePorts() (ports, error) {
	var p ports
	for _, port := range []*int{&p.grpc, &p.http, &p.metrics} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return ports{}, fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close() // held only so that the three differ
		*port = l.Addr().(*net.TCPAddr).Port
	}
	return p, nil
}

// portAttempts is how often a start is tried when somebody else takes a port
// between our choice and the server's.
const portAttempts = 3

// life begins the lives of one partition's server, on the same ports if they
// are still free.
type life struct {
	driver *Processes
	spec   Spec
	log    *serverLog
	last   ports
}

func (l *life) begin(ctx context.Context) (server, error) {
	ctx, cancel := context.WithTimeout(ctx, l.driver.o.StartTimeout)
	defer cancel()
	var errs []error
	for range portAttempts {
		at := l.last
		if at == (ports{}) {
			var err error
			if at, err = freePorts(); err != nil {
				return nil, err
			}
		}
		s, err := l.start(ctx, at)
		if err == nil {
			l.last = at
			return s, nil
		}
		l.last = ports{}
		errs = append(errs, err)
		if ctx.Err() != nil || !errors.Is(err, errPortTaken) {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// errPortTaken: another process serves on a port that we chose.
var errPortTaken = errors.New("a port was taken by another process")

func (l *life) start(ctx context.Context, at ports) (server, error) {
	// The server appends a unique id at once: the last dash ends our part of the name.
	sharedMemory := fmt.Sprintf("%s-%d-", l.driver.owner, l.driver.lives.Add(1))
	output, input, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start tritonserver: %w", err)
	}
	cmd := exec.Command(l.driver.o.Server, l.driver.arguments(l.spec, at, sharedMemory)...)
	cmd.Env = l.driver.environment(l.spec)
	cmd.Stdout, cmd.Stderr = input, input
	cmd.SysProcAttr = ownGroup()
	err = l.driver.spawn.start(cmd)
	closing := input.Close()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start tritonserver %s: %w", l.driver.o.Server, err), closing, output.Close())
	}
	s := &processServer{cmd: cmd, output: output, at: at, sharedMemory: sharedMemory, log: l.log, stopTimeout: l.driver.o.StopTimeout, dead: make(chan struct{}), logged: make(chan struct{})}
	l.log.begin()
	go s.copyLog(l.driver.o.Logger.With("partition", l.spec.Partition.GetId()))
	go s.wait()
	conn, err := grpc.NewClient("passthrough:///"+at.endpoint().GRPC, append(dialOptions(), grpc.WithTransportCredentials(l.driver.o.Credentials))...)
	if err != nil {
		return nil, errors.Join(err, s.kill())
	}
	s.conn, s.client = conn, tritonpb.NewGRPCInferenceServiceClient(conn)
	if err := s.ready(ctx); err != nil {
		return nil, errors.Join(err, s.kill())
	}
	return s, nil
}

// dialOptions of connections that only ask and order.
func dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithNoProxy(),
		// A server is ready within a tenth of a second; gRPC would wait a whole one
		// before its second try.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 10 * time.Millisecond, Multiplier: 1.3, MaxDelay: 100 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}),
	}
}

// processServer is one life of a tritonserver.
type processServer struct {
	cmd          *exec.Cmd
	output       *os.File
	at           ports
	sharedMemory string
	log          *serverLog
	stopTimeout  time.Duration
	conn         *grpc.ClientConn
	client       tritonpb.GRPCInferenceServiceClient

	dead   chan struct{} // closed once the server itself has ended
	logged chan struct{} // closed once its output has ended
	reason string        // written before dead is closed
	once   sync.Once
	killed error
}

func (s *processServer) endpoint() Endpoint    { return s.at.endpoint() }
func (s *processServer) done() <-chan struct{} { return s.dead }
func (s *processServer) death() string         { return s.reason }

// live implements prober. A connection that is being made again is waited for:
// a server that refuses connections ends by itself, or hangs.
func (s *processServer) live(ctx context.Context) error {
	return answers(ctx, s.client, grpc.WaitForReady(true))
}

// wait collects the server's end.
func (s *processServer) wait() {
	err := s.cmd.Wait()
	select {
	case <-s.logged: // the last lines say why
	case <-time.After(100 * time.Millisecond): // its children keep the pipe open
	}
	s.reason = "tritonserver exited: " + s.cmd.ProcessState.String()
	if err != nil && s.cmd.ProcessState == nil {
		s.reason = "tritonserver exited: " + err.Error()
	}
	if last := s.log.errors(); last != "" {
		s.reason += "; it logged: " + last
	}
	close(s.dead)
}

// ready waits until the server answers, and makes sure that it is ours: a
// stranger on the port would answer too, until our own server gives up.
func (s *processServer) ready(ctx context.Context) error {
	ctx, cancel := whileAlive(ctx, s)
	defer cancel()
	for {
		r, err := s.client.ServerReady(ctx, &tritonpb.ServerReadyRequest{}, grpc.WaitForReady(true))
		if err == nil && r.GetReady() {
			break
		}
		if err != nil && ctx.Err() == nil && status.Code(err) != codes.Unavailable {
			return fmt.Errorf("%w: %s answers, and not as Triton does: %w", errPortTaken, s.at.endpoint().GRPC, err)
		}
		if !sleep(ctx, 5*time.Millisecond) {
			return s.notReady(ctx)
		}
	}
	for _, port := range []int{s.at.grpc, s.at.http, s.at.metrics} {
		for !listensIn(s.cmd.Process.Pid, port) {
			// The three doors open one after the other; a taken one ends the server
			// after about a second.
			if !sleep(ctx, 5*time.Millisecond) {
				return s.notReady(ctx)
			}
		}
	}
	return nil
}

func (s *processServer) notReady(ctx context.Context) error {
	select {
	case <-s.dead:
		if portsTaken(s.at) {
			return fmt.Errorf("%w: %s", errPortTaken, s.reason)
		}
		return errors.New(s.reason)
	default:
		return fmt.Errorf("tritonserver did not get ready in time: %w", context.Cause(ctx))
	}
}

// portsTaken reports that somebody listens on one of the ports.
func portsTaken(at ports) bool {
	for _, port := range []int{at.grpc, at.http, at.metrics} {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			return true
		}
		_ = l.Close() // it was opened to see whether that is possible
	}
	return false
}

// load goes over gRPC: over HTTP, Triton loads on the thread that serves
// inference. A repository that cannot be polled has its reason only in the log.
func (s *processServer) load(ctx context.Context, model string) error {
	s.log.mark(model)
	if _, err := s.client.RepositoryModelLoad(ctx, &tritonpb.RepositoryModelLoadRequest{ModelName: model}); err != nil {
		for range 20 { // the answer may overtake the line in the log
			if logged := s.log.since(model); logged != "" {
				return fmt.Errorf("%w; it logged: %s", err, logged)
			}
			if status.Code(err) != codes.Internal || !sleep(ctx, 5*time.Millisecond) {
				break
			}
		}
		return err
	}
	r, err := s.client.ModelReady(ctx, &tritonpb.ModelReadyRequest{Name: model})
	if err != nil {
		return err
	}
	if !r.GetReady() {
		return errors.New("the server reports it loaded and not ready")
	}
	return nil
}

// unload waits for the end of the unload: the call itself returns while
// requests are still running.
func (s *processServer) unload(ctx context.Context, model string) error {
	return unloaded(ctx, s.client, model)
}

// unloaded unloads a model and waits until it is gone.
func unloaded(ctx context.Context, client tritonpb.GRPCInferenceServiceClient, model string) error {
	if _, err := client.RepositoryModelUnload(ctx, &tritonpb.RepositoryModelUnloadRequest{ModelName: model}); err != nil {
		return err
	}
	for {
		index, err := client.RepositoryIndex(ctx, &tritonpb.RepositoryIndexRequest{})
		if err != nil {
			return err
		}
		gone := true
		for _, m := range index.GetModels() {
			if m.GetName() == model && m.GetState() != "" && m.GetState() != "UNAVAILABLE" {
				gone = false
			}
		}
		if gone {
			return nil
		}
		if !sleep(ctx, 20*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// shutdown sends SIGTERM and waits. Triton's own exit timeout is no bound.
func (s *processServer) shutdown(ctx context.Context) error {
	if err := s.conn.Close(); err != nil {
		return err
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	timer := time.NewTimer(s.stopTimeout)
	defer timer.Stop()
	select {
	case <-s.dead:
		return nil
	case <-timer.C:
		return fmt.Errorf("tritonserver did not end within %s of SIGTERM", s.stopTimeout)
	case <-ctx.Done():
		return fmt.Errorf("tritonserver had not ended: %w", ctx.Err())
	}
}

// kill ends the whole process group, python stubs included, and removes what
// shared memory they left.
func (s *processServer) kill() error {
	s.once.Do(func() {
		var errs []error
		if s.conn != nil {
			if err := s.conn.Close(); err != nil && status.Code(err) != codes.Canceled {
				errs = append(errs, err)
			}
		}
		errs = append(errs, killGroup(s.cmd.Process.Pid))
		<-s.dead
		select {
		case <-s.logged:
		case <-time.After(time.Second):
			// A child that left the group still holds the pipe.
			errs = append(errs, s.output.Close())
			<-s.logged
		}
		s.killed = errors.Join(append(errs, removeSharedMemory(s.sharedMemory))...)
	})
	return s.killed
}

// copyLog copies the server's output until it ends.
func (s *processServer) copyLog(log *slog.Logger) {
	defer close(s.logged)
	s.log.copy(s.output, func(line string) { log.Debug("tritonserver", "line", strings.TrimSpace(line)) })
	_ = s.output.Close() // read to its end, or closed by kill
}
