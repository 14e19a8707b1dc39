// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bufio"
	"bytes"
	nethttp "net/http"
	"testing"
)

// BenchmarkHead reads the head of Triton's Python client: here, where it is another than the last, and by net/http's parser. One that is the last again is not
// read.
func BenchmarkHead(b *testing.B) {
	const text = "POST /v2/models/m/infer HTTP/1.1\r\nuser-agent: python/gevent-http-client-2.0.2\r\ninference-header-content-length: 135\r\nhost: 127.0.0.1:8000\r\ncontent-length: 143\r\n\r\n"
	b.Run("own", func(b *testing.B) {
		var h head
		data := []byte(text)
		b.ReportAllocs()
		for b.Loop() {
			if h.read(data, func(string) bool { return true }) != plain {
				b.Fatal("it is not plain")
			}
			h.form(string(data[:h.size]), "")
		}
	})
	b.Run("net", func(b *testing.B) {
		data := []byte(text)
		from, buffered := bytes.NewReader(data), bufio.NewReader(nil)
		b.ReportAllocs()
		for b.Loop() {
			from.Reset(data)
			buffered.Reset(from)
			if _, err := nethttp.ReadRequest(buffered); err != nil {
				b.Fatal(err)
			}
		}
	})
}
