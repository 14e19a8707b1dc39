// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/protobuf/proto"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// bytesCases are calls of gRPC with messages and deadlines that a generated client does not send, or not so that the server's own words are seen.
func bytesCases() []Case {
	const field = "\x0a\x05id" // a string of five bytes, of which two are there
	cases := make([]Case, 0, 64)
	for _, method := range []string{
		pb.GRPCInferenceService_ServerLive_FullMethodName, pb.GRPCInferenceService_ServerMetadata_FullMethodName, pb.GRPCInferenceService_ModelReady_FullMethodName,
		pb.GRPCInferenceService_ModelConfig_FullMethodName, pb.GRPCInferenceService_ModelStatistics_FullMethodName, pb.GRPCInferenceService_RepositoryIndex_FullMethodName,
		pb.GRPCInferenceService_RepositoryModelLoad_FullMethodName, pb.GRPCInferenceService_SystemSharedMemoryStatus_FullMethodName,
		pb.GRPCInferenceService_TraceSetting_FullMethodName, pb.GRPCInferenceService_ModelInfer_FullMethodName, pb.GRPCInferenceService_ModelStreamInfer_FullMethodName,
		"/grpc.health.v1.Health/Check",
	} {
		name := method[strings.LastIndexByte(method, '/')+1:]
		for what, body := range map[string]string{"is cut": field, "is no protobuf": "\xff\xff\xff\xff"} {
			cases = append(cases, Case{"bytes/" + name + " of a message that " + what, func(e *Env) {
				want := "13: Unable to parse request"
				if method == pb.GRPCInferenceService_ModelStreamInfer_FullMethodName {
					want = "0: " // as after the client's last message
				}
				require.Equal(e, want, e.end(method, "", []byte(body)))
			}})
		}
	}
	pause := func(ms ...int32) []byte {
		delays := make([]int32, len(ms))
		body, err := proto.Marshal(repeat(ms, append(delays[:0:0], ms...)))
		if err != nil {
			panic(err)
		}
		return body
	}
	for what, message := range map[string][]byte{"": pause(2000), " without a request": nil} {
		cases = append(cases, Case{"bytes/a stream past its deadline" + what, func(e *Env) {
			// Nobody promises the text: on a busy machine the transport may reset the call before the answer is out.
			said := ""
			for range 20 {
				if said = e.end(pb.GRPCInferenceService_ModelStreamInfer_FullMethodName, "200m", message); said == "4: Deadline Exceeded" {
					return
				}
			}
			require.Equal(e, "4: Deadline Exceeded", said)
		}})
	}
	return cases
}

// end makes a call of one message, of none if it is nil, and returns the status and the text that the server ends it with, or the error of the
// connection. The client has no deadline of its own. A call without a message stays open.
func (e *Env) end(method, timeout string, message []byte) string {
	e.Helper()
	if e.Target.Name == "minitriton" && !strings.HasSuffix(method, "/ModelStreamInfer") || e.Target.Name == "minitriton" && timeout != "" {
		e.Skip("grpc-go, which minitriton is made of, has words of its own")
	}
	transport := &http2.Transport{AllowHTTP: true, DialTLSContext: func(ctx context.Context, network, address string, _ *tls.Config) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}}
	defer transport.CloseIdleConnections()
	open, last := io.Pipe()
	defer func() { _ = last.Close() }()
	body := io.Reader(open)
	if message != nil {
		body = bytes.NewReader(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...))
	}
	r, err := http.NewRequestWithContext(e.ctx(), http.MethodPost, "http://"+e.Target.GRPC+method, body)
	require.NoError(e, err)
	r.Header.Set("content-type", "application/grpc")
	r.Header.Set("te", "trailers")
	if timeout != "" {
		r.Header.Set("grpc-timeout", timeout)
	}
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return err.Error()
	}
	defer func() { require.NoError(e, answer.Body.Close()) }()
	if _, err = io.Copy(io.Discard, answer.Body); err != nil {
		return err.Error()
	}
	from := answer.Trailer
	if answer.Header.Get("grpc-status") != "" {
		from = answer.Header
	}
	return from.Get("grpc-status") + ": " + from.Get("grpc-message")
}
