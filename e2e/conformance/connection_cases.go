// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
)

// wire is one connection to the HTTP address, on which a case writes what it likes.
type wire struct {
	*Env
	conn net.Conn
	in   *bufio.Reader
}

func (e *Env) wire() *wire {
	e.Helper()
	conn, err := (&net.Dialer{}).DialContext(e.ctx(), "tcp", e.Target.HTTP)
	require.NoError(e, err)
	e.Cleanup(func() { _ = conn.Close() }) // the server may have closed it before
	require.NoError(e, conn.SetDeadline(time.Now().Add(callTimeout)))
	return &wire{e, conn, bufio.NewReader(conn)}
}

// send writes a piece. A real server garbles a request line that comes in two.
func (w *wire) send(piece string) {
	w.Helper()
	_, err := io.WriteString(w.conn, piece)
	require.NoError(w, err)
}

// wireReply is an answer with what it says about the connection.
type wireReply struct {
	reply
	proto  string
	closes bool
}

// answer reads the next answer.
func (w *wire) answer() wireReply {
	w.Helper()
	r, err := http.ReadResponse(w.in, nil)
	require.NoError(w, err)
	body, err := io.ReadAll(r.Body)
	require.NoError(w, err)
	require.NoError(w, r.Body.Close())
	return wireReply{reply{status: r.StatusCode, header: r.Header, body: string(body)}, r.Proto, r.Close}
}

// want reads the next answer and compares it as wantHTTP does.
func (w *wire) want(status int, contentType, body string) wireReply {
	w.Helper()
	got := w.answer()
	w.wantHTTP(got.reply, status, contentType, body)
	return got
}

// echoed wants the answer to inferring.
func (w *wire) echoed() wireReply {
	w.Helper()
	return w.want(200, jsonType, echoJSON)
}

// open wants the connection to be good for another request.
func (w *wire) open() {
	w.Helper()
	w.send(requestText("GET", "/v2/health/live", ""))
	w.want(200, textPlain, "")
}

// closed wants the server to have closed the connection.
func (w *wire) closed() {
	w.Helper()
	_, err := w.in.ReadByte()
	require.ErrorIs(w, err, io.EOF)
}

// requestText is a request as it is on the wire. Headers are name, value, name, value.
func requestText(method, path, body string, headers ...string) string {
	return textOfVersion("1.1", method, path, body, headers...)
}

func textOfVersion(version, method, path, body string, headers ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/%s\r\nHost: triton\r\n", method, path, version)
	for i := 0; i+1 < len(headers); i += 2 {
		fmt.Fprintf(&b, "%s: %s\r\n", headers[i], headers[i+1])
	}
	if body != "" {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(body))
	}
	return b.String() + "\r\n" + body
}

// inferring is a request of the identity model.
func inferring(headers ...string) string {
	return requestText("POST", inferPath("identity"), body(oneInput, ""), headers...)
}

// chunks is a request whose body comes in chunks of at most size bytes.
func chunks(path, body string, size int, headers ...string) string {
	var b strings.Builder
	b.WriteString(requestText("POST", path, "", append(headers, "Transfer-Encoding", "chunked")...))
	for piece := range slices.Chunk([]byte(body), size) {
		fmt.Fprintf(&b, "%x\r\n%s\r\n", len(piece), piece)
	}
	return b.String() + "0\r\n\r\n"
}

// headerNames are the names of an answer's headers, sorted.
func headerNames(r reply) []string { return slices.Sorted(maps.Keys(r.header)) }

// connectionCases are HTTP itself: bodies in chunks, connections that stay and that go, methods, headers.
func connectionCases() []Case {
	return slices.Concat(chunkedCases(), keepAliveCases(), methodCases(), headerCases())
}

func chunkedCases() []Case {
	plain := body(oneInput, "")
	cases := make([]Case, 0, 16)
	for _, size := range []int{1, 7, 1000} {
		cases = append(cases, Case{fmt.Sprintf("connection/chunks of %d bytes", size), func(e *Env) {
			w := e.wire()
			w.send(chunks(inferPath("identity"), plain, size))
			w.echoed()
		}})
	}
	return append(cases,
		Case{"connection/chunks in several segments", func(e *Env) {
			w := e.wire()
			text := chunks(inferPath("identity"), plain, 20)
			head := strings.Index(text, "\r\n\r\n") + 4
			for _, piece := range []string{text[:head], text[head : head+3], text[head+3 : head+40], text[head+40:]} {
				w.send(piece)
				time.Sleep(10 * time.Millisecond)
			}
			w.echoed()
		}},
		Case{"connection/chunks with a trailer", func(e *Env) {
			w := e.wire()
			w.send(strings.TrimSuffix(chunks(inferPath("identity"), plain, 50), "\r\n") + "X-Sum: 1\r\n\r\n")
			w.echoed()
		}},
		Case{"connection/no chunks at all are no body", func(e *Env) {
			w := e.wire()
			w.send(chunks(inferPath("identity"), "", 1))
			w.want(200, jsonType, `{"model_name":"identity","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"FP32","shape":[1,0],"parameters":{"binary_data_size":0}}]}`)
		}},
		Case{"connection/chunks of binary data", func(e *Env) {
			head := body(binaryInput("8"), "")
			w := e.wire()
			w.send(chunks(inferPath("identity"), head+string(fp32(1, 2.5)), 30, headerLength, strconv.Itoa(len(head))))
			w.echoed()
		}},
		Case{"connection/chunks of a compressed body", func(e *Env) {
			w := e.wire()
			w.send(chunks(inferPath("identity"), compress("gzip", plain), 30, "Content-Encoding", "gzip"))
			w.echoed()
		}},
		Case{"connection/chunks of a refused body", func(e *Env) {
			w := e.wire()
			w.send(chunks(inferPath("identity"), "{x", 1))
			w.want(500, jsonType, errorJSON("failed to parse the request JSON buffer: Missing a name for object member. at 1"))
		}},
		Case{"connection/chunks of an order", func(e *Env) {
			w := e.wire()
			w.send(chunks("/v2/repository/index", `{"ready":3}`, 4))
			w.want(500, jsonType, errorJSON("attempt to access JSON non-boolean as boolean"))
		}},
		Case{"connection/chunks to generate", func(e *Env) {
			w := e.wire()
			w.send(chunks(generatePath("string"), `{"INPUT0":"ab"}`, 4))
			w.want(200, jsonType, `{"OUTPUT0":"AB","model_name":"string","model_version":"1"}`)
		}},
		Case{"connection/it stays open after chunks", func(e *Env) {
			w := e.wire()
			w.send(chunks(inferPath("identity"), plain, 50))
			require.False(e, w.echoed().closes, "the answer says that the connection closes")
			w.open()
		}},
		Case{"connection/chunks that are none", func(e *Env) {
			w := e.wire()
			w.send(requestText("POST", inferPath("identity"), "", "Transfer-Encoding", "chunked") + "zz\r\nab\r\n0\r\n\r\n")
			if _, err := w.in.Peek(1); err == nil { // a real server closes without an answer
				require.Equal(e, 400, w.answer().status)
			}
			w.closed()
		}},
	)
}

func keepAliveCases() []Case {
	return []Case{
		{"connection/one for all requests, good and bad", func(e *Env) {
			w := e.wire()
			for _, c := range []struct {
				text        string
				status      int
				contentType string
			}{
				{inferring(), 200, jsonType},
				{requestText("GET", "/v2/health/ready", ""), 200, textPlain},
				{requestText("POST", inferPath("identity"), "{x"), 500, jsonType},
				{requestText("POST", inferPath("nope"), "{}"), 404, textPlain},
				{requestText("GET", "/v1", ""), 404, textPlain},
				{requestText("GET", inferPath("identity"), ""), 405, textPlain},
				{requestText("POST", inferPath("error"), body(in("[1,2]", "[-1,2]"), "")), 500, textPlain},
				{requestText("POST", generatePath("string"), `{"INPUT0":"ab"}`), 200, jsonType},
				{requestText("POST", generatePath("string")+"_stream", `{"INPUT0":"ab"}`), 200, eventStream},
				{requestText("GET", "/v2/models/identity/stats", ""), 200, jsonType},
				{requestText("POST", "/v2/repository/index", ""), 200, jsonType},
				{requestText("GET", "/v2/systemsharedmemory/status", ""), 200, jsonType},
				{requestText("POST", inferPath("identity"), ""), 200, jsonType},
				{inferring(), 200, jsonType},
			} {
				w.send(c.text)
				got := w.answer()
				line, _, _ := strings.Cut(c.text, "\r\n")
				require.Equal(e, c.status, got.status, "%s: %s", line, got.body)
				require.Equal(e, c.contentType, got.header.Get("Content-Type"), line)
				require.False(e, got.closes, line)
			}
		}},
		{"connection/closed when asked to", func(e *Env) {
			for _, text := range []string{inferring("Connection", "close"), requestText("GET", "/v2/health/live", "", "Connection", "close"), requestText("GET", "/v1", "", "Connection", "close"),
				requestText("POST", generatePath("string"), `{"INPUT0":"ab"}`, "Connection", "close")} {
				w := e.wire()
				w.send(text)
				got := w.answer()
				require.True(e, got.closes, "the answer says so")
				w.closed()
			}
		}},
		{"connection/kept when asked to", func(e *Env) {
			w := e.wire()
			w.send(inferring("Connection", "keep-alive"))
			require.False(e, w.echoed().closes)
			w.open()
		}},
		{"connection/HTTP 1.0 closes", func(e *Env) {
			w := e.wire()
			w.send(textOfVersion("1.0", "POST", inferPath("identity"), body(oneInput, "")))
			require.Equal(e, "HTTP/1.0", w.echoed().proto)
			w.closed()
		}},
		{"connection/HTTP 1.0 stays when asked to", func(e *Env) {
			w := e.wire()
			w.send(textOfVersion("1.0", "POST", inferPath("identity"), body(oneInput, ""), "Connection", "keep-alive"))
			require.Equal(e, "keep-alive", w.echoed().header.Get("Connection"))
			w.open()
		}},
		{"connection/two requests at once", func(e *Env) {
			w := e.wire()
			second := strings.Replace(body(oneInput, ""), "2.5", "4", 1)
			w.send(inferring() + requestText("POST", inferPath("identity"), second))
			w.echoed()
			w.want(200, jsonType, strings.Replace(echoJSON, "2.5", "4.0", 1))
		}},
		{"connection/two requests at once, the first one slow", func(e *Env) {
			w := e.wire()
			w.send(requestText("POST", inferPath("pause"), body(in("[1,1]", "[1]"), "")) + inferring())
			w.want(200, jsonType, `{"model_name":"pause","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"FP32","shape":[1,1],"data":[1.0]}]}`)
			w.echoed()
		}},
		{"connection/a body in several segments", func(e *Env) {
			w := e.wire()
			text := inferring()
			for _, piece := range []string{text[:len(text)-40], text[len(text)-40 : len(text)-1], text[len(text)-1:]} {
				w.send(piece)
				time.Sleep(10 * time.Millisecond)
			}
			w.echoed()
			w.open()
		}},
		{"connection/a client that has said all", func(e *Env) {
			w := e.wire()
			w.send(inferring())
			require.NoError(e, w.conn.(*net.TCPConn).CloseWrite())
			w.echoed()
			w.closed()
		}},
		{"connection/a client that goes in the middle of a body", func(e *Env) {
			w := e.wire()
			text := inferring()
			w.send(text[:len(text)-10])
			require.NoError(e, w.conn.Close())
			e.infer(identity())
		}},
		{"connection/the body is asked for", func(e *Env) {
			for _, c := range []struct {
				path, body string
				status     int
				want       string
			}{
				{inferPath("identity"), body(oneInput, ""), 200, echoJSON},
				{inferPath("identity"), "{x", 500, errorJSON("failed to parse the request JSON buffer: Missing a name for object member. at 1")},
				{generatePath("string"), `{"INPUT0":"ab"}`, 200, `{"OUTPUT0":"AB","model_name":"string","model_version":"1"}`},
				{"/v2/repository/index", `{"ready":3}`, 500, errorJSON("attempt to access JSON non-boolean as boolean")},
			} {
				w := e.wire()
				text := requestText("POST", c.path, c.body, "Expect", "100-continue")
				w.send(strings.TrimSuffix(text, c.body))
				got := w.answer()
				require.Equal(e, http.StatusContinue, got.status)
				w.send(c.body)
				w.want(c.status, jsonType, c.want)
			}
		}},
		{"connection/the body comes before it is asked for", func(e *Env) {
			w := e.wire()
			w.send(inferring("Expect", "100-continue"))
			got := w.answer()
			if got.status == http.StatusContinue {
				got = w.answer()
			}
			w.wantHTTP(got.reply, 200, jsonType, echoJSON)
		}},
		{"connection/an absolute target", func(e *Env) {
			w := e.wire()
			w.send(requestText("GET", "http://triton/v2/models/identity/ready", ""))
			w.want(200, textPlain, "")
		}},
		{"connection/the body of a question is nobody's", func(e *Env) {
			e.wantHTTP(e.call("GET", "/v2/models/identity/ready", `{"x":1}`), 200, textPlain, "")
			e.wantHTTP(e.call("GET", "/v2/models/nope/config", `{x`), 404, jsonType, errorJSON(noSuchModel))
		}},
	}
}

func methodCases() []Case {
	cases := make([]Case, 0, 16)
	for _, method := range []string{"HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "PROPFIND", "NONSENSE"} {
		cases = append(cases, Case{"connection/method " + method, func(e *Env) {
			const notAllowed = `{"error":"Method Not Allowed"}`
			for _, c := range []struct {
				path        string
				status      int
				contentType string
				want        string
			}{
				{inferPath("identity"), 405, textPlain, notAllowed}, {"/v2/health/ready", 405, textPlain, notAllowed}, {"/v2/models/identity/ready", 405, textPlain, notAllowed},
				{"/v2", 405, jsonType, notAllowed}, {"/v2/models/identity", 405, jsonType, notAllowed}, {"/v2/models/stats", 405, jsonType, notAllowed},
				{"/v2/repository/index", 405, jsonType, notAllowed}, {"/v2/logging", 405, jsonType, notAllowed}, {generatePath("string"), 405, jsonType, notAllowed},
				{"/v2/systemsharedmemory/status", 405, jsonType, notAllowed}, {"/nope", 404, textPlain, notFound},
			} {
				got := e.call(method, c.path, "")
				require.Equal(e, strconv.Itoa(len(c.want)), got.header.Get("Content-Length"), c.path)
				if method == "HEAD" { // package net/http does not show a body, and Conch sends none
					c.want = ""
				}
				e.wantHTTP(got, c.status, c.contentType, c.want)
			}
		}})
	}
	return cases
}

func headerCases() []Case {
	usual := []string{"Content-Length", "Content-Type"}
	wanted := `,"outputs":[{"name":"OUTPUT0","parameters":{"binary_data":true}}]`
	cases := []Case{
		{"connection/headers of answers", func(e *Env) {
			for _, c := range []struct {
				method, path, body string
				headers            []string
				names              []string
			}{
				{"POST", inferPath("identity"), body(oneInput, ""), nil, usual},
				{"POST", inferPath("identity"), "{x", nil, usual},
				{"POST", inferPath("nope"), "{}", nil, usual},
				{"POST", inferPath("identity"), body(oneInput, wanted), nil, append(slices.Clone(usual), headerLength)},
				{"POST", inferPath("identity"), body(oneInput, ""), []string{"Accept-Encoding", "gzip"}, []string{"Content-Encoding", "Content-Length", "Content-Type"}},
				{"GET", "/v2", "", nil, usual}, {"GET", "/v2/health/live", "", nil, usual}, {"GET", "/v1", "", nil, usual},
				{"GET", "/v2/models/identity/config", "", nil, usual}, {"GET", "/v2/models/stats", "", nil, usual}, {"GET", "/v2/logging", "", nil, usual},
				{"POST", "/v2/repository/index", "", nil, usual}, {"POST", generatePath("string"), `{"INPUT0":"ab"}`, nil, []string{"Content-Type"}}, // in chunks
			} {
				got := e.call(c.method, c.path, c.body, c.headers...)
				got.header.Del("Connection") // the caller asked for it to close
				require.Equal(e, c.names, headerNames(got), "%s %s", c.method, c.path)
			}
		}},
	}
	for _, format := range []string{"text", "json", "TEXT", "xml", ""} {
		cases = append(cases, Case{fmt.Sprintf("connection/load metrics as %q: none without GPUs", format), func(e *Env) {
			got := e.call("POST", inferPath("identity"), body(oneInput, ""), "Endpoint-Load-Metrics-Format", format)
			got.header.Del("Connection")
			require.Equal(e, usual, headerNames(got))
			e.wantHTTP(got, 200, jsonType, echoJSON)
			e.wantExactly(e.call("POST", generatePath("string"), `{"INPUT0":"ab"}`, "Endpoint-Load-Metrics-Format", format), 200, jsonType, `{"OUTPUT0":"AB","model_name":"string","model_version":"1"}`)
		}})
	}
	return cases
}
