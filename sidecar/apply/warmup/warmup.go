// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package warmup runs the first requests of a freshly loaded model: they make
// the backend allocate and compile what it puts off until then, and their times
// give the model a profile before its first client comes.
package warmup

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// Sample is one timed execution of a batch.
type Sample struct {
	Rows     int
	Duration time.Duration
}

// Result is what a warm-up found out.
type Result struct {
	// Samples are in the order of their execution, the first of every batch size
	// left out. There are none unless measuring was asked for.
	Samples []Sample
	// Skipped says why the model was not warmed up, or not measured; empty where
	// it was.
	Skipped string
	// Statistics are the server's of the model after the warm-up: what clients did
	// not ask for. There are none if no request was sent.
	Statistics []*tritonpb.ModelStatistics
}

// Options of Run.
type Options struct {
	// Measure times batches of 1, 2, 4, ... rows. Otherwise one request of one row
	// is sent.
	Measure bool
	// MaxBatch bounds the rows beyond the model's own maximum; 0 does not.
	MaxBatch int
	// Enough is when larger batches need no measuring: a batch that took longer
	// is the last. The model's SLO suits, since no request can wait for more; a
	// line through what was measured says the rest. 0 measures all.
	Enough time.Duration
	// Repeats is how often a batch size is timed, after one run that is not; 0
	// means 3.
	Repeats int
	// Budget is when no further request is sent; 0 means 5 seconds. A request
	// under way is waited for, because cancelling does not stop Triton.
	Budget time.Duration
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Credentials are how the partition is reached; nil means in the clear.
	Credentials credentials.TransportCredentials
}

// maxRequestBytes is the largest request that is made up for a warm-up.
const maxRequestBytes = 64 << 20

// Run warms the model up through the gRPC address of its partition. The inputs
// are zeros, which not every model likes: an error says that the model refused
// them, and need not mean that it is broken.
func Run(ctx context.Context, address string, c *tritonpb.ModelConfig, o Options) (Result, error) {
	if o.Repeats <= 0 {
		o.Repeats = 3
	}
	if o.Budget <= 0 {
		o.Budget = 5 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if _, reason := Request(c, 1); reason != "" {
		return Result{Skipped: reason}, nil
	}
	if o.Credentials == nil {
		o.Credentials = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(o.Credentials), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(2*maxRequestBytes), grpc.MaxCallSendMsgSize(2*maxRequestBytes)))
	if err != nil {
		return Result{}, fmt.Errorf("warm up %q: %w", c.GetName(), err)
	}
	defer conn.Close()
	w := warmer{o: o, client: tritonpb.NewGRPCInferenceServiceClient(conn), config: c, end: o.Now().Add(o.Budget)}
	var r Result
	if !o.Measure || c.GetMaxBatchSize() <= 0 {
		_, err = w.execute(ctx, 1)
	} else {
		r, err = w.measure(ctx)
	}
	r.Statistics = w.statistics(ctx)
	return r, err
}

type warmer struct {
	o      Options
	client tritonpb.GRPCInferenceServiceClient
	config *tritonpb.ModelConfig
	end    time.Time
	// answered counts requests that were.
	answered uint64
}

// statistics reads what the server counted of the warm-up. It counts a moment
// after it has answered.
func (w *warmer) statistics(ctx context.Context) []*tritonpb.ModelStatistics {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for {
		r, err := w.client.ModelStatistics(ctx, &tritonpb.ModelStatisticsRequest{Name: w.config.GetName()})
		if err != nil {
			return nil // statistics that are off by a warm-up are no reason to fail
		}
		counted := uint64(0)
		for _, s := range r.GetModelStats() {
			counted += s.GetInferenceStats().GetSuccess().GetCount() + s.GetInferenceStats().GetFail().GetCount()
		}
		if counted >= w.answered {
			return r.GetModelStats()
		}
		select {
		case <-ctx.Done():
			return r.GetModelStats()
		case <-time.After(time.Millisecond):
		}
	}
}

func (w *warmer) measure(ctx context.Context) (Result, error) {
	limit := int(w.config.GetMaxBatchSize())
	if w.o.MaxBatch > 0 {
		limit = min(limit, w.o.MaxBatch)
	}
	var r Result
	for i, rows := range Sizes(limit) {
		if n := len(r.Samples); i > 1 && n > 0 && w.o.Enough > 0 && r.Samples[n-1].Duration > w.o.Enough {
			return r, nil
		}
		if !w.o.Now().Before(w.end) {
			r.Skipped = fmt.Sprintf("the time for it was over before batches of %d", rows)
			return r, nil
		}
		if _, reason := Request(w.config, rows); reason != "" {
			return r, nil // it is too large
		}
		for i := range w.o.Repeats + 1 {
			took, err := w.execute(ctx, rows)
			if err != nil {
				return r, err
			}
			if i > 0 {
				r.Samples = append(r.Samples, Sample{Rows: rows, Duration: took})
			}
			if !w.o.Now().Before(w.end) {
				break
			}
		}
	}
	return r, nil
}

func (w *warmer) execute(ctx context.Context, rows int) (time.Duration, error) {
	request, _ := Request(w.config, rows)
	begin := w.o.Now()
	if _, err := w.client.ModelInfer(ctx, request); err != nil {
		return 0, fmt.Errorf("warm up %q with %d rows of zeros: %w", w.config.GetName(), rows, err)
	}
	w.answered++
	return w.o.Now().Sub(begin), nil
}

// Sizes are the batches that are measured up to limit: the powers of two and
// the limit itself.
func Sizes(limit int) []int {
	var sizes []int
	for b := 1; b < limit; b *= 2 {
		sizes = append(sizes, b)
	}
	return append(sizes, limit)
}

// Request makes a request of the given rows, all zeros. Reason says why the
// configuration does not tell what such a request looks like, or that it would be too large.
func Request(c *tritonpb.ModelConfig, rows int) (request *tritonpb.ModelInferRequest, reason string) {
	switch {
	case c.GetEnsembleScheduling() != nil:
		return nil, "the models that an ensemble calls are warmed up themselves"
	case c.GetSequenceBatching() != nil:
		return nil, "requests of a sequence model belong to sequences"
	case c.GetModelTransactionPolicy().GetDecoupled():
		return nil, "a decoupled model is called by streams only"
	case len(c.GetInput()) == 0:
		return nil, "the configuration describes no input"
	}
	request = &tritonpb.ModelInferRequest{ModelName: c.GetName()}
	total := int64(0)
	for _, in := range c.GetInput() {
		width := triton.ElementSize(in.GetDataType())
		switch {
		case width == 0:
			return nil, fmt.Sprintf("input %q is %s: zeros may not be a value of it", in.GetName(), in.GetDataType())
		case in.GetOptional():
			return nil, fmt.Sprintf("input %q is optional: which inputs go together is not declared", in.GetName())
		case in.GetIsShapeTensor():
			return nil, fmt.Sprintf("input %q is a shape tensor: its values are not free", in.GetName())
		case in.GetAllowRaggedBatch():
			return nil, fmt.Sprintf("input %q is ragged: its size is not declared", in.GetName())
		}
		shape, bytes := []int64{}, width
		if c.GetMaxBatchSize() > 0 {
			shape, bytes = append(shape, int64(rows)), bytes*int64(rows)
		}
		for _, d := range in.GetDims() {
			if d < 1 {
				return nil, fmt.Sprintf("input %q has a dimension that varies", in.GetName())
			}
			if d > maxRequestBytes/bytes { // the product may be beyond any number
				return nil, fmt.Sprintf("input %q is larger than %d MiB", in.GetName(), maxRequestBytes>>20)
			}
			shape, bytes = append(shape, d), bytes*d
		}
		if total += bytes; total > maxRequestBytes {
			return nil, fmt.Sprintf("with input %q a request is larger than %d MiB", in.GetName(), maxRequestBytes>>20)
		}
		request.Inputs = append(request.Inputs, &tritonpb.ModelInferRequest_InferInputTensor{Name: in.GetName(), Datatype: datatype(in.GetDataType()), Shape: shape})
		request.RawInputContents = append(request.RawInputContents, make([]byte, bytes))
	}
	return request, ""
}

// datatype is the name of a type in requests: that of the configuration without
// its prefix.
func datatype(t tritonpb.DataType) string { return t.String()[len("TYPE_"):] }
