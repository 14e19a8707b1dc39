// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http1_test

import (
	"fmt"
	"io"
	nethttp "net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// mirror answers with what the handler is given of a request, so that two answers are equal if their requests were. Fields of the request ask
// for what handlers do otherwise: not to read the body, to close the connection, to answer without a length.
var mirror = nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
	skip := r.Header.Get("X-Skip") != ""
	var body []byte
	var err error
	if !skip {
		body, err = io.ReadAll(r.Body)
	}
	names := make([]string, 0, len(r.Header))
	for name := range r.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	var text strings.Builder
	fmt.Fprintf(&text, "%s %s %s %s host=%q length=%d encoding=%q close=%t error=%v\n", r.Method, r.RequestURI, r.URL.Path, r.Proto, r.Host, r.ContentLength, r.TransferEncoding, r.Close, err)
	for _, name := range names {
		fmt.Fprintf(&text, "%s: %q\n", name, r.Header[name])
	}
	fmt.Fprintf(&text, "%q\n", body)
	h := w.Header()
	h["Date"] = nil
	h["Content-Type"] = []string{"text/plain"}
	if !strings.HasSuffix(r.URL.Path, "/infer") && r.Header.Get("X-Chunked") != "" {
		_, _ = io.WriteString(w, strings.Repeat(text.String(), 100))
		return
	}
	if r.Header.Get("X-Close") != "" {
		h["Connection"] = []string{"close"}
	}
	if n := r.Header.Get("Inference-Header-Content-Length"); n != "" {
		h["Inference-Header-Content-Length"] = []string{n}
	}
	h["Content-Length"] = []string{fmt.Sprint(text.Len())}
	w.WriteHeader(nethttp.StatusOK)
	_, _ = io.WriteString(w, text.String())
})

// TestWhatAttackersSend: requests that two servers could read differently, and everything else that is not plain, have net/http's answers, to the byte. Each
// comes first on a connection, and after a plain request; what is smuggled after it must be read as net/http reads it.
func TestWhatAttackersSend(t *testing.T) {
	const (
		line   = "POST /v2/models/m/infer HTTP/1.1\r\n"
		host   = "Host: a\r\n"
		second = "POST /v2/models/m/infer HTTP/1.1\r\nHost: b\r\nX-Second: 1\r\nContent-Length: 2\r\n\r\nyy"
	)
	cases := map[string]string{
		"plain":                           line + host + "Content-Length: 3\r\n\r\nabc",
		"no length":                       line + host + "\r\n",
		"empty":                           line + host + "Content-Length: 0\r\n\r\n",
		"length and chunked":              line + host + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"chunked and length":              line + host + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"chunked":                         line + host + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"chunked with trailer":            line + host + "Trailer: X\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: 1\r\n\r\n",
		"chunked by another case":         line + host + "transfer-ENCODING: Chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"chunked twice":                   line + host + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"chunked after identity":          line + host + "Transfer-Encoding: identity, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"transfer encoding with a space":  line + host + "Transfer-Encoding : chunked\r\nContent-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"transfer encoding with a tab":    line + host + "Transfer-Encoding:\tchunked\r\nContent-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
		"transfer encoding with a letter": line + host + "Transfer-Encoding: xchunked\r\nContent-Length: 3\r\n\r\nabc",
		"two lengths":                     line + host + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
		"two equal lengths":               line + host + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
		"two lengths in one":              line + host + "Content-Length: 3, 3\r\n\r\nabc",
		"length with a sign":              line + host + "Content-Length: +3\r\n\r\nabc",
		"negative length":                 line + host + "Content-Length: -3\r\n\r\nabc",
		"length in hexadecimal":           line + host + "Content-Length: 0x3\r\n\r\nabc",
		"length with a space":             line + host + "Content-Length: 3 \r\n\r\nabc",
		"length with a space inside":      line + host + "Content-Length: 3 4\r\n\r\nabc",
		"length with underscore":          line + host + "Content-Length: 0_3\r\n\r\nabc",
		"length with zeros":               line + host + "Content-Length: 003\r\n\r\nabc",
		"no length at all":                line + host + "Content-Length:\r\n\r\nabc",
		"huge length":                     line + host + "Content-Length: 99999999999999999999999\r\n\r\nabc",
		"space before the colon":          line + host + "Content-Length : 3\r\n\r\nabc",
		"tab before the colon":            line + host + "Content-Length\t: 3\r\n\r\nabc",
		"space before a name":             line + host + " Content-Length: 3\r\n\r\nabc",
		"folded":                          line + host + "X: 1\r\n 2\r\nContent-Length: 3\r\n\r\nabc",
		"folded length":                   line + host + "Content-Length:\r\n 3\r\n\r\nabc",
		"folded first":                    line + " Host: a\r\nContent-Length: 3\r\n\r\nabc",
		"bare LF":                         strings.ReplaceAll(line+host+"Content-Length: 3\r\n\r\n", "\r\n", "\n") + "abc",
		"bare LF in one line":             line + "Host: a\nContent-Length: 3\r\n\r\nabc",
		"bare LF at the end":              line + host + "Content-Length: 3\r\n\nabc",
		"bare CR":                         line + host + "X: a\rb\r\nContent-Length: 3\r\n\r\nabc",
		"CR CR LF":                        line + host + "Content-Length: 3\r\r\n\r\nabc",
		"NUL in a value":                  line + host + "X: a\x00b\r\nContent-Length: 3\r\n\r\nabc",
		"NUL in a name":                   line + host + "X\x00: a\r\nContent-Length: 3\r\n\r\nabc",
		"NUL in the path":                 "POST /v2/models/m\x00/infer HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc",
		"beyond ASCII in a value":         line + host + "X: \xc3\xa9\r\nContent-Length: 3\r\n\r\nabc",
		"beyond ASCII in a name":          line + host + "X\xc3\xa9: 1\r\nContent-Length: 3\r\n\r\nabc",
		"no name":                         line + host + ": 1\r\nContent-Length: 3\r\n\r\nabc",
		"no colon":                        line + host + "X\r\nContent-Length: 3\r\n\r\nabc",
		"no host":                         line + "Content-Length: 3\r\n\r\nabc",
		"two hosts":                       line + host + host + "Content-Length: 3\r\n\r\nabc",
		"empty host":                      line + "Host:\r\nContent-Length: 3\r\n\r\nabc",
		"strange host":                    line + "Host: a b\r\nContent-Length: 3\r\n\r\nabc",
		"absolute form":                   "POST http://c/v2/models/m/infer HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc",
		"escaped path":                    "POST /v2/models/%6d/infer HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc",
		"badly escaped path":              "POST /v2/models/%/infer HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc",
		"two slashes":                     "POST //v2/models/m/infer HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc",
		"query":                           "POST /v2/models/m/infer?x=1 HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc",
		"fragment":                        "POST /v2/models/m#/infer HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc",
		"asterisk":                        "POST * HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc",
		"options":                         "OPTIONS * HTTP/1.1\r\n" + host + "\r\n",
		"two spaces":                      "POST  /v2/models/m/infer HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc",
		"space in the path":               "POST /v2/models/m /infer HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc",
		"tab in the line":                 "POST\t/v2/models/m/infer\tHTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc",
		"lower case":                      "post /v2/models/m/infer HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc",
		"HTTP/1.0":                        "POST /v2/models/m/infer HTTP/1.0\r\n" + host + "Content-Length: 3\r\n\r\nabc",
		"HTTP/1.0 kept":                   "POST /v2/models/m/infer HTTP/1.0\r\n" + host + "Connection: keep-alive\r\nContent-Length: 3\r\n\r\nabc",
		"HTTP/1.2":                        "POST /v2/models/m/infer HTTP/1.2\r\n" + host + "Content-Length: 3\r\n\r\nabc",
		"HTTP/2":                          "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"no version":                      "POST /v2/models/m/infer\r\n" + host + "Content-Length: 3\r\n\r\nabc",
		"kept":                            line + host + "Connection: Keep-Alive\r\nContent-Length: 3\r\n\r\nabc",
		"closed":                          line + host + "Connection: close\r\nContent-Length: 3\r\n\r\nabc",
		"closed and kept":                 line + host + "Connection: keep-alive, close\r\nContent-Length: 3\r\n\r\nabc",
		"upgrade":                         line + host + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nContent-Length: 3\r\n\r\nabc",
		"expect":                          line + host + "Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
		"expect more":                     line + host + "Expect: 200-ok\r\nContent-Length: 3\r\n\r\nabc",
		"pragma":                          line + host + "Pragma: no-cache\r\nContent-Length: 3\r\n\r\nabc",
		"accepts encodings":               line + host + "Accept-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
		"accepts identity":                line + host + "Accept-Encoding: identity\r\nContent-Length: 3\r\n\r\nabc",
		"fields twice":                    line + host + "x-a: 1\r\nX-A: 2\r\ninference-header-content-length: 3\r\nContent-Length: 3\r\n\r\nabc",
		"odd names":                       line + host + "x_y: 1\r\n!#$: 2\r\nX-: 3\r\n-x: 4\r\nContent-Length: 3\r\n\r\nabc",
		"spaces around values":            line + host + "X: \t a b \t\r\nContent-Length:3\r\n\r\nabc",
		"many fields":                     line + host + strings.Repeat("X: 1\r\n", 100) + "Content-Length: 3\r\n\r\nabc",
		"large field":                     line + host + "X: " + strings.Repeat("a", 30<<10) + "\r\nContent-Length: 3\r\n\r\nabc",
		"too large field":                 line + host + "X: " + strings.Repeat("a", 100<<10) + "\r\nContent-Length: 3\r\n\r\nabc",
		"too large line":                  "POST /v2/models/" + strings.Repeat("a", 100<<10) + "/infer HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc",
		"field of the largest plain size": line + host + "X: " + strings.Repeat("a", 16<<10-len(line+host)-len("X: \r\nContent-Length: 3\r\n\r\n")) + "\r\nContent-Length: 3\r\n\r\nabc",
		"leading line ends":               "\r\n\r\n" + line + host + "Content-Length: 3\r\n\r\nabc",
		"many leading line ends":          "\r\n\r\n\r\n" + line + host + "Content-Length: 3\r\n\r\nabc",
		"leading space":                   " " + line + host + "Content-Length: 3\r\n\r\nabc",
		"TLS":                             "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n",
		"garbage":                         "\x00\x01\x02\r\n\r\n",
		"get":                             "GET /v2/health/live HTTP/1.1\r\n" + host + "\r\n",
		"get with a body":                 "GET /v2/health/live HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc",
		"head":                            "HEAD /v2/health/live HTTP/1.1\r\n" + host + "\r\n",
		"put":                             "PUT /v2/models/m/infer HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc",
		"post elsewhere":                  "POST /v2/repository/index HTTP/1.1\r\n" + host + "Content-Length: 3\r\n\r\nabc",
		"answered in chunks":              "POST /v2/repository/index HTTP/1.1\r\n" + host + "X-Chunked: 1\r\nContent-Length: 3\r\n\r\nabc",
		"body that is not read":           line + host + "X-Skip: 1\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("a", 100000),
		"large body that is not read":     line + host + "X-Skip: 1\r\nContent-Length: 270000\r\n\r\n" + strings.Repeat("a", 270000),
		"closing answer":                  line + host + "X-Close: 1\r\nContent-Length: 3\r\n\r\nabc",
		"closing, body not read":          line + host + "X-Close: 1\r\nX-Skip: 1\r\nContent-Length: 10\r\n\r\n0123456789",
		"half a line":                     "POST /v2/mod",
		"half a head":                     line + host + "Content-Le",
		"half a body":                     line + host + "Content-Length: 30\r\n\r\nabc",
		"half a body that is not read":    line + host + "X-Skip: 1\r\nContent-Length: 30\r\n\r\nabc",
		"nothing":                         "",
	}
	old, own := start(t, false, mirror, nil), start(t, true, mirror, nil)
	before := line + "Host: z\r\nContent-Length: 5\r\n\r\nfirst"
	for name, text := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, parts := range [][]string{{text}, {text + second}, {before + text + second}, {before, text, second}, {before + "\r\n" + text, second + text}} {
				var want string
				done := make(chan struct{})
				go func() { defer close(done); want = old.converse(parts...) }()
				got := own.converse(parts...)
				<-done
				require.Equal(t, dated.ReplaceAllString(want, ""), dated.ReplaceAllString(got, ""), "%q", parts)
			}
		})
	}
}

// dated is a field of answers that net/http gives by itself: two answers may lie on both sides of a second's end.
var dated = regexp.MustCompile(`Date: [^\r]*GMT\r\n`)

// TestAnswersAgree: whatever sequence of requests comes on a connection, and however it is cut into pieces, the answers are net/http's to the byte.
func TestAnswersAgree(t *testing.T) {
	old, own := start(t, false, mirror, nil), start(t, true, mirror, nil)
	pick := func(rt *rapid.T, usual string, rest ...string) string {
		if rapid.IntRange(0, 9).Draw(rt, "usual") > 0 {
			return usual
		}
		return rapid.SampledFrom(rest).Draw(rt, "rare")
	}
	request := func(rt *rapid.T) string {
		end := pick(rt, "\r\n", "\n")
		var b strings.Builder
		b.WriteString(pick(rt, "", "\r\n", "\n", "\r\n\r\n\r\n", " "))
		b.WriteString(pick(rt, "POST", "GET", "PUT", "HEAD", "post", "", "DELETE") + pick(rt, " ", "  ", "\t"))
		b.WriteString(pick(rt, "/v2/models/m/infer", "/v2/models/m/versions/1/infer", "/v2", "/v2/health/live", "//x/infer", "*", "/a?b/infer", "/%41/infer", "/%zz/infer", "http://h/infer", "/\x01/infer"))
		b.WriteString(pick(rt, " HTTP/1.1", " HTTP/1.0", " HTTP/1.1 ", " HTTP/2.0", "") + end)
		body := rapid.StringN(0, 40, -1).Draw(rt, "body")
		fields := []string{pick(rt, "Host: a", "Host: b:80", "Host:", "Host : a", "Host: a\tb")}
		switch n := fmt.Sprint(len(body)); rapid.IntRange(0, 12).Draw(rt, "length") {
		case 0:
			fields = append(fields, "Transfer-Encoding: chunked")
			body = fmt.Sprintf("%x\r\n%s\r\n0\r\n%s\r\n", len(body), body, pick(rt, "", "X: 1\r\n"))
		case 1:
			fields = append(fields, "Content-Length: "+n, "Content-Length: "+n)
		case 2:
			fields = append(fields, "Content-Length: "+n, "Transfer-Encoding: "+pick(rt, "chunked", "identity", "gzip"))
		case 3:
			fields = append(fields, "content-length:"+n)
		case 4:
			fields = append(fields, "Content-Length: "+pick(rt, "1", "+1", "1 ", " 01", "1,1", "x"))
		default:
			fields = append(fields, "Content-Length: "+n)
		}
		for range rapid.IntRange(0, 4).Draw(rt, "fields") {
			fields = append(fields, rapid.SampledFrom([]string{"X-A: 1", "x-a: 2", "User-Agent: u", "Connection: keep-alive", "Inference-Header-Content-Length: 3", "Accept: */*",
				"Connection: close", "Expect: 100-continue", "Accept-Encoding: identity", "Accept-Encoding: gzip", "X: \x00", "X-Skip: 1", "X-Close: 1", " folded", "Pragma: no-cache", "Te: trailers",
				"X-Chunked: 1", "Cookie: a=b; c=d", "A:", "B : c", "Traceparent: 00-a-b-01"}).Draw(rt, "field"))
		}
		for _, f := range rapid.Permutation(fields).Draw(rt, "order") {
			b.WriteString(f + end)
		}
		b.WriteString(end + body)
		return b.String()
	}
	rapid.Check(t, func(rt *rapid.T) {
		var all string
		for range rapid.IntRange(1, 5).Draw(rt, "requests") {
			all += request(rt)
		}
		var parts []string
		for len(all) > 0 {
			n := rapid.IntRange(1, len(all)).Draw(rt, "piece")
			parts, all = append(parts, all[:n]), all[n:]
		}
		require.Equal(rt, old.converse(parts...), own.converse(parts...), "%q", parts)
	})
}
