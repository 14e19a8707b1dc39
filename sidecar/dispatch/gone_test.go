// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"maps"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/conch-serving/conch/internal/hostile"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/aggregate"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/gate"
	front "github.com/conch-serving/conch/sidecar/dispatch/ingress/grpc"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// fronts puts both fronts before a dispatcher.
func fronts(t *testing.T, d *dispatch.Dispatcher, table *router.Table) (grpcAddress, httpAddress string) {
	r := &rig{d: d, table: table}
	agg := aggregate.New(aggregate.Options{Partitions: r, Models: r})
	s := front.New(front.Options{Inferer: d, Aggregator: agg, Refused: d.Refused})
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	bounds := gate.New(gate.Options{Requests: 1 << 20, Bytes: 1 << 30, Connections: 1 << 10, Stall: time.Minute})
	accepts, done := &accepting{Listener: bounds.Listener(l, true), begun: make(chan struct{})}, make(chan struct{})
	go func() { defer close(done); _ = s.Serve(accepts) }()
	t.Cleanup(func() { <-accepts.begun; s.Stop(); <-done; bounds.Close() })
	return l.Addr().String(), serveHTTP(t, d, agg)
}

// accepting is a listener that says when its server has begun to accept: before that, Stop and Serve of a grpc.Server race.
type accepting struct {
	net.Listener
	once  sync.Once
	begun chan struct{} // is closed then
}

func (a *accepting) Accept() (net.Conn, error) {
	a.once.Do(func() { close(a.begun) })
	return a.Listener.Accept()
}

// TestWhyCallersAreGone: a deadline, a cancel and a lost connection have different
// reasons, over both protocols, and none of the requests runs.
func TestWhyCallersAreGone(t *testing.T) {
	p := newTriton(t)
	p.hold, p.started = make(chan struct{}), make(chan string, 10)
	routes := table(1, nil, p)
	d, seen := newDispatcher(t, dispatch.Options{}, routes)
	grpcAddress, httpAddress := fronts(t, d, routes)
	conn := dialTo(t, grpcAddress)
	client := tritonpb.NewGRPCInferenceServiceClient(conn)
	first := make(chan error, 1)
	go func() {
		_, err := client.ModelInfer(t.Context(), message("first", 1, 1))
		first <- err
	}()
	<-p.started
	waiting := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool { c, _ := d.Counts("m"); return c.Waiting == n }, 30*time.Second, time.Millisecond)
	}
	reasons := func() map[string]int {
		seen.mu.Lock()
		defer seen.mu.Unlock()
		n := map[string]int{}
		for _, o := range seen.outcomes {
			if o.Result == dispatch.Cancelled {
				n[o.Reason]++
			}
		}
		return n
	}
	body := `{"inputs":[{"name":"IN","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}`
	web, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", httpAddress)
	require.NoError(t, err)
	_, err = web.Write(hostile.Post("/v2/models/m/infer", "", body))
	require.NoError(t, err)
	lost, err := grpc.NewClient(grpcAddress, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	results := make(chan error, 3)
	send := func(ctx context.Context, client tritonpb.GRPCInferenceServiceClient) {
		go func() {
			_, err := client.ModelInfer(ctx, message("gone", 1, 2))
			results <- err
		}()
	}
	cancelled, cancel := context.WithCancel(t.Context())
	defer cancel()
	send(cancelled, client)
	send(t.Context(), tritonpb.NewGRPCInferenceServiceClient(lost))
	waiting(3)
	cancel()
	requireCode(t, codes.Canceled, <-results)
	require.NoError(t, web.Close())
	require.NoError(t, lost.Close())
	require.Error(t, <-results)
	waiting(0)
	require.Eventually(t, func() bool {
		return maps.Equal(reasons(), map[string]int{dispatch.GoneCancel: 1, dispatch.GoneDisconnect: 2})
	}, 30*time.Second, time.Millisecond)
	// On a busy machine a short deadline passes before the request has reached Conch, or looks like a cancel.
	for patience := 20 * time.Millisecond; reasons()[dispatch.GoneDeadline] == 0; patience *= 2 {
		require.Less(t, patience, time.Minute, "no deadline is seen")
		short, end := context.WithTimeout(t.Context(), patience)
		send(short, client)
		requireCode(t, codes.DeadlineExceeded, <-results)
		end()
	}
	require.Equal(t, 2, reasons()[dispatch.GoneDisconnect])
	close(p.hold)
	require.NoError(t, <-first)
	require.Len(t, p.executions(), 1, "nobody who had gone was served")
}
