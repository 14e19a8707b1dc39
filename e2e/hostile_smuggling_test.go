// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Requests whose length can be read in two ways are refused, or answered with a connection that ends: what may be another request inside
// them is never taken for one.
func TestRequestSmuggling(t *testing.T) {
	t.Parallel()
	b := besiege(t)
	body := `{"id":"` + marker + `","inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2],"data":[1,2]}]}`
	inner := fmt.Sprintf("POST /v2/models/identity/infer HTTP/1.1\r\nHost: c\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	post := func(headers, body string) string {
		return "POST /v2/models/identity/infer HTTP/1.1\r\nHost: c\r\n" + headers + "\r\n" + body
	}
	length := fmt.Sprintf("Content-Length: %d\r\n", len(inner))
	const none, chunked, end = "Content-Length: 0\r\n", "Transfer-Encoding: chunked\r\n", "0\r\n\r\n"
	shapes := map[string]string{
		"two lengths, the longer first":        post(length+none, inner),
		"two lengths, the shorter first":       post(none+length, inner),
		"two lengths on one line":              post(fmt.Sprintf("Content-Length: 0, %d\r\n", len(inner)), inner),
		"a length and chunks":                  post(fmt.Sprintf("Content-Length: %d\r\n", len(end)+len(inner))+chunked, end+inner),
		"chunks and a length":                  post(chunked+fmt.Sprintf("Content-Length: %d\r\n", len(end)), end+inner),
		"chunks twice":                         post(chunked+chunked, end+inner),
		"chunks of chunks":                     post("Transfer-Encoding: chunked, chunked\r\n", end+inner),
		"chunks that are not the last coding":  post("Transfer-Encoding: chunked, identity\r\n"+none, end+inner),
		"a coding that looks like chunks":      post("Transfer-Encoding: xchunked\r\n"+none, end+inner),
		"chunks behind a tab of another kind":  post("Transfer-Encoding: \x0bchunked\r\n"+none, end+inner),
		"a blank before the colon, of chunks":  post("Transfer-Encoding : chunked\r\n"+none, end+inner),
		"a blank before the colon, of lengths": post("Content-Length : 0\r\n"+length, inner),
		"a folded line":                        post("Transfer-Encoding:\r\n chunked\r\n"+none, end+inner),
		"a header name with a NUL":             post("Transfer-Encoding\x00: chunked\r\n"+none, end+inner),
		"a signed length":                      post("Content-Length: +0\r\n", inner),
		"a hexadecimal length":                 post("Content-Length: 0x0\r\n", inner),
		"a negative chunk":                     post(chunked, "-1\r\n"+inner),
		"a chunk size that overflows":          post(chunked, "10000000000000000\r\n"+inner),
		"a chunk size with a blank inside":     post(chunked, "0 0\r\n\r\n"+inner),
		"a bare CR in a chunk's extension":     post(chunked, "0;\r\r\n\r\n"+inner),
		"a trailer that is a length":           post(chunked, "0\r\nContent-Length: 5\r\n\r\n"+inner),
		"chunks in HTTP/1.0":                   strings.Replace(post(chunked+none, end+inner), "HTTP/1.1", "HTTP/1.0", 1),
		"another protocol on the way":          post("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"+none+chunked, end+inner),
	}
	// Go's parser does not say that there was a length beside chunks, and HTTP/1.0 has no chunks: each is one request, and the last one.
	served := []string{"a length and chunks", "chunks and a length", "a folded line", "chunks in HTTP/1.0", "a trailer that is a length", "another protocol on the way"}
	b.attacked(len(shapes)*besideRounds, len(shapes)*besideRounds, func() {
		for _, name := range slices.Sorted(maps.Keys(shapes)) {
			conn := dialTCP(t, b.conch.HTTP)
			_, err := io.WriteString(conn, shapes[name])
			require.NoError(t, err)
			answer := closedWithin(t, conn, time.Minute)
			require.LessOrEqual(t, strings.Count(answer, "HTTP/1."), 1, "%s: two answers: %q", name, answer)
			if !slices.Contains(served, name) {
				require.Regexp(t, `^HTTP/1\.1 (400|501) `, answer, name)
			}
			require.Zero(t, b.taps[0].arrived.Load()+b.taps[1].arrived.Load(), "%s: the inner request was served", name)
		}
	})
}
