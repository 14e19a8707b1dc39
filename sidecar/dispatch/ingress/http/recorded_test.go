// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"context"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"os"
	"sort"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	front "github.com/conch-serving/conch/sidecar/dispatch/ingress/http"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// record has the address of a Triton HTTP endpoint that serves the models of models_test.go; its answers to
// testdata/requests.json become testdata/triton-2.51.json.
var record = flag.String("record", "", "record the answers of the Triton server at this address")

type request struct {
	Name   string            `json:"name"`
	Method string            `json:"method"`
	Path   string            `json:"path"`
	Header map[string]string `json:"header"`
	Body   string            `json:"body"`
	Base64 string            `json:"base64"`
}

// answer is the part of an answer that must be the same. A compressed body is compared uncompressed.
type answer struct {
	Code         int    `json:"code"`
	ContentType  string `json:"content_type,omitempty"`
	HeaderLength string `json:"header_length,omitempty"`
	Encoding     string `json:"encoding,omitempty"`
	Accept       string `json:"accept,omitempty"`
	Body         string `json:"body,omitempty"`
	Base64       string `json:"base64,omitempty"`
}

func (a answer) text() string {
	if a.Base64 != "" {
		b, _ := base64.StdEncoding.DecodeString(a.Base64)
		return string(b)
	}
	return a.Body
}

func loadRequests(t *testing.T) []request {
	t.Helper()
	text, err := os.ReadFile("testdata/requests.json")
	require.NoError(t, err)
	var file struct {
		Cases []request `json:"cases"`
	}
	require.NoError(t, json.Unmarshal(text, &file))
	return file.Cases
}

// bytes are the request's on the wire.
func (r request) bytes(t testing.TB) []byte {
	body := []byte(r.Body)
	var err error
	if r.Base64 != "" {
		body, err = base64.StdEncoding.DecodeString(r.Base64)
		require.NoError(t, err)
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s %s HTTP/1.1\r\nHost: x\r\n", r.Method, r.Path)
	names := make([]string, 0, len(r.Header))
	for name := range r.Header {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		fmt.Fprintf(&out, "%s: %s\r\n", name, r.Header[name])
	}
	if r.Method != nethttp.MethodGet || len(body) > 0 {
		fmt.Fprintf(&out, "Content-Length: %d\r\n", len(body))
	}
	out.WriteString("\r\n")
	out.Write(body)
	return out.Bytes()
}

// send writes a request byte for byte, which net/http's client would normalise.
func send(t *testing.T, address string, r request) answer {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write(r.bytes(t))
	require.NoError(t, err)
	response, err := nethttp.ReadResponse(bufio.NewReader(conn), &nethttp.Request{Method: r.Method})
	require.NoError(t, err, r.Name)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	require.NoError(t, err, r.Name)
	a := answer{Code: response.StatusCode, ContentType: response.Header.Get("Content-Type"),
		HeaderLength: response.Header.Get("Inference-Header-Content-Length"),
		Encoding:     response.Header.Get("Content-Encoding"), Accept: response.Header.Get("Accept-Encoding")}
	switch a.Encoding {
	case "gzip":
		z, err := gzip.NewReader(bytes.NewReader(text))
		require.NoError(t, err)
		text, err = io.ReadAll(z)
		require.NoError(t, err)
	case "deflate":
		z, err := zlib.NewReader(bytes.NewReader(text))
		require.NoError(t, err)
		text, err = io.ReadAll(z)
		require.NoError(t, err)
	}
	if utf8.Valid(text) && !bytes.ContainsFunc(text, func(r rune) bool { return r < 0x20 }) {
		a.Body = string(text)
	} else {
		a.Base64 = base64.StdEncoding.EncodeToString(text)
	}
	return a
}

func loadAnswers(t *testing.T) map[string]answer {
	t.Helper()
	answers := make(map[string]answer)
	text, err := os.ReadFile("testdata/triton-2.51.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &answers))
	return answers
}

func TestRecord(t *testing.T) {
	if *record == "" {
		t.Skip("set -record to the address of a Triton server to record its answers")
	}
	answers := make(map[string]answer)
	for _, r := range loadRequests(t) {
		answers[r.Name] = send(t, *record, r)
	}
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	require.NoError(t, e.Encode(answers))
	require.NoError(t, os.WriteFile("testdata/triton-2.51.json", out.Bytes(), 0o644))
}

// serverWords are the beginnings of the errors that a Triton server finds after it has read a request. The front must
// therefore let such requests through.
var serverWords = []string{"[request id:", "unexpected inference ", "bad ", "Unable to find shared memory", "sending "}

func fromServer(message string) bool {
	for _, w := range serverWords {
		if strings.HasPrefix(message, w) {
			return true
		}
	}
	return false
}

// script is an Inferer that computes what the models compute, or fails as the recorded server did.
type script struct {
	t        *testing.T
	recorded answer
	reached  bool
}

// Begin implements front.Inferer.
func (s *script) Begin(ctx context.Context, t *wire.Turn, r *batch.Request, then func(*wire.Turn, *batch.Response, error)) {
	inferFunc(s.infer).Begin(ctx, t, r, then)
}

func (s *script) infer(_ context.Context, r *batch.Request) (*batch.Response, error) {
	s.reached = true
	if s.recorded.Code != 200 {
		var body struct {
			Error string `json:"error"`
		}
		require.NoError(s.t, json.Unmarshal([]byte(s.recorded.text()), &body))
		if strings.HasPrefix(body.Error, "sending ") { // found when the answer is rendered
			return compute(s.t, r), nil
		}
		code := codes.InvalidArgument
		if s.recorded.Code == 404 {
			code = codes.NotFound
		}
		return nil, status.Error(code, body.Error)
	}
	return compute(s.t, r), nil
}

// TestRecorded gives the requests to the front and compares its answers, to the byte, with those of a real server.
func TestRecorded(t *testing.T) {
	answers := loadAnswers(t)
	s := &script{t: t}
	h := front.New(front.Options{Inferer: s, Catalog: catalog{}, Picker: nowhere{}, Endpoints: nowhere{}, Aggregator: aggregator{}})
	defer h.Close()
	address := listen(t, h, true)
	for _, r := range loadRequests(t) {
		t.Run(r.Name, func(t *testing.T) {
			want, ok := answers[r.Name]
			require.True(t, ok, "no answer is recorded; run with -record")
			if want.Code == 200 && strings.Contains(r.Body, `"classification":`) && !strings.Contains(r.Body, `"classification":0`) {
				t.Skip("the server computes classes")
			}
			if strings.Contains(r.Path, "/config") && want.Code == 200 || r.Path == "/v2/logging" {
				t.Skip("the aggregate's and the server's own answers")
			}
			s.t, s.recorded, s.reached = t, want, false
			got := send(t, address, r)
			require.Equal(t, want, got)
			if want.Code != 200 {
				var body struct {
					Error string `json:"error"`
				}
				if json.Unmarshal([]byte(want.text()), &body) == nil && s.reached {
					require.True(t, fromServer(body.Error), "this error must be found before a server is asked: %s", body.Error)
				}
			}
		})
	}
}

// TestWireAgrees: on the connections of package http1 the front answers as it does on net/http alone, to the byte, header and order of headers included, each
// request on a connection of its own and all that leave it open on one.
func TestWireAgrees(t *testing.T) {
	h := newFront(inferFunc(func(_ context.Context, r *batch.Request) (*batch.Response, error) {
		for i := range r.Inputs {
			if r.Model == "simple" && r.Inputs[i].Data.Len() != 64 {
				return nil, status.Error(codes.InvalidArgument, "[request id: x] of another size")
			}
		}
		if n := len(r.Inputs); n != 1 && (n != 2 || r.Model != "simple") {
			return nil, status.Errorf(codes.InvalidArgument, "[request id: x] %d inputs", n)
		}
		return compute(t, r), nil
	}))
	defer h.Close()
	old, own := listen(t, h, false), listen(t, h, true)
	converse := func(address string, text []byte) string {
		conn, err := net.Dial("tcp", address)
		require.NoError(t, err)
		defer conn.Close()
		go func() {
			_, _ = conn.Write(text)
			_ = conn.(*net.TCPConn).CloseWrite()
		}()
		all, _ := io.ReadAll(conn) // a reset ends it like a close
		return string(all)
	}
	var kept []byte
	for _, r := range loadRequests(t) {
		text := r.bytes(t)
		want := converse(old, text)
		require.Equal(t, want, converse(own, text), r.Name)
		if head, _, _ := strings.Cut(want, "\r\n\r\n"); !strings.Contains(head, "Connection: close") && len(text) < 100<<10 {
			kept = append(kept, text...)
		}
	}
	require.NotEmpty(t, kept)
	require.Equal(t, converse(old, kept), converse(own, kept))
}
