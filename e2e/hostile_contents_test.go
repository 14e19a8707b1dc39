// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/hostile"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// verbatim is a codec for messages that are encoded already, well or badly.
type verbatim struct{}

func (verbatim) Name() string { return "proto" }

func (verbatim) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (verbatim) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// exchange writes a request as it is and reads the answer.
func exchange(t *testing.T, address string, wire []byte) (status int, body string) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	go func() { _, _ = conn.Write(wire) }() // a server that refuses a body need not read it
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(text)
}

// pids are the processes that conch started, by what they run.
func pids(t *testing.T, c *rig.Conch) map[int]string {
	t.Helper()
	all := map[int]string{}
	for _, p := range processesOf(t, c) {
		program, _, _ := strings.Cut(p.command, "\x00")
		all[p.pid] = program
	}
	return all
}

// Every request that is known to kill a server is sent to a real one, through conch, under other clients' load: each is refused, the
// other clients' requests succeed, and the server and the stubs of its models are still the same processes.
func TestHostileContentsHurtNobody(t *testing.T) {
	t.Parallel()
	c := serve(t, rig.ConchOptions{Repository: conformanceModels(t, "identity", "string", "unbatched", "sequence"), GPUs: 1})
	before := pids(t, c)
	require.GreaterOrEqual(t, len(before), 6, "a server, four stubs, a policy: %v", before)
	conn, err := grpc.NewClient(c.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()

	// The others.
	client := tritonpb.NewGRPCInferenceServiceClient(conn)
	business := map[string]*tritonpb.ModelInferRequest{
		"identity":  {Inputs: []*tritonpb.ModelInferRequest_InferInputTensor{rawInput("INPUT0", "FP32", 1, 1)}, RawInputContents: [][]byte{{0, 0, 128, 63}}},
		"string":    {Inputs: []*tritonpb.ModelInferRequest_InferInputTensor{rawInput("INPUT0", "BYTES", 1, 1)}, RawInputContents: [][]byte{{1, 0, 0, 0, 'A'}}},
		"unbatched": {Inputs: []*tritonpb.ModelInferRequest_InferInputTensor{rawInput("INPUT0", "INT32", 1, 2)}, RawInputContents: [][]byte{int32s(1, 2)}},
	}
	ctx, stop := context.WithCancel(t.Context())
	var answered atomic.Int64
	done := make(chan struct{}, len(business))
	for name, request := range business {
		request.ModelName = name
		go func() {
			defer func() { done <- struct{}{} }()
			for ctx.Err() == nil {
				r, err := client.ModelInfer(t.Context(), request)
				if !assert.NoError(t, err) || !assert.Equal(t, request.RawInputContents, r.RawOutputContents) {
					return
				}
				answered.Add(1)
			}
		}()
	}

	for _, call := range hostile.Calls() {
		var out []byte
		err := conn.Invoke(t.Context(), call.Method, &call.Wire, &out, grpc.ForceCodecV2(verbatim{}))
		assert.Equal(t, call.Code, status.Code(err), "%s: %v", call.Name, err)
		assert.ErrorContains(t, err, call.Text, call.Name)
	}
	for _, request := range hostile.HTTPRequests() {
		code, body := exchange(t, c.HTTP, request.Wire)
		assert.Equal(t, request.Status, code, "%s: %s", request.Name, body)
		assert.Contains(t, body, request.Text, request.Name)
	}
	// Half a million chunks of one byte kill a 2.51 that gets them; from conch it gets one body.
	code, body := exchange(t, c.HTTP, hostile.Chunked("/v2/logging", `{"log_info":true`+strings.Repeat(" ", 500_000)+"}"))
	assert.Equal(t, http.StatusOK, code, body)
	// So does a list of a million outputs, which are all the same one.
	many := `{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[1]}],"outputs":[` + strings.Repeat(`{"name":"OUTPUT0"},`, 1_000_000) + `{"name":"OUTPUT0"}]}`
	code, body = exchange(t, c.HTTP, hostile.Post("/v2/models/identity/infer", "", many))
	assert.Equal(t, http.StatusOK, code)
	assert.Contains(t, body, `"data":[1.0]`)

	// A real server crashes on a classification of nothing that comes over HTTP. Over gRPC it answers, and conch sends it so, also once lone requests over HTTP
	// go on to the server's HTTP port.
	for range 30 {
		code, body = exchange(t, c.HTTP, hostile.Post("/v2/models/identity/infer", "", `{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,1],"data":[1]}]}`))
		assert.Equal(t, http.StatusOK, code, body)
		code, body = exchange(t, c.HTTP, hostile.Post("/v2/models/identity/infer", "",
			`{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,0],"data":[]}],"outputs":[{"name":"OUTPUT0","parameters":{"classification":1}}]}`))
		assert.Equal(t, http.StatusOK, code, body)
		assert.Contains(t, body, `{"name":"OUTPUT0","datatype":"BYTES","shape":[1,0],"data":[]}`)
	}

	so := answered.Load()
	require.Eventually(t, func() bool { return answered.Load() > so+30 }, 30*time.Second, 10*time.Millisecond, "the others are served")
	stop()
	for range business {
		<-done
	}
	require.Equal(t, before, pids(t, c), "no process died of it")
	requireAlive(t, c)
	require.Zero(t, scrape(t, c).sum("conch_requests_total", "result=failed"))
}
