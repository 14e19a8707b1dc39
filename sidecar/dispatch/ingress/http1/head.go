// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bytes"
	nethttp "net/http"
	"net/textproto"
	"net/url"
)

// verdict is whose a request is.
type verdict uint8

const (
	// incomplete: more bytes have to come.
	incomplete verdict = iota
	// plain: it is answered here.
	plain
	// bounded: it is net/http's, and ends after its head and its declared body.
	bounded
	// unbounded: it is net/http's, and so is all that follows.
	unbounded
)

// Bounds of what is read here. Larger heads are net/http's, whose own bounds are higher.
const (
	maxHead   = 16 << 10
	maxFields = 64
	maxDigits = 15 // of a Content-Length
)

// span is a part of a head, of which every connection has many.
type span struct{ from, to uint16 }

func spanOf(from, to int) span { return span{uint16(from), uint16(to)} }

func (s span) of(text string) string { return text[s.from:s.to] }

// head is a request's lines before its body.
type head struct {
	size   int   // in bytes, with the empty line
	length int64 // of the body, as declared; 0: none is
	path   span
	fields int
	names  [maxFields]span
	values [maxFields]span
}

// Characters by their role in a head.
const (
	inName   = 1 << iota // of a field's name: a token
	inValue              // of a field's value: printable ASCII, space and tab
	inHost               // of a Host
	inPath               // of a path that means itself: nothing in it is decoded
	inTarget             // of any target that is certainly a URL
)

var roles = func() (table [256]uint8) {
	for c := 0x21; c < 0x7f; c++ {
		table[c] = inValue | inTarget
	}
	table['%'] &^= inTarget
	table[' '], table['\t'] = inValue, inValue
	mark := func(set string, role uint8) {
		for _, c := range []byte(set) {
			table[c] |= role
		}
	}
	const alphanumeric = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	mark(alphanumeric+"!#$%&'*+-.^_`|~", inName)
	mark(alphanumeric+"-._:[]", inHost)
	mark(alphanumeric+"-._~/", inPath)
	return table
}()

func all(text []byte, role uint8) bool {
	for _, c := range text {
		if roles[c]&role == 0 {
			return false
		}
	}
	return true
}

// read reads the head at the beginning of data. Whatever could be read in two ways is unbounded.
func (h *head) read(data []byte, takes func(path string) bool) verdict {
	h.size, h.length, h.fields = 0, 0, 0
	line, v := h.line(data)
	if v != plain {
		return v
	}
	if v = h.request(data, line); v == unbounded {
		return v
	}
	hosts, lengths := 0, 0
	for {
		line, more := h.line(data)
		if more != plain {
			return more
		}
		if line.from == line.to {
			break
		}
		name, value, ok := h.field(data, line)
		if !ok {
			return unbounded
		}
		switch kindOf(name) {
		case host:
			if hosts++; len(value) == 0 || !all(value, inHost) {
				return unbounded
			}
		case contentLength:
			lengths++
			if h.length, ok = number(value); !ok {
				return unbounded
			}
		case connection:
			if !bytes.EqualFold(value, []byte("keep-alive")) {
				return unbounded
			}
		case ofConnection:
			return unbounded
		case acceptEncoding:
			if !bytes.Equal(value, []byte("identity")) {
				v = bounded
			}
		case rewritten:
			v = bounded
		}
	}
	switch {
	case hosts != 1 || lengths > 1:
		return unbounded
	case v == plain && (lengths == 0 || !takes(string(data[h.path.from:h.path.to]))):
		return bounded
	}
	return v
}

// line takes the next line; its end is CR LF.
func (h *head) line(data []byte) (line span, v verdict) {
	i := bytes.IndexByte(data[h.size:], '\n')
	switch {
	case i < 0 && len(data) < maxHead:
		return line, incomplete
	case i < 1 || data[h.size+i-1] != '\r' || h.size+i >= maxHead:
		return line, unbounded
	}
	line = spanOf(h.size, h.size+i-1)
	h.size += i + 1
	return line, plain
}

// request reads the request line. It is plain or bounded by what the line says.
func (h *head) request(data []byte, line span) verdict {
	text := data[line.from:line.to]
	method, rest, ok := bytes.Cut(text, []byte(" "))
	target, version, two := bytes.Cut(rest, []byte(" "))
	if !ok || !two || len(target) == 0 || target[0] != '/' || string(version) != "HTTP/1.1" || !all(target, inTarget) {
		return unbounded
	}
	from := int(line.from) + len(method) + 1
	h.path = spanOf(from, from+len(target))
	switch string(method) {
	case nethttp.MethodPost:
		// net/url reads two slashes as the beginning of an authority.
		if all(target, inPath) && !bytes.HasPrefix(target, []byte("//")) {
			return plain
		}
		return bounded
	case nethttp.MethodGet:
		return bounded
	}
	return unbounded
}

// field reads a line of name and value.
func (h *head) field(data []byte, line span) (name, value []byte, ok bool) {
	text := data[line.from:line.to]
	colon := bytes.IndexByte(text, ':')
	if colon <= 0 || h.fields == maxFields || !all(text[:colon], inName) || !all(text[colon+1:], inValue) {
		return nil, nil, false
	}
	from, to := int(line.from)+colon+1, int(line.to)
	for from < to && (data[from] == ' ' || data[from] == '\t') {
		from++
	}
	for from < to && (data[to-1] == ' ' || data[to-1] == '\t') {
		to--
	}
	h.names[h.fields], h.values[h.fields] = spanOf(int(line.from), int(line.from)+colon), spanOf(from, to)
	h.fields++
	return text[:colon], data[from:to], true
}

// kind is what a field means for the framing.
type kind uint8

const (
	ordinary kind = iota
	host
	contentLength
	connection
	ofConnection   // says how the body or the connection goes on
	acceptEncoding // asks for an answer whose length is not known when it begins
	rewritten      // net/http adds fields for it
)

func kindOf(name []byte) kind {
	if len(name) > len("Transfer-Encoding") {
		return ordinary
	}
	var lower [len("Transfer-Encoding")]byte
	for i, c := range name {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		lower[i] = c
	}
	switch string(lower[:len(name)]) {
	case "host":
		return host
	case "content-length":
		return contentLength
	case "connection":
		return connection
	case "transfer-encoding", "expect", "upgrade", "trailer", "te", "http2-settings", "proxy-connection", "keep-alive":
		return ofConnection
	case "accept-encoding":
		return acceptEncoding
	case "pragma":
		return rewritten
	}
	return ordinary
}

// number reads a length.
func number(text []byte) (n int64, ok bool) {
	if len(text) == 0 || len(text) > maxDigits {
		return 0, false
	}
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + int64(c-'0')
	}
	return n, true
}

// form makes the request of a plain head, without body and context. Text is the head.
func (h *head) form(text, client string) *nethttp.Request {
	path := h.path.of(text)
	r := &nethttp.Request{
		Method: nethttp.MethodPost, RequestURI: path, URL: &url.URL{Path: path}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: make(nethttp.Header, h.fields), ContentLength: h.length, RemoteAddr: client,
	}
	values := make([]string, h.fields)
	for i := range h.fields {
		name := textproto.CanonicalMIMEHeaderKey(h.names[i].of(text))
		value := h.values[i].of(text)
		if name == "Host" {
			r.Host = value
			continue
		}
		if before, ok := r.Header[name]; ok {
			r.Header[name] = append(before, value)
			continue
		}
		values[i] = value
		r.Header[name] = values[i : i+1 : i+1]
	}
	return r
}
