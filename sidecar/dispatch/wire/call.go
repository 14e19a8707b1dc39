// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Call is one call of the Server's method.
type Call struct {
	// State is the Handler's.
	State any

	conn   *serverConn
	id     uint32
	ctx    context.Context
	cancel context.CancelFunc

	// Guarded by receiving: by the goroutine that reads, and who ends the call meanwhile.
	receiving sync.Mutex
	stop      func() bool // of the deadline; nil: there is none
	message   message
	ignores   bool // what comes of the message: the call has its answer
	served    bool // the message was whole, or never will be

	// Guarded by the connection's lock.
	out      outgoing
	answered bool
	closed   bool // the stream is no more
	header   metadata.MD
	trailer  metadata.MD
}

var _ grpc.ServerTransportStream = (*Call)(nil)

// Context is the call's: with its metadata, its peer, and a deadline that is earlier than the client's by Options.Ahead. It ends with the call, and
// with the connection.
func (c *Call) Context() context.Context { return c.ctx }

// Turn is that of the goroutine that reads the connection. It is for Serve only, while it runs.
func (c *Call) Turn() *Turn { return &c.conn.turn }

// Method implements grpc.ServerTransportStream.
func (c *Call) Method() string { return c.conn.server.o.Method }

// SetHeader implements grpc.ServerTransportStream.
func (c *Call) SetHeader(md metadata.MD) error {
	c.conn.mu.Lock()
	defer c.conn.mu.Unlock()
	c.header = metadata.Join(c.header, md)
	return nil
}

// SendHeader implements grpc.ServerTransportStream: the header is sent with the answer.
func (c *Call) SendHeader(md metadata.MD) error { return c.SetHeader(md) }

// SetTrailer implements grpc.ServerTransportStream.
func (c *Call) SetTrailer(md metadata.MD) error {
	c.conn.mu.Lock()
	defer c.conn.mu.Unlock()
	c.trailer = metadata.Join(c.trailer, md)
	return nil
}

// okTrailer is the end of an answer.
var okTrailer = []hpack.HeaderField{{Name: "grpc-status", Value: "0"}, {Name: "grpc-message"}}

// Reply answers the call with a message. It consumes data. It does nothing else if the call has ended. The turn is that of the goroutine that calls it; nil:
// none.
func (c *Call) Reply(t *Turn, data mem.BufferSlice) {
	l := c.conn
	l.mu.Lock()
	if !c.begins() {
		l.mu.Unlock()
		data.Free()
		return
	}
	header, trailer := appendMetadata(l.responseHeader(), c.header), appendMetadata(okTrailer[:len(okTrailer):len(okTrailer)], c.trailer)
	if l.takes(header) && l.takes(trailer) {
		l.headers(c.id, header, false)
		prefix := make([]byte, prefixLen)
		binary.BigEndian.PutUint32(prefix[1:], uint32(data.Len()))
		l.give(&c.out, append(mem.BufferSlice{mem.SliceBuffer(prefix)}, data...))
		c.out.trailer = trailer
	} else {
		data.Free()
		c.out.trailer = l.withoutText(codes.Internal)
	}
	l.send(&c.out)
	l.mu.Unlock()
	c.finish(t)
}

// Fail answers the call with an error. It does nothing else if the call has ended.
func (c *Call) Fail(t *Turn, err error) {
	s := status.Convert(err)
	l := c.conn
	l.mu.Lock()
	if !c.begins() {
		l.mu.Unlock()
		return
	}
	list := append(l.responseHeader(), hpack.HeaderField{Name: "grpc-status", Value: strconv.Itoa(int(s.Code()))}, hpack.HeaderField{Name: "grpc-message", Value: encodeMessage(s.Message())})
	if p := s.Proto(); len(p.GetDetails()) > 0 {
		if b, err := proto.Marshal(p); err == nil {
			list = append(list, hpack.HeaderField{Name: "grpc-status-details-bin", Value: base64.RawStdEncoding.EncodeToString(b)})
		}
	}
	if list = appendMetadata(appendMetadata(list, c.header), c.trailer); !l.takes(list) {
		list = l.withoutText(s.Code())
	}
	c.out.trailer = list
	l.send(&c.out)
	l.mu.Unlock()
	c.finish(t)
}

// Done says that the Handler has done with the call.
func (c *Call) Done() {
	c.cancel() // or its timer would live until the deadline
	c.conn.handled()
}

// begins reports whether the call's answer is yet to be sent, which it then is. Guarded by the connection's lock.
func (c *Call) begins() bool {
	if c.answered || c.closed {
		return false
	}
	c.answered, c.out.open = true, false
	return true
}

// finish ends what belongs to a call that has its answer.
func (c *Call) finish(t *Turn) {
	c.receiving.Lock()
	c.message.free() // if it is not whole
	c.ignores = true
	stop := c.stop
	c.receiving.Unlock()
	if stop != nil {
		stop()
	}
	t.touched(c.conn.link)
}

// expire answers a call whose deadline has come.
func (c *Call) expire() {
	if c.ctx.Err() == context.DeadlineExceeded { //nolint:errorlint // contexts give it bare
		c.Fail(nil, c.conn.server.o.Exceeded)
		c.lose(c.conn.server.o.Exceeded)
	}
}

// lose tells the Handler that the call's message will not become whole, unless it is.
func (c *Call) lose(err error) {
	c.receiving.Lock()
	lost := !c.served
	c.served = true
	c.message.free()
	c.receiving.Unlock()
	if lost {
		c.conn.server.o.Handler.Lost(c, err)
		c.Done()
	}
}

// Evict ends the call with an error if its message is not whole yet; any goroutine may call it.
func (c *Call) Evict(err error) {
	c.receiving.Lock()
	served := c.served
	c.receiving.Unlock()
	if !served {
		c.Fail(nil, err)
		c.lose(err)
	}
}

// responseHeader begins the header fields of an answer.
func (c *serverConn) responseHeader() []hpack.HeaderField {
	return append(c.scratch[:0], hpack.HeaderField{Name: ":status", Value: "200"}, hpack.HeaderField{Name: "content-type", Value: "application/grpc"})
}

// takes reports whether the client takes so many header fields. For more, some clients end the connection. Guarded by mu.
func (c *serverConn) takes(list []hpack.HeaderField) bool {
	if c.mostFields == math.MaxInt64 {
		return true
	}
	size := int64(0)
	for i := range list {
		size += int64(list[i].Size())
	}
	return size <= c.mostFields
}

// withoutText is the answer in place of one that the client does not take.
func (c *serverConn) withoutText(code codes.Code) []hpack.HeaderField {
	return append(c.responseHeader(), hpack.HeaderField{Name: "grpc-status", Value: strconv.Itoa(int(code))},
		hpack.HeaderField{Name: "grpc-message", Value: "the answer's header fields are beyond SETTINGS_MAX_HEADER_LIST_SIZE"})
}

// appendMetadata appends metadata to header fields.
func appendMetadata(list []hpack.HeaderField, md metadata.MD) []hpack.HeaderField {
	for name, values := range md {
		if reserved(name) {
			continue
		}
		for _, v := range values {
			if strings.HasSuffix(name, "-bin") {
				v = base64.RawStdEncoding.EncodeToString([]byte(v))
			}
			list = append(list, hpack.HeaderField{Name: name, Value: v})
		}
	}
	return list
}

// encodeMessage is gRPC's percent-encoding of a status's text.
func encodeMessage(s string) string {
	const digits = "0123456789ABCDEF"
	plain := true
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '%' {
			plain = false
			break
		}
	}
	if plain {
		return s
	}
	s = strings.ToValidUTF8(s, "\uFFFD")
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '%' {
			b.Write([]byte{'%', digits[c>>4], digits[c&15]})
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// decodeMessage reads what encodeMessage writes.
func decodeMessage(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if v, err := strconv.ParseUint(s[i+1:i+3], 16, 8); err == nil {
				b.WriteByte(byte(v))
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// decodeTimeout reads gRPC's header field of that name.
func decodeTimeout(s string) (time.Duration, bool) {
	if len(s) < 2 || len(s) > 9 {
		return 0, false
	}
	unit, ok := map[byte]time.Duration{'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond}[s[len(s)-1]]
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(s[:len(s)-1], 10, 63)
	if err != nil {
		return 0, false
	}
	const most = 1<<63 - 1
	if n > uint64(most/unit) {
		return most, true
	}
	return time.Duration(n) * unit, true
}

// received is the call's metadata, of which the names that gRPC keeps are left out.
func received(list []hpack.HeaderField) (md metadata.MD, ok bool) {
	md = make(metadata.MD, len(list))
	for i := range list {
		h := &list[i]
		if h.Name != "content-type" && h.Name != ":authority" && h.Name != "grpc-accept-encoding" && reserved(h.Name) {
			continue
		}
		v := h.Value
		if strings.HasSuffix(h.Name, "-bin") {
			b, err := base64.StdEncoding.DecodeString(v)
			if err != nil {
				if b, err = base64.RawStdEncoding.DecodeString(v); err != nil {
					return nil, false
				}
			}
			v = string(b)
		}
		md[h.Name] = append(md[h.Name], v)
	}
	return md, true
}

// plain reports whether the Handler runs a call with these header fields, and the time that its client leaves it; 0: it does not say. Everything that is
// unusual about a call is the inner server's: its answer is grpc-go's then.
func (c *serverConn) plain(list []hpack.HeaderField) (ok bool, left time.Duration) {
	var method, authority, content bool
	for i := range list {
		switch h := &list[i]; h.Name {
		case ":path":
			if h.Value != c.server.o.Method {
				return false, 0
			}
		case ":method":
			method = h.Value == "POST"
		case ":authority":
			authority = true
		case "content-type":
			if content || h.Value != "application/grpc" && h.Value != "application/grpc+proto" {
				return false, 0
			}
			content = true
		case "grpc-encoding":
			if h.Value != "identity" && h.Value != "" {
				return false, 0
			}
		case "host":
			return false, 0
		case "grpc-timeout":
			if left, ok = decodeTimeout(h.Value); !ok || left <= 0 {
				return false, 0
			}
		}
	}
	return method && authority && content, left
}

// codeOf is gRPC's code for a stream that was reset.
func codeOf(code http2.ErrCode) codes.Code {
	switch code {
	case http2.ErrCodeRefusedStream:
		return codes.Unavailable
	case http2.ErrCodeCancel:
		return codes.Canceled
	case http2.ErrCodeEnhanceYourCalm:
		return codes.ResourceExhausted
	case http2.ErrCodeInadequateSecurity:
		return codes.PermissionDenied
	default:
		return codes.Internal
	}
}
