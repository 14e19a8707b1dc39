// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"context"
	"flag"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/aggregate"
	front "github.com/conch-serving/conch/sidecar/dispatch/ingress/http"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

var (
	liveHTTP = flag.String("triton-http", "", "HTTP address of a Triton server to compare with")
	liveGRPC = flag.String("triton-grpc", "", "gRPC address of the same server")
)

// live is one Triton server as partition, route table, inferer and picker.
type live struct {
	conn   grpc.ClientConnInterface
	client tritonpb.GRPCInferenceServiceClient
}

func (l live) Partitions() []aggregate.Partition {
	return []aggregate.Partition{{ID: "p", HTTP: *liveHTTP, Up: true, Models: l.names(), Conn: l.conn}}
}

func (l live) Pick(context.Context, string) (front.Server, func(error), error) {
	return front.Server{Partition: "p", Endpoint: *liveHTTP}, func(error) {}, nil
}

func (l live) Lookup(name string) (aggregate.Model, bool) {
	c, err := l.client.ModelConfig(context.Background(), &tritonpb.ModelConfigRequest{Name: name})
	if err != nil {
		return aggregate.Model{}, false
	}
	return aggregate.Model{Config: c.Config, Versions: versions(name)}, true
}

func (l live) names() []string {
	var names []string
	for _, e := range l.Repository() {
		names = append(names, e.Name)
	}
	return names
}

func (l live) Ready() error { return nil }

func (l live) Repository() []aggregate.Entry {
	index, err := l.client.RepositoryIndex(context.Background(), &tritonpb.RepositoryIndexRequest{})
	if err != nil {
		return nil
	}
	all := make([]aggregate.Entry, 0, len(index.Models))
	for _, m := range index.Models {
		all = append(all, aggregate.Entry{Name: m.Name})
	}
	return all
}

// Begin implements front.Inferer.
func (l live) Begin(ctx context.Context, t *wire.Turn, r *batch.Request, then func(*wire.Turn, *batch.Response, error)) {
	inferFunc(l.infer).Begin(ctx, t, r, then)
}

func (l live) infer(ctx context.Context, r *batch.Request) (*batch.Response, error) {
	wire := r.Marshal()
	defer wire.Free()
	request := &tritonpb.ModelInferRequest{}
	if err := proto.Unmarshal(wire.Materialize(), request); err != nil {
		return nil, err
	}
	response, err := l.client.ModelInfer(ctx, request)
	if err != nil {
		return nil, err
	}
	text, err := proto.Marshal(response)
	if err != nil {
		return nil, err
	}
	return batch.ReadResponse(mem.BufferSlice{mem.SliceBuffer(text)})
}

// TestAgainstTriton sends requests to a server directly and through the front, and compares the answers.
func TestAgainstTriton(t *testing.T) {
	if *liveHTTP == "" {
		t.Skip("set -triton-http and -triton-grpc to compare with a running server")
	}
	conn, err := grpc.NewClient(*liveGRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	l := live{conn, tritonpb.NewGRPCInferenceServiceClient(conn)}
	a := aggregate.New(aggregate.Options{Partitions: l, Models: l})
	h := front.New(front.Options{Inferer: l, Catalog: a, Picker: l, Endpoints: a, Aggregator: a})
	defer h.Close()
	address := listen(t, h, true)
	requests := loadRequests(t)
	for _, path := range []string{"/v2/models/simple/stats", "/v2/models/stats", "/v2/logging", "/v2/trace/setting", "/v2/models/simple/trace/setting",
		"/v2/models/nope/trace/setting", "/v2/systemsharedmemory/status", "/v2/systemsharedmemory/region/x/status", "/v2/cudasharedmemory/status"} {
		requests = append(requests, request{Name: "live " + path, Method: "GET", Path: path})
	}
	for _, r := range []request{{Path: "/v2/repository/index"}, {Path: "/v2/repository/index", Body: `{"ready":true}`}, {Path: "/v2/repository/index", Body: `{"ready":1}`},
		{Path: "/v2/repository/index", Body: `{`},
		{Path: "/v2/models/seq/config"}, {Path: "/v2/logging", Body: `{"log_verbose_level":0}`}, {Path: "/v2/logging", Body: `{"log_info":1}`},
		{Path: "/v2/trace/setting", Body: `{"trace_rate":5}`}, {Path: "/v2/models/simple/trace/setting", Body: `{"trace_rate":"1000"}`},
		{Path: "/v2/systemsharedmemory/region/r/register", Body: `{"key":"/nothing","offset":0,"byte_size":64}`},
		{Path: "/v2/systemsharedmemory/unregister"}, {Path: "/v2/models/dec/generate", Body: `{"INPUT0":1}`},
		{Path: "/v2/models/id_fp32/generate", Body: `{"INPUT0":1}`}, {Path: "/v2/models/nope/generate", Body: `{"INPUT0":1}`}} {
		r.Name, r.Method = "live POST "+r.Path+" "+r.Body, "POST"
		if strings.HasSuffix(r.Path, "config") {
			r.Method = "GET"
		}
		requests = append(requests, r)
	}
	for _, r := range requests {
		t.Run(r.Name, func(t *testing.T) { require.Equal(t, send(t, *liveHTTP, r), send(t, address, r)) })
	}
}

var longNumber = regexp.MustCompile(`[0-9]{5}`)

// TestMutationsAgainstTriton compares the answers to damaged requests: mostly the texts and offsets of syntax errors.
func TestMutationsAgainstTriton(t *testing.T) {
	if *liveHTTP == "" {
		t.Skip("set -triton-http and -triton-grpc to compare with a running server")
	}
	conn, err := grpc.NewClient(*liveGRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	l := live{conn, tritonpb.NewGRPCInferenceServiceClient(conn)}
	address := serve(t, front.Options{Inferer: l, Picker: l, Endpoints: nowhere{}})
	seeds := []string{
		`{"id":"a\u00e9\n","parameters":{"timeout":100,"x":-1.5e3,"y":[true,false,null]},"inputs":[{"name":"INPUT0","shape":[1,3],"datatype":"FP32","data":[[1,-2.5],[3e-2]]}],"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]}`,
		`{"inputs":[{"name":"INPUT0","shape":[1,2],"datatype":"FP32","data":[NaN,-Infinity]}] , "x" : {"a":"\ud83d\ude00"}}`,
	}
	random := rand.New(rand.NewPCG(uint64(*mutations), 2))
	alphabet := []string{"[", "]", "{", "}", ",", ":", `"`, `\`, "1", "-", ".", "e", "N", "I", "nul", " ", "\n", "\\u", "é", "true", "\x01", "a"}
	for range *mutations {
		body := seeds[random.IntN(len(seeds))]
		for range 1 + random.IntN(2) {
			at := random.IntN(len(body))
			switch random.IntN(3) {
			case 0:
				body = body[:at] + body[at+1:]
			case 1:
				body = body[:at] + alphabet[random.IntN(len(alphabet))] + body[at:]
			default:
				body = body[:at] + alphabet[random.IntN(len(alphabet))] + body[at+1:]
			}
		}
		if longNumber.MatchString(body) { // a shape that large crashes servers
			continue
		}
		r := request{Method: "POST", Path: "/v2/models/id_fp32/infer", Body: body}
		require.Equal(t, send(t, *liveHTTP, r), send(t, address, r), body)
	}
}

var mutations = flag.Int("mutations", 2000, "how many damaged requests to compare")
