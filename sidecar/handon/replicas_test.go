// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package handon_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/handon"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// owner is a replica that executes: Triton's two protocols, in which an answer says who gave it.
type owner struct {
	tritonpb.UnimplementedGRPCInferenceServiceServer
	handon.Owner
	grpc *grpc.Server
	http *http.Server
	// hold: requests are executed only once it is closed; nil: at once.
	hold  atomic.Pointer[chan struct{}]
	began atomic.Int64
	// breaks is called in place of executing; nil: requests are executed.
	breaks func()
	// marks are the marks of the requests that came. refusal: why none is accepted; empty: they are.
	mu      sync.Mutex
	marks   []string
	refusal string
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	return l
}

// breakable is a listener whose connections can be broken while it goes on.
type breakable struct {
	net.Listener
	mu   sync.Mutex
	open []net.Conn
}

func (b *breakable) Accept() (net.Conn, error) {
	c, err := b.Listener.Accept()
	if err == nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.open = append(b.open, c)
	}
	return c, err
}

func (b *breakable) breakAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.open {
		_ = c.Close()
	}
	b.open = nil
}

// newOwner starts an owner on two listeners.
func newOwner(t *testing.T, name string, forGRPC, forHTTP net.Listener) *owner {
	t.Helper()
	o := &owner{Owner: handon.Owner{Name: name, GRPC: forGRPC.Addr().String(), HTTP: forHTTP.Addr().String()}, grpc: grpc.NewServer()}
	tritonpb.RegisterGRPCInferenceServiceServer(o.grpc, o)
	o.http = &http.Server{Handler: http.HandlerFunc(o.serveHTTP)} //nolint:gosec // a test
	var serving sync.WaitGroup
	serving.Go(func() { _ = o.grpc.Serve(forGRPC) })
	serving.Go(func() { _ = o.http.Serve(forHTTP) })
	t.Cleanup(func() { o.kill(); serving.Wait() })
	return o
}

// kill ends it as a crash does: connections break.
func (o *owner) kill() {
	if h := o.hold.Swap(nil); h != nil {
		defer close(*h)
	}
	stopped := make(chan struct{})
	go func() { defer close(stopped); o.grpc.Stop() }()
	select {
	case <-stopped:
	case <-time.After(50 * time.Millisecond): // handlers hold
	}
	_ = o.http.Close() // a process ends all its connections at once: nobody finds its gRPC alive once its HTTP broke
}

// refuses has it refuse what comes from now on, with a reason; empty: it accepts requests.
func (o *owner) refuses(reason string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refusal = reason
}

// came is how many requests came.
func (o *owner) came() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.marks)
}

func (o *owner) execute(ctx context.Context, mark string) error {
	o.mu.Lock()
	o.marks = append(o.marks, mark)
	refusal := o.refusal
	if refusal == "" {
		o.began.Add(1)
	}
	o.mu.Unlock()
	if refusal != "" {
		return status.Error(codes.Unavailable, refusal)
	}
	if o.breaks != nil {
		o.breaks()
		<-ctx.Done()
		return ctx.Err()
	}
	if h := o.hold.Load(); h != nil {
		select {
		case <-*h:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func markOf(ctx context.Context) string {
	md, _ := metadata.FromIncomingContext(ctx)
	return strings.Join(md.Get("conch-handed-on"), ",")
}

func (o *owner) ServerLive(context.Context, *tritonpb.ServerLiveRequest) (*tritonpb.ServerLiveResponse, error) {
	return &tritonpb.ServerLiveResponse{Live: true}, nil
}

func (o *owner) ModelInfer(ctx context.Context, r *tritonpb.ModelInferRequest) (*tritonpb.ModelInferResponse, error) {
	if r.GetModelName() == "absent" {
		return nil, status.Error(codes.NotFound, "Request for unknown model: 'absent' is not found")
	}
	if err := o.execute(ctx, markOf(ctx)); err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok && r.GetModelName() == "deadline" {
		return &tritonpb.ModelInferResponse{ModelName: time.Until(deadline).Round(time.Minute).String()}, nil
	}
	_ = grpc.SetHeader(ctx, metadata.Pairs("executed-by", o.Name))
	return &tritonpb.ModelInferResponse{ModelName: o.Name, Id: r.GetId()}, nil
}

func (o *owner) ModelStreamInfer(s grpc.BidiStreamingServer[tritonpb.ModelInferRequest, tritonpb.ModelStreamInferResponse]) error {
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := o.execute(s.Context(), markOf(s.Context())); err != nil {
			return err
		}
		if err := s.Send(&tritonpb.ModelStreamInferResponse{InferResponse: &tritonpb.ModelInferResponse{ModelName: o.Name, Id: r.GetId()}}); err != nil {
			return err
		}
	}
}

func (o *owner) serveHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/v2/health/") {
		return
	}
	_, _ = io.Copy(io.Discard, r.Body)
	if err := o.execute(r.Context(), r.Header.Get("Conch-Handed-On")); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": status.Convert(err).Message()})
		return
	}
	w.Header().Set("Executed-By", o.Name)
	_, _ = fmt.Fprintf(w, "%s %s", o.Name, r.URL.RequestURI())
}

// replica is a front that hands on, and a client of it.
type replica struct {
	*handon.Front
	t      *testing.T
	client tritonpb.GRPCInferenceServiceClient
	web    *http.Client
	url    string
}

func newReplica(t *testing.T, name string, change ...func(*handon.Options)) *replica {
	t.Helper()
	o := handon.Options{
		Name: name, GRPC: "127.0.0.1:0", HTTP: "127.0.0.1:0", Metrics: "127.0.0.1:0", Requests: 1000, Bytes: 1 << 30, Connections: 1000, Stall: time.Minute, MessageBytes: 1 << 20,
		Patience: time.Minute, Logger: slog.New(slog.DiscardHandler),
	}
	for _, c := range change {
		c(&o)
	}
	f, err := handon.New(o)
	require.NoError(t, err)
	conn, err := grpc.NewClient(f.Address("grpc").String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	r := &replica{Front: f, t: t, client: tritonpb.NewGRPCInferenceServiceClient(conn), web: &http.Client{Transport: &http.Transport{}}, url: "http://" + f.Address("http").String()}
	t.Cleanup(func() {
		require.NoError(t, conn.Close())
		r.web.CloseIdleConnections()
		require.NoError(t, f.Close(30*time.Second))
	})
	return r
}

// self is this replica as others know it.
func (r *replica) self(name string) handon.Owner {
	return handon.Owner{Name: name, GRPC: r.Address("grpc").String(), HTTP: r.Address("http").String()}
}

// infer sends a request by gRPC, and returns who executed it.
func (r *replica) infer(ctx context.Context, id string) (string, error) {
	a, err := r.client.ModelInfer(ctx, &tritonpb.ModelInferRequest{ModelName: "m", Id: id})
	if err == nil && a.GetId() != id {
		err = fmt.Errorf("the answer to %s is that to %s", id, a.GetId())
	}
	return a.GetModelName(), err
}

// post sends a request by HTTP, with headers as names and values, and returns the answer's body.
func (r *replica) post(ctx context.Context, path, body string, header ...string) (string, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+path, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	for pair := range slices.Chunk(header, 2) {
		if pair[1] != "" {
			q.Header.Set(pair[0], pair[1])
		}
	}
	a, err := r.web.Do(q)
	if err != nil {
		return "", err
	}
	defer func() { _ = a.Body.Close() }()
	text, err := io.ReadAll(a.Body)
	if err == nil && a.StatusCode != http.StatusOK {
		err = fmt.Errorf("HTTP %d: %s", a.StatusCode, text)
	}
	return string(text), err
}

// load sends requests by both protocols until end is called, which fails the test if one was lost, and says who has answered how many. So far is how many an
// owner has answered already.
func (r *replica) load() (end func() (by map[string]int), soFar func(who string) int64) {
	var mu sync.Mutex
	by := map[string]int{}
	var errs []error
	done := make(chan struct{})
	var all sync.WaitGroup
	send := func(n int) (string, error) {
		if n%2 == 0 {
			return r.infer(r.t.Context(), fmt.Sprint(n))
		}
		text, err := r.post(r.t.Context(), "/v2/models/m/infer", "{}")
		who, _, _ := strings.Cut(text, " ")
		return who, err
	}
	for range 4 {
		all.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				who, err := send(n)
				mu.Lock()
				by[who]++
				if err != nil {
					errs = append(errs, err)
				}
				mu.Unlock()
			}
		})
	}
	end = func() map[string]int {
		close(done)
		all.Wait()
		require.NoError(r.t, errors.Join(errs...))
		return by
	}
	return end, func(who string) int64 {
		mu.Lock()
		defer mu.Unlock()
		return int64(by[who])
	}
}

// A call that has no request is answered as the owner answers it.
func TestACallWithoutARequest(t *testing.T) {
	r := newReplica(t, "b")
	conn, err := grpc.NewClient(r.Address("grpc").String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/inference.GRPCInferenceService/ModelInfer")
	require.NoError(t, err)
	require.NoError(t, s.CloseSend())
	require.Equal(t, status.Error(codes.Internal, "the call ended without a request").Error(), s.RecvMsg(&tritonpb.ModelInferResponse{}).Error())
}
