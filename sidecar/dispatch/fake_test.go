// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// triton is a partition for tests: a gRPC server whose models answer OUT = IN.
type triton struct {
	tritonpb.UnimplementedGRPCInferenceServiceServer
	t       *testing.T
	address string
	server  *grpc.Server

	more func(*grpc.Server) // registers further services

	mu      sync.Mutex
	takes   time.Duration
	hold    chan struct{} // executions wait for it to close
	passes  string        // but not that of the request with this id
	started chan string   // ids of requests that have begun, if set
	// cancelled gets the ids of requests whose callers cancelled while they were held, if set.
	cancelled chan string
	refuse    func(*tritonpb.ModelInferRequest) error
	// asked is called for every request, if set.
	asked func(context.Context, *tritonpb.ModelInferRequest)
	short bool // answers lack a row
	// spoils changes an answer, if set.
	spoils func(*tritonpb.ModelInferRequest, *tritonpb.ModelInferResponse)
	// loses reports for which requests it loses the error: it answers with an empty message.
	loses   func(*tritonpb.ModelInferRequest) bool
	batches []int
	seen    []string // ids
	loading bool
	// unloaded are models that it does not have.
	unloaded []string
	streams  atomic.Int32 // that were opened
}

func newTriton(t *testing.T) *triton {
	p := &triton{t: t}
	p.start("127.0.0.1:0")
	t.Cleanup(p.kill)
	return p
}

// inBubble makes servers for a test on virtual time (synctest), with which a dispatcher of these options has connections in memory.
func inBubble(t *testing.T, n int) (parts []*triton, o dispatch.Options) {
	near := map[string]*bufconn.Listener{}
	for i := range n {
		p := &triton{t: t, address: fmt.Sprint("127.0.0.1:", i+1), server: grpc.NewServer()}
		tritonpb.RegisterGRPCInferenceServiceServer(p.server, p)
		l := bufconn.Listen(1 << 20)
		near[p.address] = l
		go func() { _ = p.server.Serve(l) }()
		t.Cleanup(p.kill)
		parts = append(parts, p)
	}
	dial := grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return near[address].DialContext(ctx) })
	return parts, dispatch.Options{Clock: clock.Timers(), Forward: forward.Options{DialOptions: []grpc.DialOption{dial}}}
}

// listen listens at an address, which may just have been given up.
func (p *triton) listen(address string) (l net.Listener) {
	require.Eventually(p.t, func() (ok bool) {
		var err error
		l, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
		return err == nil
	}, 30*time.Second, 10*time.Millisecond)
	return l
}

func (p *triton) start(address string) {
	l := p.listen(address)
	p.address = l.Addr().String()
	p.server = grpc.NewServer()
	tritonpb.RegisterGRPCInferenceServiceServer(p.server, p)
	if p.more != nil {
		p.more(p.server)
	}
	server := p.server
	go func() { _ = server.Serve(l) }()
}

// kill closes every connection at once, as SIGKILL does.
func (p *triton) kill() { p.server.Stop() }

func (p *triton) restart() { p.start(p.address) }

// stopAnd starts the server again with further services.
func (p *triton) stopAnd(more func(*grpc.Server)) {
	p.kill()
	p.more = more
	p.restart()
}

func (p *triton) set(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
}

func (p *triton) executions() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]int(nil), p.batches...)
}

func (p *triton) ServerLive(context.Context, *tritonpb.ServerLiveRequest) (*tritonpb.ServerLiveResponse, error) {
	return &tritonpb.ServerLiveResponse{Live: true}, nil
}

func (p *triton) ModelReady(_ context.Context, r *tritonpb.ModelReadyRequest) (*tritonpb.ModelReadyResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &tritonpb.ModelReadyResponse{Ready: !p.loading && !slices.Contains(p.unloaded, r.Name)}, nil
}

func (p *triton) ModelInfer(ctx context.Context, r *tritonpb.ModelInferRequest) (*tritonpb.ModelInferResponse, error) {
	p.mu.Lock()
	takes, hold, refuse, short, spoils, loses, started, cancelled, asked := p.takes, p.hold, p.refuse, p.short, p.spoils, p.loses, p.started, p.cancelled, p.asked
	if p.passes != "" && p.passes == r.Id {
		hold = nil
	}
	rows := 0
	if len(r.Inputs) > 0 && len(r.Inputs[0].Shape) > 0 {
		rows = int(r.Inputs[0].Shape[0])
	}
	p.batches = append(p.batches, rows)
	p.seen = append(p.seen, r.Id)
	p.mu.Unlock()
	if asked != nil {
		asked(ctx, r)
	}
	if started != nil {
		started <- r.Id
	}
	if takes > 0 {
		time.Sleep(takes)
	}
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			if cancelled != nil {
				cancelled <- r.Id
			}
			return nil, ctx.Err()
		}
	}
	if refuse != nil {
		if err := refuse(r); err != nil {
			return nil, err
		}
	}
	if loses != nil && loses(r) {
		return &tritonpb.ModelInferResponse{}, nil
	}
	if rows == 0 || len(r.RawInputContents) == 0 {
		return nil, status.Error(codes.InvalidArgument, "an input that is missing")
	}
	shape, data := r.Inputs[0].Shape, r.RawInputContents[0]
	if short {
		shape, data = []int64{1, 4}, data[:16]
	}
	answer := &tritonpb.ModelInferResponse{ModelName: r.ModelName, ModelVersion: "1", Id: r.Id}
	outputs := []string{"OUT"}
	if len(r.Outputs) > 0 {
		outputs = nil
		for _, o := range r.Outputs {
			outputs = append(outputs, o.Name)
		}
	}
	for _, name := range outputs {
		answer.Outputs = append(answer.Outputs, &tritonpb.ModelInferResponse_InferOutputTensor{Name: name, Datatype: "FP32", Shape: shape})
		answer.RawOutputContents = append(answer.RawOutputContents, data)
	}
	if spoils != nil {
		spoils(r, answer)
	}
	return answer, nil
}

func (p *triton) ModelStreamInfer(s grpc.BidiStreamingServer[tritonpb.ModelInferRequest, tritonpb.ModelStreamInferResponse]) error {
	p.streams.Add(1)
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		resp, err := p.ModelInfer(s.Context(), r)
		if err != nil {
			err = s.Send(&tritonpb.ModelStreamInferResponse{ErrorMessage: status.Convert(err).Message(), InferResponse: &tritonpb.ModelInferResponse{Id: r.Id}})
		} else {
			resp.Parameters = map[string]*tritonpb.InferParameter{"triton_final_response": {ParameterChoice: &tritonpb.InferParameter_BoolParam{BoolParam: true}}}
			err = s.Send(&tritonpb.ModelStreamInferResponse{InferResponse: resp})
		}
		if err != nil {
			return err
		}
	}
}

func (p *triton) RepositoryIndex(context.Context, *tritonpb.RepositoryIndexRequest) (*tritonpb.RepositoryIndexResponse, error) {
	return &tritonpb.RepositoryIndexResponse{Models: []*tritonpb.RepositoryIndexResponse_ModelIndex{{Name: p.address}}}, nil
}

// modelConfig is a model with IN and OUT of four floats a row.
func modelConfig(name string) *tritonpb.ModelConfig {
	return &tritonpb.ModelConfig{
		Name: name, MaxBatchSize: 8,
		Input:  []*tritonpb.ModelInput{{Name: "IN", DataType: tritonpb.DataType_TYPE_FP32, Dims: []int64{4}}},
		Output: []*tritonpb.ModelOutput{{Name: "OUT", DataType: tritonpb.DataType_TYPE_FP32, Dims: []int64{4}}},
	}
}

// table serves model m on the given partitions.
func table(revision uint64, change func(*router.Model), parts ...*triton) *router.Table {
	m := &router.Model{Name: "m", Config: modelConfig("m"), Versions: []string{"1"}, SLO: 100 * time.Millisecond, Batchable: true}
	t := &router.Table{Revision: revision, Models: map[string]*router.Model{"m": m}}
	for i, p := range parts {
		id := "p" + p.address
		t.Partitions = append(t.Partitions, &router.PartitionSpec{ID: id, GPU: "g", GPUType: "T", ThreadPercentage: 100, Rank: i, Endpoint: router.Endpoint{GRPC: p.address}})
		m.Places = append(m.Places, router.Place{Partition: id})
	}
	if change != nil {
		change(m)
	}
	return t
}

// linear is a usable profile l(b) = alpha*b + beta.
func linear(alpha, beta time.Duration) *policy.Profile {
	p := &policy.Profile{Model: "m", GpuType: "T", Usable: true}
	for b := 1; b <= 8; b++ {
		us := float64((beta + time.Duration(b)*alpha).Microseconds())
		p.Points = append(p.Points, &policy.ProfilePoint{Batch: uint32(b), ThreadPercentage: 100, LatencyUpperUs: us})
	}
	return p
}

// recorder is an Observer that keeps what it receives.
type recorder struct {
	mu         sync.Mutex
	arrived    int
	executions []dispatch.Execution
	outcomes   []dispatch.Outcome
	busy       [][2]time.Time
	asked      []dispatch.Asked
	walks      []dispatch.Walk
}

func (r *recorder) Arrived(string, int, time.Time) { r.mu.Lock(); r.arrived++; r.mu.Unlock() }
func (r *recorder) Asked(a dispatch.Asked)         { r.mu.Lock(); r.asked = append(r.asked, a); r.mu.Unlock() }
func (r *recorder) Executed(e dispatch.Execution) {
	r.mu.Lock()
	r.executions = append(r.executions, e)
	r.mu.Unlock()
}
func (r *recorder) Busy(_ string, from, to time.Time) {
	r.mu.Lock()
	r.busy = append(r.busy, [2]time.Time{from, to})
	r.mu.Unlock()
}
func (r *recorder) Walked(w dispatch.Walk) {
	w.Steps = slices.Clone(w.Steps)
	r.mu.Lock()
	r.walks = append(r.walks, w)
	r.mu.Unlock()
}
func (r *recorder) Finished(o dispatch.Outcome) {
	r.mu.Lock()
	r.outcomes = append(r.outcomes, o)
	r.mu.Unlock()
}

// count checks that every arrival has an outcome and counts them by result.
func (r *recorder) count(t *testing.T) map[dispatch.Result]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	require.Equal(t, r.arrived, r.ended(), "every arrival has one outcome")
	n := make(map[dispatch.Result]int)
	for _, o := range r.outcomes {
		n[o.Result]++
	}
	return n
}

// shared counts the executions, and those of them that several requests share. An execution is observed a little after its answers.
func (r *recorder) shared() (all, shared int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.executions {
		if e.Requests > 1 {
			shared++
		}
	}
	return len(r.executions), shared
}

// arrivals counts the requests that came.
func (r *recorder) arrivals() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.arrived
}

// settled reports whether every arrival has an outcome.
func (r *recorder) settled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ended() == r.arrived
}

// refused counts the requests that were refused.
func (r *recorder) refused() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.outcomes {
		if o.Result == dispatch.Refused {
			n++
		}
	}
	return n
}

// ended counts the outcomes of arrivals.
func (r *recorder) ended() (n int) {
	for _, o := range r.outcomes {
		if !o.Early {
			n++
		}
	}
	return n
}

func newDispatcher(t *testing.T, o dispatch.Options, table *router.Table) (*dispatch.Dispatcher, *recorder) {
	r := &recorder{}
	o.Observer = r
	d := dispatch.New(o)
	t.Cleanup(func() {
		require.NoError(t, d.Close())
		require.Zero(t, dispatch.EndedTwice(d), "every request has one outcome")
	})
	if table != nil {
		require.NoError(t, d.Swap(t.Context(), table))
	}
	return d, r
}

// request makes one with the given number of rows, each filled with seed.
func request(t testing.TB, id string, rows int, seed uint32, change func(*tritonpb.ModelInferRequest)) *batch.Request {
	m := message(id, rows, seed)
	if change != nil {
		change(m)
	}
	wire, err := proto.Marshal(m)
	require.NoError(t, err)
	r, err := batch.ReadRequest(mem.BufferSlice{mem.SliceBuffer(wire)})
	require.NoError(t, err)
	return r
}

func message(id string, rows int, seed uint32) *tritonpb.ModelInferRequest {
	data := make([]byte, 0, rows*16)
	for range rows * 4 {
		data = binary.LittleEndian.AppendUint32(data, seed)
	}
	return &tritonpb.ModelInferRequest{
		ModelName: "m", Id: id,
		Inputs:           []*tritonpb.ModelInferRequest_InferInputTensor{{Name: "IN", Datatype: "FP32", Shape: []int64{int64(rows), 4}}},
		RawInputContents: [][]byte{data},
	}
}

// infer sends one request and checks the answer to the byte.
func infer(ctx context.Context, t testing.TB, d *dispatch.Dispatcher, seed uint32, rows int, change func(*tritonpb.ModelInferRequest)) error {
	id := fmt.Sprint("id", seed)
	resp, err := d.Infer(ctx, request(t, id, rows, seed, change))
	if err != nil {
		return err
	}
	defer resp.Free()
	want := message(id, rows, seed)
	switch out := resp.Output("OUT"); {
	case resp.ID != id:
		return fmt.Errorf("answer to %q has id %q", id, resp.ID)
	case out == nil || string(out.Data.Materialize()) != string(want.RawInputContents[0]):
		return fmt.Errorf("answer to %q is somebody else's: %v", id, out)
	}
	return nil
}

// at once runs n requests at the same time and returns their errors.
func atOnce(n int, f func(i int) error) []error {
	errs := make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { errs[i] = f(i) })
	}
	group.Wait()
	return errs
}

func requireCode(t *testing.T, want codes.Code, err error) {
	t.Helper()
	require.Equal(t, want, status.Code(err), "%v", err)
}

// movableClock is the system's time, which a test can move forward.
type movableClock struct {
	clock.Clock
	ahead atomic.Int64
}

func newMovableClock() *movableClock { return &movableClock{Clock: clock.Timers()} }

func (c *movableClock) Now() time.Time { return c.Clock.Now().Add(time.Duration(c.ahead.Load())) }

func (c *movableClock) move(by time.Duration) { c.ahead.Add(int64(by)) }
