// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"strings"

	"golang.org/x/net/http/httpguts"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Bounds of one block of header fields, beside the limit of the list that it stands for.
const (
	// maxBlock bounds its compressed bytes.
	maxBlock = 64 << 10
	// maxContinuations bounds its frames: a block in tiny pieces costs a server more than its client.
	maxContinuations = 128
	// headerTable is the size of both compression tables, which is HTTP/2's default.
	headerTable = 4 << 10
)

// fields reads blocks of header fields, which change the table that further ones are read by: every block of a connection has to pass through it, wanted or
// not.
type fields struct {
	decoder *hpack.Decoder
	limit   uint32 // of the size of a list, as HTTP/2 counts it
	list    []hpack.HeaderField
	size    uint32
	// over: the list is beyond its limit, and not whole.
	over     bool
	maxBlock int
	bytes    int // of the block
	frames   int
	stream   uint32 // whose block is not at its end; 0: none
	flags    http2.Flags
}

func newFields(limit uint32) *fields {
	f := &fields{limit: limit, maxBlock: maxBlock}
	f.decoder = hpack.NewDecoder(headerTable, f.add)
	f.decoder.SetMaxStringLength(int(limit))
	return f
}

func (f *fields) add(h hpack.HeaderField) {
	f.size += h.Size()
	if f.size > f.limit {
		f.over = true
		f.decoder.SetEmitEnabled(false)
		return
	}
	f.list = append(f.list, h)
}

// allow returns an error for a frame that may not come now: it is too long, or comes between the frames of a block.
func (f *fields) allow(h head) error {
	switch {
	case h.length > maxFrame:
		return broken(http2.ErrCodeFrameSize, "a frame is longer than SETTINGS_MAX_FRAME_SIZE")
	case f.stream != 0 && (h.kind != http2.FrameContinuation || h.stream != f.stream):
		return broken(http2.ErrCodeProtocol, "a frame within a block of header fields")
	}
	return nil
}

// headersFrame reads a HEADERS frame of a stream, which begins a block. The block is whole if stream is 0 then. Parent is the stream that the frame's priority
// depends on; 0: it has none.
func (f *fields) headersFrame(h head, payload []byte) (parent uint32, err error) {
	payload, err = unpadded(h, payload)
	if err != nil {
		return 0, err
	}
	if h.has(http2.FlagHeadersPriority) {
		if len(payload) < 5 {
			return 0, broken(http2.ErrCodeFrameSize, "a HEADERS frame without its priority")
		}
		parent, payload = dependsOn(payload), payload[5:]
	}
	f.beginBlock(h.stream, h.flags)
	return parent, f.write(payload, h.has(http2.FlagHeadersEndHeaders))
}

// continuation reads a CONTINUATION frame.
func (f *fields) continuation(h head, payload []byte) error {
	if f.stream == 0 {
		return broken(http2.ErrCodeProtocol, "a CONTINUATION frame after no header fields")
	}
	return f.write(payload, h.has(http2.FlagContinuationEndHeaders))
}

// beginBlock begins a block, with the flags of its HEADERS frame.
func (f *fields) beginBlock(stream uint32, flags http2.Flags) {
	clear(f.list)
	f.list, f.size, f.over, f.bytes, f.frames, f.stream, f.flags = f.list[:0], 0, false, 0, 0, stream, flags
	f.decoder.SetEmitEnabled(true)
}

// write reads a part of the block. Last says that it is the last one.
func (f *fields) write(fragment []byte, last bool) error {
	f.bytes += len(fragment)
	if f.frames++; f.bytes > f.maxBlock || f.frames > maxContinuations {
		return broken(http2.ErrCodeEnhanceYourCalm, "header fields without end")
	}
	if _, err := f.decoder.Write(fragment); err != nil {
		if err == hpack.ErrStringLength { //nolint:errorlint // hpack gives it bare
			return broken(http2.ErrCodeEnhanceYourCalm, "a header field beyond the limit of a list")
		}
		return broken(http2.ErrCodeCompression, err.Error())
	}
	if !last {
		return nil
	}
	f.stream = 0
	if err := f.decoder.Close(); err != nil {
		return broken(http2.ErrCodeCompression, err.Error())
	}
	return nil
}

// malformed returns why a request's fields are none, by HTTP/2's rules; empty: they are well-formed. Trailers are the fields after a request's body.
func malformed(list []hpack.HeaderField, trailers bool) string {
	var method, scheme, path, authority int
	regular := false
	for i := range list {
		h := &list[i]
		if h.IsPseudo() {
			switch {
			case trailers:
				return "a pseudo-header field in trailers"
			case regular:
				return "a pseudo-header field after other fields"
			}
			switch h.Name {
			case ":method":
				method++
			case ":scheme":
				scheme++
			case ":path":
				path++
				if h.Value == "" {
					return "an empty :path"
				}
			case ":authority":
				authority++
			default:
				return "an unknown pseudo-header field"
			}
			if !httpguts.ValidHeaderFieldValue(h.Value) {
				return "a header field with an invalid value"
			}
			continue
		}
		regular = true
		if fault := malformedField(h); fault != "" {
			return fault
		}
		switch h.Name {
		case "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
			return "a header field of one connection"
		case "te":
			if h.Value != "trailers" {
				return "a TE other than trailers"
			}
		}
	}
	if !trailers && (method != 1 || scheme != 1 || path != 1 || authority > 1) {
		return "pseudo-header fields that are missing or twice there"
	}
	return ""
}

// malformedAnswer is malformed for a server's fields. Those of one connection do no harm there.
func malformedAnswer(list []hpack.HeaderField, trailers bool) string {
	regular, code := false, false
	for i := range list {
		h := &list[i]
		if h.IsPseudo() {
			if trailers || regular || code || h.Name != ":status" {
				return "a pseudo-header field that does not belong there"
			}
			code = true
			continue
		}
		regular = true
		if fault := malformedField(h); fault != "" {
			return fault
		}
	}
	return ""
}

func malformedField(h *hpack.HeaderField) string {
	switch {
	case !validName(h.Name):
		return "a header field with an invalid name"
	case !httpguts.ValidHeaderFieldValue(h.Value):
		return "a header field with an invalid value"
	}
	return ""
}

// validName reports whether a field's name is one of HTTP/2, in lower case.
func validName(name string) bool {
	if name == "" {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if c >= 'A' && c <= 'Z' || !httpguts.IsTokenRune(rune(c)) {
			return false
		}
	}
	return true
}

// reserved reports whether a header field belongs to gRPC or HTTP and not to an application's metadata.
func reserved(name string) bool {
	return name == "content-type" || name == "te" || name == "grpc-timeout" || name == "grpc-encoding" || name == "grpc-accept-encoding" ||
		name == "grpc-status" || name == "grpc-message" || name == "grpc-status-details-bin" || strings.HasPrefix(name, ":")
}
