// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/internal/zoo"
)

// quick is one emulated model that answers within a few milliseconds.
func quick() rig.Models {
	return rig.Copies(zoo.Profile{Model: "quick", GPUType: zoo.A100, Alpha: time.Millisecond / 2, Beta: time.Millisecond, SLO: time.Second}, 1, 1, 16)
}

const quickModel = "quick-0"

// embedded runs conch with emulated GPUs and minitriton inside it.
func embedded(t *testing.T, o rig.ConchOptions) *rig.Conch {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	o.Bin, o.Models, o.GPUs = setting(t, "CONCH_BIN"), quick(), 1
	c, err := rig.StartConch(ctx, o)
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of conch's log:\n%s", c.LogTail())
		}
		require.NoError(t, c.Close())
	})
	return c
}

// traffic is load of every kind that a client may make, in which nothing is
// tried twice beyond what gRPC's own clients do.
type traffic struct {
	t    *testing.T
	stop context.CancelFunc
	done sync.WaitGroup

	mu     sync.Mutex
	counts map[string]*atomic.Int64
	failed []error
}

func (l *traffic) worker(ctx context.Context, kind string, call func(sequence int) error) {
	n := l.counts[kind]
	l.done.Go(func() {
		for sequence := 1; ctx.Err() == nil; sequence++ {
			if err := call(sequence); err != nil {
				l.mu.Lock()
				l.failed = append(l.failed, fmt.Errorf("%s: %w", kind, err))
				l.mu.Unlock()
				return
			}
			n.Add(1)
			time.Sleep(2 * time.Millisecond) // a caller that does something else, too
		}
	})
}

func startTraffic(t *testing.T, grpcAddress, httpAddress string) *traffic {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &traffic{t: t, stop: cancel, counts: map[string]*atomic.Int64{}}
	for _, kind := range []string{"unary", "stream", "http", "http, a connection each"} {
		l.counts[kind] = new(atomic.Int64)
	}
	for range 3 {
		conn, err := grpc.NewClient(grpcAddress, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry())
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, conn.Close()) })
		stub := tritonpb.NewGRPCInferenceServiceClient(conn)
		for range 2 {
			l.worker(ctx, "unary", func(sequence int) error { return unaryCall(stub, sequence) })
		}
		l.worker(ctx, "stream", func(sequence int) error { return streamCall(stub, sequence) })
		l.worker(ctx, "http", httpCaller(t, httpAddress, false))
		l.worker(ctx, "http, a connection each", httpCaller(t, httpAddress, true))
	}
	return l
}

// end stops the callers and requires that nothing failed.
func (l *traffic) end() {
	l.t.Helper()
	l.stop()
	l.done.Wait()
	require.Empty(l.t, l.failed, "not one request fails")
}

// flows waits until every kind of call was answered again a few times.
func (l *traffic) flows() {
	l.t.Helper()
	before := map[string]int64{}
	for kind, n := range l.counts {
		before[kind] = n.Load()
	}
	require.Eventually(l.t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for kind, n := range l.counts {
			if n.Load() < before[kind]+10 && len(l.failed) == 0 {
				return false
			}
		}
		return true
	}, 30*time.Second, time.Millisecond)
	l.mu.Lock()
	defer l.mu.Unlock()
	require.Empty(l.t, l.failed)
}

func unaryCall(stub tritonpb.GRPCInferenceServiceClient, sequence int) error {
	value := float32(sequence % 1000)
	r, err := stub.ModelInfer(context.Background(), tensor(quickModel, value))
	if err == nil && firstOutput(r) != 2*value+1 {
		err = fmt.Errorf("%v is answered with %v", value, firstOutput(r))
	}
	return err
}

func streamCall(stub tritonpb.GRPCInferenceServiceClient, sequence int) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := stub.ModelStreamInfer(ctx)
	if err != nil {
		return err
	}
	for i := range 4 {
		if err := stream.Send(tensor(quickModel, float32(sequence%1000+i))); err != nil {
			_, cause := stream.Recv()
			return fmt.Errorf("send %d: %w: %w", i, err, cause)
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	for i := range 4 {
		r, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("receive %d: %w", i, err)
		}
		if r.ErrorMessage != "" || firstOutput(r.InferResponse) != 2*float32(sequence%1000+i)+1 {
			return fmt.Errorf("answer %d: %v", i, r)
		}
	}
	if _, err := stream.Recv(); err != io.EOF { //nolint:errorlint // it is never wrapped
		return fmt.Errorf("the stream ends with %w", err)
	}
	return nil
}

// httpCaller posts JSON and tries nothing again: its bodies cannot be rewound.
func httpCaller(t *testing.T, address string, alone bool) func(int) error {
	transport := &http.Transport{DisableKeepAlives: alone, MaxConnsPerHost: 1, DialContext: (&net.Dialer{}).DialContext}
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport}
	return func(sequence int) error {
		value := float32(sequence % 1000)
		data := bytes.Repeat([]byte(strconv.Itoa(sequence%1000)+","), 16)
		body := fmt.Appendf(nil, `{"inputs":[{"name":"INPUT","datatype":"FP32","shape":[1,16],"data":[%s]}]}`, data[:len(data)-1])
		request, err := http.NewRequest(http.MethodPost, "http://"+address+"/v2/models/"+quickModel+"/infer", io.MultiReader(bytes.NewReader(body)))
		if err != nil {
			return err
		}
		request.ContentLength = int64(len(body))
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		var answer struct {
			Outputs []struct{ Data []float32 }
			Error   string
		}
		if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, response.Body); err != nil {
			return err
		}
		if response.StatusCode != http.StatusOK || answer.Outputs[0].Data[0] != 2*value+1 {
			return fmt.Errorf("%v is answered with %s: %+v", value, response.Status, answer)
		}
		return nil
	}
}

// portsOf are the gRPC and HTTP ports of a conch, for another one.
func portsOf(t *testing.T, c *rig.Conch) (ports [3]int) {
	t.Helper()
	for i, address := range []string{c.GRPC, c.HTTP} {
		_, port, err := net.SplitHostPort(address)
		require.NoError(t, err)
		ports[i], err = strconv.Atoi(port)
		require.NoError(t, err)
	}
	return ports
}

// One conch after another takes over the same addresses, and callers of every
// kind notice nothing.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	shared := map[string]any{"reusePort": true}
	running := embedded(t, rig.ConchOptions{Listen: shared})
	ports := portsOf(t, running)
	load := startTraffic(t, running.GRPC, running.HTTP)
	load.flows()
	for range 5 {
		next := embedded(t, rig.ConchOptions{Listen: shared, Ports: ports})
		require.NoError(t, running.Close(), "the old one ends by itself")
		select {
		case <-running.Exited():
			require.NoError(t, running.ExitError())
		default:
			require.FailNow(t, "the old conch still runs")
		}
		load.flows()
		running = next
	}
	load.end()
}

// Connections that the kernel has made and the old conch has not accepted when it closes its listeners are served, too: it gets the processor
// in short turns while they come, so that some always wait.
func TestRestartLosesNoConnectionThatWaits(t *testing.T) {
	t.Parallel()
	shared := map[string]any{"reusePort": true}
	old := embedded(t, rig.ConchOptions{Listen: shared})
	next := embedded(t, rig.ConchOptions{Listen: shared, Ports: portsOf(t, old)})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var callers sync.WaitGroup
	var served atomic.Int64
	for range 64 {
		callers.Go(func() {
			for ctx.Err() == nil {
				if err := alive(old.HTTP); err != nil {
					t.Errorf("after %d connections: %v", served.Load(), err)
					return
				}
				served.Add(1)
			}
		})
	}
	require.Eventually(t, func() bool { return served.Load() > 200 || t.Failed() }, 30*time.Second, time.Millisecond)
	require.NoError(t, syscall.Kill(old.Pid(), syscall.SIGTERM))
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		for _, s := range []syscall.Signal{syscall.SIGSTOP, syscall.SIGCONT} {
			if syscall.Kill(old.Pid(), s) != nil {
				break // it has ended
			}
			time.Sleep(3 * time.Millisecond)
		}
	}
	require.NoError(t, old.Close(), "the old one ends by itself")
	cancel()
	callers.Wait()
	require.NoError(t, httpCaller(t, next.HTTP, true)(1))
}

// alive asks whether a server is live, on a connection of its own.
func alive(address string) error {
	c, err := net.DialTimeout("tcp", address, time.Minute)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, "GET /v2/health/live HTTP/1.1\r\nHost: c\r\nConnection: close\r\n\r\n"); err != nil {
		return err
	}
	response, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// A second conch needs leave to share an address.
func TestAddressesAreNotSharedByChance(t *testing.T) {
	t.Parallel()
	running := embedded(t, rig.ConchOptions{})
	var ports [3]int
	_, port, err := net.SplitHostPort(running.GRPC)
	require.NoError(t, err)
	ports[0], err = strconv.Atoi(port)
	require.NoError(t, err)
	_, err = rig.StartConch(t.Context(), rig.ConchOptions{
		Bin: setting(t, "CONCH_BIN"), Models: quick(), GPUs: 1, Ports: ports, Listen: map[string]any{"reusePort": true},
	})
	require.ErrorContains(t, err, "listen.grpc: bind")
}
