// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// GRPC calls models over Triton's gRPC protocol. Over several endpoints it balances by least outstanding requests. Requests are written
// and answers read at wire level, so that the generator takes little of the machine that it shares with what it measures.
type GRPC struct {
	payload   payload
	templates [][]byte
	ends      []*endpoint
	serving   [][]*endpoint // by model
	affine    []bool        // by model
	turn      atomic.Uint64
}

type endpoint struct {
	conn        *grpc.ClientConn
	outstanding atomic.Int64
}

// NewGRPC prepares a caller for these models, all of the same tensor, at these endpoints (host:port). Close it.
func NewGRPC(endpoints []string, models []Model, t Tensor) (*GRPC, error) {
	g := &GRPC{payload: newPayload(t)}
	for _, m := range models {
		template, err := t.template(m.Name)
		if err != nil {
			return nil, err
		}
		g.templates = append(g.templates, template)
	}
	for _, e := range endpoints {
		conn, err := grpc.NewClient(e, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.ForceCodecV2(wireCodec{}), grpc.MaxCallRecvMsgSize(math.MaxInt32)))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("load: endpoint %q: %w", e, err), g.Close())
		}
		g.ends = append(g.ends, &endpoint{conn: conn})
	}
	for _, m := range models {
		serving := g.ends
		if m.Endpoints != nil {
			serving = nil
		}
		for _, i := range m.Endpoints {
			if i < 0 || i >= len(g.ends) {
				return nil, errors.Join(fmt.Errorf("load: model %q is served by endpoint %d of %d", m.Name, i, len(g.ends)), g.Close())
			}
			serving = append(serving, g.ends[i])
		}
		if len(serving) == 0 {
			return nil, errors.Join(fmt.Errorf("load: model %q is served by no endpoint", m.Name), g.Close())
		}
		g.serving, g.affine = append(g.serving, serving), append(g.affine, m.Affine)
	}
	return g, nil
}

// Close ends the connections.
func (g *GRPC) Close() error {
	var errs []error
	for _, e := range g.ends {
		errs = append(errs, e.conn.Close())
	}
	return errors.Join(errs...)
}

// Call sends one request to the endpoint with the fewest outstanding ones, of those that serve the model, or to the model's own, and checks the answer.
func (g *GRPC) Call(ctx context.Context, model int, sequence uint64) error {
	e := g.pick(g.serving[model], g.affine[model])
	e.outstanding.Add(1)
	defer e.outstanding.Add(-1)

	template := g.templates[model]
	head := append(make([]byte, 0, len(template)+4*varying), template...)
	request := mem.BufferSlice{mem.SliceBuffer(g.payload.appendHead(head, sequence))}
	if len(g.payload.rest) > 0 {
		request = append(request, mem.SliceBuffer(g.payload.rest))
	}
	var answer []byte
	if err := e.conn.Invoke(ctx, tritonpb.GRPCInferenceService_ModelInfer_FullMethodName, request, &answer); err != nil {
		if _, limited := ctx.Deadline(); limited && status.Code(err) == codes.DeadlineExceeded {
			return context.DeadlineExceeded // the server may notice before ctx does
		}
		return err
	}
	raw, err := rawOutput(answer)
	if err != nil {
		return err
	}
	return g.payload.check(raw, sequence)
}

// fairShare is by how much an endpoint may exceed the mean of what is outstanding before requests that prefer it go elsewhere.
const fairShare = 1.25

// pick takes the endpoint with the fewest outstanding requests, and among equals goes round; or the first, if that is preferred and has no more than
// its share.
func (g *GRPC) pick(ends []*endpoint, affine bool) *endpoint {
	if affine {
		all := int64(1)
		for _, e := range ends {
			all += e.outstanding.Load()
		}
		if float64(ends[0].outstanding.Load()+1) <= math.Ceil(fairShare*float64(all)/float64(len(ends))) {
			return ends[0]
		}
	}
	first := int(g.turn.Add(1) % uint64(len(ends)))
	best := ends[first]
	for i := 1; i < len(ends); i++ {
		if e := ends[(first+i)%len(ends)]; e.outstanding.Load() < best.outstanding.Load() {
			best = e
		}
	}
	return best
}

// wireCodec sends encoded messages given as mem.BufferSlice and hands answers over as *[]byte.
type wireCodec struct{}

func (wireCodec) Name() string { return "proto" }

func (wireCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(mem.BufferSlice)
	if !ok {
		return nil, fmt.Errorf("load: message of type %T", v)
	}
	return b, nil
}

func (wireCodec) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("load: message of type %T", v)
	}
	*b = data.Materialize()
	return nil
}
