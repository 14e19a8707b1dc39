// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bufio"
	"bytes"
	"io"
	nethttp "net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http/httpguts"
)

// FuzzHead: a head that is read here is the same to net/http, which also finds its end, and the end of its body, at the same byte. Where more bytes are waited
// for, net/http waits, too.
func FuzzHead(f *testing.F) {
	const line, host = "POST /v2/models/m/infer HTTP/1.1\r\n", "Host: a\r\n"
	for _, seed := range []string{
		line + host + "Content-Length: 3\r\n\r\nabc", line + host + "\r\n", "GET /v2/health/live HTTP/1.1\r\n" + host + "\r\n",
		line + host + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		line + host + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc", line + host + "Content-Length : 3\r\n\r\nabc",
		line + host + "X: 1\r\n 2\r\nContent-Length: 3\r\n\r\nabc", "POST / HTTP/1.1\nHost: a\n\n", line + host + "X: a\x00\r\n\r\n", line + host + "Content-Length:\t3 \r\n\r\nabc",
		"POST //a/infer HTTP/1.1\r\n" + host + "Content-Length: 0\r\n\r\n", "GET /%zz HTTP/1.1\r\n" + host + "\r\n", "GET /a?b#c HTTP/1.1\r\nhost:[::1]:8000\r\nConnection: keep-alive\r\n\r\n",
		line + host + "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\nAccept: */*\r\naccept-encoding: identity\r\ncontent-length: 10\r\n\r\n0123456789",
		line + host + "Pragma: no-cache\r\nContent-Length: 1\r\n\r\na",
	} {
		f.Add([]byte(seed))
	}
	var h head
	f.Fuzz(func(t *testing.T, data []byte) {
		v := h.read(data, func(path string) bool { return strings.HasSuffix(path, "/infer") })
		if v == unbounded {
			return
		}
		if v == incomplete {
			require.Panics(t, func() { _, _ = nethttp.ReadRequest(bufio.NewReader(io.MultiReader(bytes.NewReader(data), waits{}))) }, "net/http does not wait for more")
			return
		}
		from := bufio.NewReaderSize(bytes.NewReader(data), maxHead+1)
		r, err := nethttp.ReadRequest(from)
		if v == bounded && err != nil {
			return // a target that is no URL: net/http ends the connection
		}
		require.NoError(t, err)
		require.Empty(t, r.TransferEncoding)
		require.Equal(t, h.length, r.ContentLength)
		require.False(t, r.Close)
		require.Equal(t, len(data)-h.size, from.Buffered(), "the body begins elsewhere")
		body, _ := io.ReadAll(r.Body)
		require.Equal(t, min(h.length, int64(len(data)-h.size)), int64(len(body)))
		if v == bounded {
			return
		}
		own := h.form(string(data[:h.size]), "")
		require.Equal(t, []any{r.Method, r.RequestURI, r.URL.Path, r.URL.String(), r.Proto, r.ProtoMajor, r.ProtoMinor, r.Host, r.Header, r.ContentLength},
			[]any{own.Method, own.RequestURI, own.URL.Path, own.URL.String(), own.Proto, own.ProtoMajor, own.ProtoMinor, own.Host, own.Header, own.ContentLength})
		require.True(t, httpguts.ValidHostHeader(own.Host)) // what net/http's server checks besides
		for name, values := range own.Header {
			require.True(t, httpguts.ValidHeaderFieldName(name))
			for _, value := range values {
				require.True(t, httpguts.ValidHeaderFieldValue(value))
			}
		}
	})
}

// TestHeadsAreShort: what is held of a head that does not end is bounded.
func TestHeadsAreShort(t *testing.T) {
	var h head
	data := append([]byte("POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nX: "), make([]byte, maxHead)...)
	for i := range data {
		if data[i] == 0 {
			data[i] = 'a'
		}
	}
	require.Equal(t, incomplete, h.read(data[:maxHead-1], nil))
	require.Equal(t, unbounded, h.read(data[:maxHead], nil))
	require.Equal(t, unbounded, h.read([]byte("GET / HTTP/1.1\r\nHost: a\r\n"+strings.Repeat("X: 1\r\n", maxFields)), nil))
}

// waits is where a reader would wait for more bytes.
type waits struct{}

func (waits) Read([]byte) (int, error) { panic("it waits") }
