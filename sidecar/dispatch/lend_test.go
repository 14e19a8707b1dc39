// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package dispatch_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// lentRow is the number of floats of a row that is large enough for shared memory.
const lentRow = 1 << 16

// serial is a server that executes one request after the other, as a model with one instance does. It maps the memory that is shared with it, reads the
// inputs when their execution begins, writes the outputs when it ends, and does not look whether its caller has cancelled.
type serial struct {
	tritonpb.UnimplementedGRPCInferenceServiceServer
	takes   func(rows int) time.Duration
	begins  func(*tritonpb.ModelInferRequest) // called when an execution begins, if set
	turn    chan struct{}
	running atomic.Int64
	changed atomic.Int64 // inputs that were others when their execution ended than when it began

	mu      sync.Mutex
	regions map[string][]byte
	refuses bool  // to share memory
	fails   error // of the next execution, after it has written
	named   []namedTensor
}

// namedTensor is a tensor that was in shared memory: an output of a model, or an input. Its place is nil if it came through the socket.
type namedTensor struct {
	model, tensor string
	output        bool
	place         []any // region, offset and size
}

func (s *serial) note(model, tensor string, output bool, parameters map[string]*tritonpb.InferParameter) {
	n := namedTensor{model: model, tensor: tensor, output: output}
	if region := parameters["shared_memory_region"].GetStringParam(); region != "" {
		n.place = []any{region, parameters["shared_memory_offset"].GetInt64Param(), parameters["shared_memory_byte_size"].GetInt64Param()}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.named = append(s.named, n)
}

// places are the places of a model's input or output in the executions until now.
func (s *serial) places(model, tensor string, output bool) (all [][]any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.named {
		if n.model == model && n.tensor == tensor && n.output == output {
			all = append(all, n.place)
		}
	}
	return all
}

func (s *serial) ServerLive(context.Context, *tritonpb.ServerLiveRequest) (*tritonpb.ServerLiveResponse, error) {
	return &tritonpb.ServerLiveResponse{Live: true}, nil
}

func (s *serial) ModelReady(context.Context, *tritonpb.ModelReadyRequest) (*tritonpb.ModelReadyResponse, error) {
	return &tritonpb.ModelReadyResponse{Ready: true}, nil
}

func (s *serial) SystemSharedMemoryRegister(_ context.Context, r *tritonpb.SystemSharedMemoryRegisterRequest) (*tritonpb.SystemSharedMemoryRegisterResponse, error) {
	f, err := os.OpenFile(filepath.Join("/dev/shm", r.Key), os.O_RDWR, 0)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	defer func() { _ = f.Close() }()
	memory, err := unix.Mmap(int(f.Fd()), 0, int(r.ByteSize), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuses {
		return nil, status.Error(codes.Unavailable, "shared memory is off")
	}
	s.regions[r.Name] = memory
	return &tritonpb.SystemSharedMemoryRegisterResponse{}, nil
}

// SystemSharedMemoryUnregister forgets a region. It stays mapped: an execution may still use it.
func (s *serial) SystemSharedMemoryUnregister(_ context.Context, r *tritonpb.SystemSharedMemoryUnregisterRequest) (*tritonpb.SystemSharedMemoryUnregisterResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.regions, r.Name)
	return &tritonpb.SystemSharedMemoryUnregisterResponse{}, nil
}

// lent is the memory that parameters of a tensor name; nil: none.
func (s *serial) lent(parameters map[string]*tritonpb.InferParameter) ([]byte, error) {
	region := parameters["shared_memory_region"].GetStringParam()
	if region == "" {
		return nil, nil
	}
	s.mu.Lock()
	memory, known := s.regions[region]
	s.mu.Unlock()
	if !known {
		return nil, status.Errorf(codes.InvalidArgument, "Unable to find shared memory region: '%s'", region)
	}
	offset := parameters["shared_memory_offset"].GetInt64Param()
	return memory[offset:][:parameters["shared_memory_byte_size"].GetInt64Param()], nil
}

// inputs are the data of a request's inputs, wherever they are.
func (s *serial) inputs(r *tritonpb.ModelInferRequest) (map[string][]byte, error) {
	all, raw := map[string][]byte{}, r.RawInputContents
	for _, in := range r.Inputs {
		data, err := s.lent(in.Parameters)
		if err != nil {
			return nil, err
		}
		if data == nil {
			data, raw = raw[0], raw[1:]
		}
		all[in.Name] = data
		s.note(r.ModelName, in.Name, false, in.Parameters)
	}
	return all, nil
}

func (s *serial) ModelInfer(_ context.Context, r *tritonpb.ModelInferRequest) (*tritonpb.ModelInferResponse, error) {
	s.running.Add(1)
	defer s.running.Add(-1)
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	if s.begins != nil {
		s.begins(r)
	}
	in, err := s.inputs(r)
	if err != nil {
		return nil, err
	}
	began := map[string][]byte{}
	for name, data := range in {
		began[name] = bytes.Clone(data)
	}
	data := computed(r, began)
	time.Sleep(s.takes(int(r.Inputs[0].Shape[0])))
	for name, data := range in {
		if !bytes.Equal(data, began[name]) {
			s.changed.Add(1)
		}
	}
	answer := &tritonpb.ModelInferResponse{ModelName: r.ModelName, ModelVersion: "1", Id: r.Id}
	asked := r.Outputs
	if len(asked) == 0 {
		asked = []*tritonpb.ModelInferRequest_InferRequestedOutputTensor{{Name: "OUT"}}
	}
	for _, o := range asked {
		out := &tritonpb.ModelInferResponse_InferOutputTensor{Name: o.Name, Datatype: "FP32", Shape: []int64{r.Inputs[0].Shape[0], lentRow}}
		s.note(r.ModelName, o.Name, true, o.Parameters)
		answer.Outputs = append(answer.Outputs, out)
		into, err := s.lent(o.Parameters)
		if err != nil {
			return nil, err
		}
		of := ofMember(in["whose"], o.Name, data)
		if into == nil {
			answer.RawOutputContents = append(answer.RawOutputContents, of)
			continue
		}
		out.Parameters = o.Parameters
		copy(into, of)
	}
	s.mu.Lock()
	fails := s.fails
	s.fails = nil
	s.mu.Unlock()
	if fails != nil {
		return nil, fails
	}
	return answer, nil
}

// computed are the rows that a model makes of its inputs: those of the first of them, if all inputs are alike, and made as long as rows are. Of inputs that are not
// alike it makes what no request has.
func computed(r *tritonpb.ModelInferRequest, in map[string][]byte) []byte {
	first := in[r.Inputs[0].Name]
	for _, other := range r.Inputs[1:] {
		if other.Name != "whose" && !bytes.Equal(in[other.Name], first) {
			return bytes.Repeat([]byte{0xee}, len(first))
		}
	}
	row := len(first) / int(r.Inputs[0].Shape[0])
	if row == 4*lentRow {
		return first
	}
	var all []byte
	for ; len(first) > 0; first = first[row:] {
		all = append(all, bytes.Repeat(first[:4], lentRow)...)
	}
	return all
}

// ofMember is an output of a merge group: the rows of its member, and nothing of the others'. An output of any other model is data.
func ofMember(whose []byte, output string, data []byte) []byte {
	if whose == nil {
		return data
	}
	of := make([]byte, len(data))
	for row := range len(whose) / 4 {
		if output == []string{"OUT", "n.OUT"}[binary.LittleEndian.Uint32(whose[4*row:])] {
			copy(of[4*lentRow*row:][:4*lentRow], data[4*lentRow*row:])
		}
	}
	return of
}

// mostlyShort is how long executions take, one in ten far longer.
func mostlyShort(int) time.Duration {
	if rand.IntN(10) == 0 {
		return 30 * time.Millisecond
	}
	return time.Millisecond
}

// faultsOf has a server fail once, or loses it and starts another one in its place, while the old one's executions go on. Callers count when it is time: a slow machine has no
// more faults for the same requests.
func faultsOf(t *testing.T, parts []*triton, servers []*serial) (fault func()) {
	var mu sync.Mutex
	return func() {
		mu.Lock()
		defer mu.Unlock()
		i := rand.IntN(len(parts))
		if rand.IntN(3) == 0 {
			servers[i] = newSerial(t, parts[i], mostlyShort)
			return
		}
		servers[i].mu.Lock()
		servers[i].fails = errCUDA
		servers[i].mu.Unlock()
	}
}

// newSerial starts a server at an address of the partition.
func newSerial(t *testing.T, p *triton, takes func(rows int) time.Duration) *serial {
	s := &serial{takes: takes, turn: make(chan struct{}, 1), regions: map[string][]byte{}}
	p.kill()
	p.server = grpc.NewServer(grpc.MaxRecvMsgSize(64<<20), grpc.MaxSendMsgSize(64<<20))
	tritonpb.RegisterGRPCInferenceServiceServer(p.server, s)
	listen := p.listen(p.address)
	server := p.server
	go func() { _ = server.Serve(listen) }()
	t.Cleanup(func() {
		server.Stop() // which does not wait for executions
		require.Eventually(t, func() bool { return s.running.Load() == 0 }, 30*time.Second, time.Millisecond)
		require.Zero(t, s.changed.Load(), "memory was lent again under an execution that reads it")
	})
	return s
}

// lending is a table of a model with large rows.
func lending(m *router.Model) {
	m.Config.Input[0].Dims, m.Config.Output[0].Dims = []int64{lentRow}, []int64{lentRow}
	m.SLO = 10 * time.Second
}

// stamped is a request all of whose values are those of its owner.
func stamped(t testing.TB, owner uint32, rows int, options ...func(*tritonpb.ModelInferRequest)) *batch.Request {
	data := bytes.Repeat(binary.LittleEndian.AppendUint32(nil, owner), rows*lentRow)
	request := &tritonpb.ModelInferRequest{
		ModelName: "m", Id: fmt.Sprint(owner),
		Inputs:           []*tritonpb.ModelInferRequest_InferInputTensor{{Name: "IN", Datatype: "FP32", Shape: []int64{int64(rows), lentRow}}},
		RawInputContents: [][]byte{data},
	}
	for _, o := range options {
		o(request)
	}
	wire, err := proto.Marshal(request)
	require.NoError(t, err)
	r, err := batch.ReadRequest(mem.BufferSlice{mem.SliceBuffer(wire)})
	require.NoError(t, err)
	return r
}

// inferStamped sends a stamped request, and counts the values of its answer that are not its owner's.
func inferStamped(ctx context.Context, t testing.TB, d *dispatch.Dispatcher, owner uint32, rows int, options ...func(*tritonpb.ModelInferRequest)) (foreign int, err error) {
	resp, err := d.Infer(ctx, stamped(t, owner, rows, options...))
	if err != nil {
		return 0, err
	}
	defer resp.Free()
	data := resp.Output("OUT").Data.Materialize()
	require.Len(t, data, 4*rows*lentRow)
	if bytes.Equal(data, bytes.Repeat(data[:4], rows*lentRow)) && binary.LittleEndian.Uint32(data) == owner {
		return 0, nil
	}
	for i := 0; i < len(data); i += 4 {
		if binary.LittleEndian.Uint32(data[i:]) != owner {
			foreign++
		}
	}
	return foreign, nil
}

// untilLent sends requests until the server shares memory.
func untilLent(t *testing.T, d *dispatch.Dispatcher, seen *recorder, servers int) {
	require.Eventually(t, func() bool {
		_, err := inferStamped(t.Context(), t, d, 1, 1)
		require.NoError(t, err)
		seen.mu.Lock()
		defer seen.mu.Unlock()
		lent := map[string]bool{}
		for _, e := range seen.executions {
			if e.Lent > 0 {
				lent[e.Partition] = true
			}
		}
		return len(lent) >= servers
	}, 30*time.Second, time.Millisecond)
}

// TestMemoryIsLentUntilTheServersLastWord: a caller leaves while the server still executes its request, which shares memory with the server. What the
// server reads and writes then is in nobody else's request or answer.
func TestMemoryIsLentUntilTheServersLastWord(t *testing.T) {
	p := newTriton(t)
	var slow atomic.Bool
	newSerial(t, p, func(int) time.Duration {
		if slow.Swap(false) {
			return 3 * time.Second
		}
		return time.Millisecond
	})
	d, seen := newDispatcher(t, dispatch.Options{SharedMemoryBytes: 64 << 20}, table(1, lending, p))
	untilLent(t, d, seen, 1)
	slow.Store(true)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := inferStamped(ctx, t, d, 0xaaaaaaaa, 1)
	requireCode(t, codes.DeadlineExceeded, err)
	require.Less(t, time.Since(began), 2*time.Second, "its caller does not wait for the server")
	foreign, err := inferStamped(t.Context(), t, d, 0xbbbbbbbb, 2)
	require.NoError(t, err)
	require.Zero(t, foreign, "values of somebody else's, of %d", 2*lentRow)
	n, bytes := d.UnderWay()
	require.Zero(t, n)
	require.Zero(t, bytes)
}

// TestAServerThatForgetsItsRegionsHasItsBatchesThroughTheSocket: it refuses the shared memory. The batch goes to it again, and is the queue's still.
func TestAServerThatForgetsItsRegionsHasItsBatchesThroughTheSocket(t *testing.T) {
	p := newTriton(t)
	s := newSerial(t, p, func(int) time.Duration { return 0 })
	d, seen := newDispatcher(t, dispatch.Options{SharedMemoryBytes: 64 << 20}, table(1, lending, p))
	untilLent(t, d, seen, 1)
	s.mu.Lock()
	clear(s.regions)
	s.mu.Unlock()
	foreign, err := inferStamped(t.Context(), t, d, 2, 1)
	require.NoError(t, err)
	require.Zero(t, foreign)
	seen.mu.Lock()
	defer seen.mu.Unlock()
	require.False(t, seen.outcomes[len(seen.outcomes)-1].PassedThrough)
}

// TestNoAnswerHoldsAnothersRows: callers leave at random, executions take long or fail at random, servers are lost and come back, requests are retried.
// Every row of every answer is its owner's.
func TestNoAnswerHoldsAnothersRows(t *testing.T) {
	for name, c := range map[string]struct {
		shared int64
		merged bool
	}{
		"through shared memory": {shared: 8 << 20}, "through the socket": {},
		"of a merge group, through shared memory": {shared: 8 << 20, merged: true}, "of a merge group, through the socket": {merged: true},
	} {
		t.Run(name, func(t *testing.T) {
			parts := []*triton{newTriton(t), newTriton(t)}
			servers := []*serial{newSerial(t, parts[0], mostlyShort), newSerial(t, parts[1], mostlyShort)}
			routes := table(1, lending, parts...)
			if c.merged {
				routes = merged(1, parts...)
				for _, m := range routes.Models {
					m.SLO = 10 * time.Second
					for _, in := range m.Config.Input {
						if in.Name == "IN" {
							in.Dims = []int64{lentRow}
						}
					}
					for _, out := range m.Config.Output {
						out.Dims = []int64{lentRow}
					}
				}
			}
			d, seen := newDispatcher(t, dispatch.Options{SharedMemoryBytes: c.shared}, routes)
			d.SetProfile(linear(time.Millisecond, time.Millisecond))
			if c.shared > 0 {
				untilLent(t, d, seen, 1)
			}
			const requests = 300
			fault := faultsOf(t, parts, servers)
			var wrong, ok atomic.Int64
			inTurns(requests, 12, func(i int) error {
				if i%10 == 9 {
					fault()
				}
				ctx := t.Context()
				if rand.IntN(2) == 0 {
					var cancel func()
					ctx, cancel = context.WithTimeout(ctx, time.Duration(rand.IntN(20_000))*time.Microsecond)
					defer cancel()
				}
				member := 0
				if c.merged {
					member = rand.IntN(2)
				}
				foreign, err := inferStamped(ctx, t, d, uint32(i+2), 1+rand.IntN(2), of(member))
				if foreign > 0 {
					wrong.Add(1)
				} else if err == nil {
					ok.Add(1)
				}
				return nil
			})
			require.Zero(t, wrong.Load(), "answers with others' rows, beside %d without", ok.Load())
			require.Greater(t, ok.Load(), int64(requests/20)) // how many depends on how busy the machine is
			seen.count(t)
		})
	}
}
