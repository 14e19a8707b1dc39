// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package warmup_test

import (
	"context"
	"math"
	"net"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/apply/warmup"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// partition answers inferences, each of which takes 10 ms and 1 ms for every
// row on a clock that only it moves.
type partition struct {
	tritonpb.UnimplementedGRPCInferenceServiceServer
	mu   sync.Mutex
	now  time.Time
	rows []int64
	fail error
}

func (p *partition) ModelInfer(_ context.Context, r *tritonpb.ModelInferRequest) (*tritonpb.ModelInferResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	rows := r.GetInputs()[0].GetShape()[0]
	p.rows = append(p.rows, rows)
	p.now = p.now.Add(10*time.Millisecond + time.Duration(rows)*time.Millisecond)
	return &tritonpb.ModelInferResponse{}, p.fail
}

func (p *partition) clock() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now
}

func serve(t *testing.T) (*partition, string) {
	p := &partition{now: time.Unix(0, 0)}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer()
	tritonpb.RegisterGRPCInferenceServiceServer(s, p)
	go func() { _ = s.Serve(l) }() // until Stop
	t.Cleanup(s.Stop)
	return p, l.Addr().String()
}

func config(t *testing.T, text string) *tritonpb.ModelConfig {
	c := &tritonpb.ModelConfig{}
	require.NoError(t, prototext.Unmarshal([]byte(text), c))
	return c
}

const image = `name: "m" max_batch_size: 12 input { name: "A" data_type: TYPE_FP32 dims: [ 3, 4 ] }`

func TestMeasuringGivesTheTimesOfGrowingBatches(t *testing.T) {
	p, address := serve(t)
	r, err := warmup.Run(t.Context(), address, config(t, image), warmup.Options{Measure: true, Repeats: 2, Now: p.clock})
	require.NoError(t, err)
	require.Empty(t, r.Skipped)
	require.Equal(t, []int64{1, 1, 1, 2, 2, 2, 4, 4, 4, 8, 8, 8, 12, 12, 12}, p.rows)
	want := []warmup.Sample{}
	for _, rows := range []int{1, 2, 4, 8, 12} {
		s := warmup.Sample{Rows: rows, Duration: time.Duration(10+rows) * time.Millisecond}
		want = append(want, s, s)
	}
	require.Equal(t, want, r.Samples, "the first of every size is not counted")
}

func TestTheTimeForItIsBounded(t *testing.T) {
	p, address := serve(t)
	r, err := warmup.Run(t.Context(), address, config(t, image), warmup.Options{Measure: true, Repeats: 2, Budget: 60 * time.Millisecond, Now: p.clock})
	require.NoError(t, err)
	require.Equal(t, []int64{1, 1, 1, 2, 2, 2}, p.rows, "11+11+11+12+12+12 is past 60")
	require.Len(t, r.Samples, 4)
	require.Contains(t, r.Skipped, "batches of 4")
}

func TestBatchesThatNobodyCouldWaitForAreNotMeasured(t *testing.T) {
	p, address := serve(t)
	r, err := warmup.Run(t.Context(), address, config(t, image), warmup.Options{Measure: true, Repeats: 1, Enough: 13 * time.Millisecond, Now: p.clock})
	require.NoError(t, err)
	require.Equal(t, []int64{1, 1, 2, 2, 4, 4}, p.rows, "4 rows take 14 ms")
	require.Empty(t, r.Skipped)

	p.rows = nil
	_, err = warmup.Run(t.Context(), address, config(t, image), warmup.Options{Measure: true, Repeats: 1, Enough: time.Millisecond, Now: p.clock})
	require.NoError(t, err)
	require.Equal(t, []int64{1, 1, 2, 2}, p.rows, "a line takes two points")
}

func TestWithoutMeasuringOneRowIsSent(t *testing.T) {
	p, address := serve(t)
	r, err := warmup.Run(t.Context(), address, config(t, image), warmup.Options{})
	require.NoError(t, err)
	require.Empty(t, r.Samples)
	require.Equal(t, []int64{1}, p.rows)
	r, err = warmup.Run(t.Context(), address, config(t, `name: "m" input { name: "A" data_type: TYPE_FP32 dims: [ 7, 4 ] }`), warmup.Options{Measure: true})
	require.NoError(t, err)
	require.Empty(t, r.Samples, "without a batch dimension there is nothing to compare")
	require.Equal(t, []int64{1, 7}, p.rows)
}

func TestARefusalIsAnError(t *testing.T) {
	p, address := serve(t)
	p.fail = status.Error(codes.InvalidArgument, "zeros!")
	_, err := warmup.Run(t.Context(), address, config(t, image), warmup.Options{Measure: true})
	require.ErrorContains(t, err, "zeros!")
	require.Len(t, p.rows, 1)
}

func TestWhatHasNoPlainRequestIsSkippedWithAReason(t *testing.T) {
	for text, want := range map[string]string{
		`max_batch_size: 4 input { name: "A" data_type: TYPE_FP32 dims: -1 }`:                                       "varies",
		`max_batch_size: 4 input { name: "A" data_type: TYPE_STRING dims: 1 }`:                                      "TYPE_STRING",
		`max_batch_size: 4 input { name: "A" data_type: TYPE_FP32 dims: 1 optional: true }`:                         "optional",
		`max_batch_size: 4 input { name: "A" data_type: TYPE_FP32 dims: 1 allow_ragged_batch: true }`:               "ragged",
		`max_batch_size: 4 input { name: "A" data_type: TYPE_INT32 dims: 1 is_shape_tensor: true }`:                 "shape tensor",
		`max_batch_size: 4 input { name: "A" data_type: TYPE_FP32 dims: [ 100000, 100000, 100000, 90000, 90000 ] }`: "larger",
		`max_batch_size: 4 sequence_batching {} input { name: "A" data_type: TYPE_FP32 dims: 1 }`:                   "sequence",
		`model_transaction_policy { decoupled: true } input { name: "A" data_type: TYPE_FP32 dims: 1 }`:             "decoupled",
		`max_batch_size: 4`: "no input",
	} {
		r, err := warmup.Run(t.Context(), "127.0.0.1:1", config(t, text), warmup.Options{Measure: true})
		require.NoError(t, err, "nothing is sent")
		require.Contains(t, r.Skipped, want, text)
	}
}

func TestRequestsHaveTheirShapeAndSize(t *testing.T) {
	for datatype, size := range map[string]int{"BOOL": 1, "UINT8": 1, "INT16": 2, "FP16": 2, "BF16": 2, "INT32": 4, "FP32": 4, "INT64": 8, "FP64": 8} {
		r, reason := warmup.Request(config(t, `name: "m" max_batch_size: 4 input { name: "A" data_type: TYPE_`+datatype+` dims: [ 3, 5 ] }`), 2)
		require.Empty(t, reason)
		require.Equal(t, datatype, r.GetInputs()[0].GetDatatype())
		require.Equal(t, []int64{2, 3, 5}, r.GetInputs()[0].GetShape())
		require.Len(t, r.GetRawInputContents()[0], 30*size)
	}
	require.Equal(t, []int{1}, warmup.Sizes(1))
	require.Equal(t, []int{1, 2}, warmup.Sizes(2))
	require.Equal(t, []int{1, 2, 4, 8, 16, 32}, warmup.Sizes(32))
}

// TestRequestsAreBounded: dimensions whose product is beyond what a number of bytes can be, and many inputs, are no reason to end or to
// take all memory.
func TestRequestsAreBounded(t *testing.T) {
	input := func(name string, dims ...int64) *tritonpb.ModelInput {
		return &tritonpb.ModelInput{Name: name, DataType: tritonpb.DataType_TYPE_FP32, Dims: dims}
	}
	many := &tritonpb.ModelConfig{Name: "m", MaxBatchSize: 8}
	for i := range 300 {
		many.Input = append(many.Input, input(strconv.Itoa(i), 1<<20))
	}
	for name, c := range map[string]*tritonpb.ModelConfig{
		"a product that is negative": {Name: "m", Input: []*tritonpb.ModelInput{input("x", 1<<24, 3<<37)}},
		"a product that is nothing":  {Name: "m", Input: []*tritonpb.ModelInput{input("x", 1<<24, 1<<40)}},
		"of the largest":             {Name: "m", Input: []*tritonpb.ModelInput{input("x", 1<<24, math.MaxInt64, math.MaxInt64)}},
		"many inputs":                many,
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, reason := warmup.Request(c, 1)
			runtime.ReadMemStats(&after)
			require.Contains(t, reason, "larger than 64 MiB")
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(100<<20))
		})
	}
}
