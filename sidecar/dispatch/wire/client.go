// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
)

// Why a call has no answer of the server's.
var (
	// ErrLost: the connection failed. Whether the server has received the call is not known.
	ErrLost = errors.New("the connection to the server was lost")
	// ErrNotBegun: the server has not begun the call, which may be made again anywhere. Nothing of it was sent if Start returns it.
	ErrNotBegun = errors.New("the server has not begun the call")
	// ErrCancelled: Cancel was called. The server may go on.
	ErrCancelled = errors.New("the call was cancelled")
)

// ClientOptions of NewClient.
type ClientOptions struct {
	// Authority is what calls name as their server, such as host:port. Secure says that the connection is.
	Authority string
	Secure    bool
	UserAgent string
	// Window is the flow-control window of a stream, and a quarter of the connection's.
	Window int
	// MaxMessage bounds an answer, in bytes.
	MaxMessage int
	// Idle is after how long without a frame, while there are calls, the server is asked whether it is there; Patience how long its answer may take.
	Idle, Patience time.Duration
	Pool           mem.BufferPool
}

// Answer is what a server has answered to a call.
type Answer struct {
	// Data owns its buffers.
	Data            mem.BufferSlice
	Header, Trailer metadata.MD
	// LastWord: the server has ended the call, with its message or with a status of its own.
	LastWord bool
}

// Client is one connection to a server, for unary calls. It ends with the connection: see Done.
type Client struct {
	*link
	o      ClientOptions
	in     *intake
	fields *fields
	turn   Turn
	done   chan struct{}

	// Of the goroutine that reads.
	turns     turns
	taken     int64
	lastBegun uint32 // the last stream that a GOAWAY has named; 0: there was none

	// Guarded by mu.
	calls    map[uint32]*ClientCall
	left     []*ClientCall // cancelled, and their messages not freed yet
	next     uint32
	most     uint32 // calls at once that the server allows
	known    bool   // it has sent its settings
	leaving  bool   // no more calls are begun
	lastRead time.Time
	asked    time.Time // when the server was asked whether it is there; zero: it was not
}

// ClientCall is a call under way.
type ClientCall struct {
	client   *Client
	id       uint32
	out      outgoing
	message  message
	room     int64
	headed   bool
	declined bool // its answer is none that is taken: what is still to come of it is left alone
	answer   Answer
	then     func(*Turn, Answer, error)
}

// mostUnknown is how many calls at once a client begins before the server has said how many it allows, which is hardly ever fewer: calls beyond are refused.
const mostUnknown = 100

// NewClient begins HTTP/2 on a connection that is made, and owns it.
func NewClient(conn net.Conn, o ClientOptions) *Client {
	if o.Pool == nil {
		o.Pool = mem.DefaultBufferPool()
	}
	c := &Client{
		link: newLink(conn, o.Secure), o: o, in: newIntake(conn, o.Secure, o.Pool), fields: newFields(innerHeaders), done: make(chan struct{}),
		calls: map[uint32]*ClientCall{}, next: 1, most: mostUnknown, lastRead: time.Now(),
	}
	c.fields.maxBlock = innerHeaders
	c.mu.Lock()
	c.queued.arena = append(c.queued.arena, http2.ClientPreface...)
	c.appended(0)
	c.frame(func(b []byte) []byte {
		b = appendSettings(b, setting{http2.SettingEnablePush, 0}, setting{http2.SettingInitialWindowSize, uint32(o.Window)})
		return appendWindowUpdate(b, 0, uint32(4*o.Window-defaultWindow))
	})
	c.mu.Unlock()
	c.flush()
	var running sync.WaitGroup
	stop := make(chan struct{})
	running.Go(func() { c.watch(stop) })
	go func() {
		defer close(c.done)
		err := c.read()
		close(stop)
		c.end(err)
		running.Wait()
	}()
	return c
}

// Done is closed when the connection has ended, and all its calls.
func (c *Client) Done() <-chan struct{} { return c.done }

// Close ends the connection and its calls, and waits for the end.
func (c *Client) Close() {
	c.mu.Lock()
	c.leaving = true
	c.fail(errClosed)
	c.mu.Unlock()
	_ = c.conn.Close() // which ends read
	<-c.done
}

// Start begins a call. It consumes data unless it returns ErrNotBegun. Then is called once, by the goroutine that reads the connection or cancels the call,
// and must not block: with the server's answer, a gRPC status error of the server's, or an error that is ErrLost, ErrNotBegun or ErrCancelled.
func (c *Client) Start(t *Turn, method string, md metadata.MD, data mem.BufferSlice, then func(*Turn, Answer, error)) (*ClientCall, error) {
	size := data.Len()
	c.mu.Lock()
	if c.failed != nil || c.leaving || uint32(len(c.calls)) >= c.most || c.next > maxWindow-2 {
		c.leaving = c.leaving || c.next > maxWindow-2
		c.mu.Unlock()
		return nil, ErrNotBegun
	}
	k := &ClientCall{client: c, id: c.next, room: int64(c.o.Window), then: then}
	k.message.pool = c.o.Pool
	k.out = outgoing{id: k.id, window: c.initial, end: true}
	c.next += 2
	if len(c.calls) == 0 {
		c.lastRead, c.asked = time.Now(), time.Time{} // it was idle
	}
	c.calls[k.id] = k
	scheme := "http"
	if c.o.Secure {
		scheme = "https"
	}
	list := [16]hpack.HeaderField{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: scheme}, {Name: ":path", Value: method}, {Name: ":authority", Value: c.o.Authority},
		{Name: "content-type", Value: "application/grpc"}, {Name: "user-agent", Value: c.o.UserAgent}, {Name: "te", Value: "trailers"},
	}
	c.headers(k.id, appendMetadata(list[:7], md), false)
	prefix := make([]byte, prefixLen)
	binary.BigEndian.PutUint32(prefix[1:], uint32(size))
	c.give(&k.out, mem.BufferSlice{mem.SliceBuffer(prefix)})
	c.give(&k.out, data)
	c.send(&k.out)
	c.mu.Unlock()
	t.touched(c.link)
	return k, nil
}

// Cancel ends the call, unless it has ended. It returns false in that case.
func (k *ClientCall) Cancel() bool {
	c := k.client
	c.mu.Lock()
	if c.calls[k.id] != k {
		c.mu.Unlock()
		return false
	}
	c.remove(k)
	c.left = append(c.left, k)
	c.frame(func(b []byte) []byte { return appendReset(b, k.id, http2.ErrCodeCancel) })
	c.mu.Unlock()
	c.flush()
	k.then(nil, Answer{}, ErrCancelled)
	return true
}

// remove takes a call out. Guarded by mu. The call's message is freed by the goroutine that reads, which may be at it.
func (c *Client) remove(k *ClientCall) {
	delete(c.calls, k.id)
	c.drop(&k.out)
}

// freeLeft frees the messages of cancelled calls. It is called by the goroutine that reads, at no frame of data.
func (c *Client) freeLeft() {
	for _, k := range c.left {
		k.message.free()
	}
	clear(c.left)
	c.left = c.left[:0]
}

// watch asks a server that is silent while there are calls whether it is there.
func (c *Client) watch(stop <-chan struct{}) {
	if c.o.Idle <= 0 {
		return
	}
	ticker := time.NewTicker(max(c.o.Patience/4, time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case now := <-ticker.C:
			c.mu.Lock()
			ask := len(c.calls) > 0 && c.asked.IsZero() && now.Sub(c.lastRead) > c.o.Idle
			dead := len(c.calls) > 0 && !c.asked.IsZero() && now.Sub(c.asked) > c.o.Patience
			dead = dead || c.leaving && len(c.calls) == 0 // it is of no more use
			if ask {
				c.asked = now
				c.frame(func(b []byte) []byte { return appendPing(b, 0, [8]byte{}) })
			}
			c.mu.Unlock()
			if ask {
				c.flush()
			}
			if dead {
				_ = c.conn.Close() // which ends read
			}
		}
	}
}

// end ends the calls of a connection that has ended.
func (c *Client) end(err error) {
	_ = c.conn.Close() // it has failed
	c.mu.Lock()
	c.leaving = true
	c.fail(errClosed)
	calls := c.calls
	c.calls = map[uint32]*ClientCall{}
	for _, k := range calls {
		c.drop(&k.out)
	}
	c.mu.Unlock()
	c.freeLeft()
	for _, k := range calls {
		k.message.free()
		k.then(&c.turn, Answer{}, fmt.Errorf("%w: %w", ErrLost, err))
	}
	c.turn.End()
	c.in.release()
	c.writers.Wait()
}
