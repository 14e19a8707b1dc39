// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton"
	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// Target is a running server that holds the suite's models in its repository.
type Target struct {
	// Name of the target in test names and messages.
	Name string
	// GRPC, HTTP and Metrics are host:port. Without Metrics the metrics are not looked at.
	GRPC, HTTP, Metrics string
	// Pending is the host:port of a metrics page that counts pending requests; Metrics unless given.
	Pending string
	// Gates is Gates of the target's repository.
	Gates string
	// Partitions are the servers that requests are spread over; 0 is one.
	Partitions int
	// Loaded is whether the target serves the suite's models already.
	Loaded bool
	// Load and Unload change what is loaded; by the repository API unless given.
	Load, Unload func(ctx context.Context, model string) error
	// Again says whether the target's server has ended by itself, and if so starts another on the same repository and returns its addresses.
	// Nil for Conch, which starts its servers again itself.
	Again func() (another Target, ended bool)
	// Differences are the cases in which the target may or must answer otherwise. Empty for a target that must answer as Triton in every case.
	Differences []Difference
}

// Case is one thing that a server must do.
type Case struct {
	// Name is GROUP/WHAT. The groups are described in Groups.
	Name string
	Run  func(e *Env)
}

// Env is what a case sees of its target. It is the testing.TB of the case.
type Env struct {
	testing.TB
	Target Target
	Client *triton.Client
	http   *http.Client
}

// callTimeout bounds every call, so that a target that hangs fails its case. It leaves Conch the time to mend a load whose python process
// crashed as it started, as Triton's does now and then on a busy machine: 20 seconds until that is sure, and a start of the server.
const callTimeout = 90 * time.Second

// sharedCases are those that neither change what others see nor count what others do: they run at the same time.
func sharedCases() []Case {
	return slices.Concat(serverCases(), inferCases(), refusedCases(), typedCases(), stringCases(), streamCases(), streamOrderCases(), keepaliveCases(), bytesCases(), httpCases(), jsonCases(),
		jsonRefusedCases(), binaryCases(), encodingCases(), acrossCases(), connectionCases(), reshapeCases(),
		classificationCases(), generateCases(), versionCases(), ensembleCases(), ensembleStepsCases())
}

// aloneCases run one after the other, when nothing else does.
func aloneCases() []Case {
	return slices.Concat(sequenceCases(), sequencesCases(), sequenceIDCases(), controlCases(), statisticsCases(), batchingCases(), formingCases(), queueCases(), settingsCases(),
		metricsCases(), memoryTensorCases(), repositoryCases(), loadCases(), memoryCases(), ensembleRepositoryCases(), ensembleMiddleCases(), ensembleStatisticsCases())
}

// Cases lists the suite.
func Cases() []Case { return slices.Concat(sharedCases(), aloneCases()) }

// ctx bounds one call.
func (e *Env) ctx() context.Context {
	ctx, cancel := context.WithTimeout(e.Context(), callTimeout)
	e.Cleanup(cancel)
	return ctx
}

// infer sends a request and wants an answer.
func (e *Env) infer(r *pb.ModelInferRequest) *pb.ModelInferResponse {
	e.Helper()
	resp, err := e.Client.Stub.ModelInfer(e.ctx(), r)
	require.NoError(e, err)
	return resp
}

// refused wants a gRPC status, code and text.
func (e *Env) refused(err error, code codes.Code, message string) {
	e.Helper()
	s, ok := status.FromError(err)
	require.True(e, ok && err != nil, "want a gRPC status, have %v", err)
	require.Equal(e, code.String()+": "+message, s.Code().String()+": "+s.Message())
}

// reply is an HTTP answer with its body read.
type reply struct {
	status int
	header http.Header
	body   string
}

// call sends an HTTP request to the target. Headers are name, value, name, value.
func (e *Env) call(method, path, body string, headers ...string) reply {
	e.Helper()
	return e.fetch(method, e.Target.HTTP, path, body, headers...)
}

func (e *Env) fetch(method, host, path, body string, headers ...string) reply {
	e.Helper()
	r, err := http.NewRequestWithContext(e.ctx(), method, "http://"+host+"/", strings.NewReader(body))
	require.NoError(e, err)
	r.URL.Opaque = path // sent as it stands
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header[headers[i]] = []string{headers[i+1]}
	}
	resp, err := e.http.Do(r)
	require.NoError(e, err)
	data, err := io.ReadAll(resp.Body)
	require.NoError(e, err)
	require.NoError(e, resp.Body.Close())
	return reply{status: resp.StatusCode, header: resp.Header, body: string(data)}
}

// wantHTTP compares status, media type and body; a body that is JSON is compared as JSON.
func (e *Env) wantHTTP(r reply, status int, contentType, body string) {
	e.Helper()
	require.Equal(e, status, r.status, "status; body %q", r.body)
	require.Equal(e, contentType, r.header.Get("Content-Type"), "Content-Type; body %q", r.body)
	if json.Valid([]byte(body)) {
		require.JSONEq(e, body, r.body)
		return
	}
	require.Equal(e, body, r.body)
}

// errorJSON is Triton's error body.
func errorJSON(message string) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(map[string]string{"error": message}); err != nil {
		panic(err) // a string always encodes
	}
	return strings.TrimSpace(b.String())
}

func compress(encoding, s string) string {
	var b bytes.Buffer
	var w io.WriteCloser = zlib.NewWriter(&b)
	if encoding == "gzip" {
		w = gzip.NewWriter(&b)
	}
	if _, err := io.WriteString(w, s); err != nil {
		panic(err) // a bytes.Buffer takes everything
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.String()
}
