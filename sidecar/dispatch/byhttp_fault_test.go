// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/sidecar/dispatch"
)

// TestAServerThatIsLostUnderHTTP: a server dies before, or in the middle of, its answer. The request runs once more, elsewhere, and the server is not used.
func TestAServerThatIsLostUnderHTTP(t *testing.T) {
	for name, does := range map[string]http.HandlerFunc{
		"before its answer": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"in its answer": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, jsonAnswer)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPorted(t, 2, dispatch.Options{}, nil)
			p.warm2(t)
			var lost sync.Once
			for i := range p.ports {
				p.ports[i].do(func(w http.ResponseWriter, r *http.Request) {
					first := false
					lost.Do(func() { first = true })
					if first {
						p.parts[i].kill()
						does(w, r)
					}
					_, _ = io.WriteString(w, jsonAnswer)
				})
			}
			code, text := p.post(t, asJSON)
			require.Equal(t, 200, code, text)
			require.Equal(t, 2, p.byHTTP()+p.byGRPC(), "it was sent twice")
			last := p.seen.outcomes[len(p.seen.outcomes)-1]
			require.True(t, last.Retried)
			up := 0
			for _, s := range p.d.Partitions() {
				if s.Up {
					up++
				}
			}
			require.Equal(t, 1, up)
		})
	}
}

// TestAServerWithoutTheModelUnderHTTP: the request goes to another server that has it.
func TestAServerWithoutTheModelUnderHTTP(t *testing.T) {
	p := newPorted(t, 2, dispatch.Options{}, nil)
	p.warm2(t)
	for i := range p.ports {
		p.ports[i].do(func(w http.ResponseWriter, _ *http.Request) {
			if p.byHTTP() > 1 {
				_, _ = io.WriteString(w, jsonAnswer)
				return
			}
			w.WriteHeader(404)
			_, _ = io.WriteString(w, `{"error":"Request for unknown model: 'm' has no available versions"}`)
		})
	}
	code, text := p.post(t, asJSON)
	require.Equal(t, 200, code, text)
	require.Equal(t, 2, p.byHTTP()+p.byGRPC())
}

// TestAPlaceThatFailsUnderHTTPIsEjected, and no request fails.
func TestAPlaceThatFailsUnderHTTPIsEjected(t *testing.T) {
	p := newPorted(t, 2, dispatch.Options{Clock: patient{clock.Timers()}}, nil)
	p.warm2(t)
	p.ports[0].says(500, "CUDA error: an illegal memory access was encountered")
	p.parts[0].set(func() { p.parts[0].refuse = fails(errCUDA) })
	for range 200 {
		code, text := p.post(t, asJSON)
		require.Equal(t, 200, code, text)
		if len(p.d.Unhealthy()) > 0 {
			break
		}
	}
	require.Len(t, p.d.Unhealthy(), 1)
	require.Positive(t, p.ports[0].asked.Load())
}

// TestWhoLeavesUnderHTTP: the caller is answered at once, and the place is leased until the server's last word: nothing else runs there before.
func TestWhoLeavesUnderHTTP(t *testing.T) {
	p := newPorted(t, 1, dispatch.Options{}, nil)
	p.warm(t)
	began, hold := make(chan struct{}, 9), make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	defer release()
	p.ports[0].do(func(w http.ResponseWriter, _ *http.Request) {
		began <- struct{}{}
		<-hold
		_, _ = io.WriteString(w, jsonAnswer)
	})
	ctx, leave := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+p.address+"/v2/models/m/infer", strings.NewReader(asJSON))
	require.NoError(t, err)
	left := make(chan error, 1)
	go func() {
		answer, err := http.DefaultClient.Do(r)
		if err == nil {
			_ = answer.Body.Close()
		}
		left <- err
	}()
	<-began
	leave()
	require.Error(t, <-left)
	require.Eventually(t, p.seen.settled, 30*time.Second, time.Millisecond)
	require.Equal(t, 1, p.seen.count(t)[dispatch.Cancelled])
	// The lease of the request before it ends a moment after its answer.
	require.Eventually(t, func() bool { return p.d.Partitions()[0].Leases == 1 }, 30*time.Second, time.Millisecond)
	next := make(chan int, 1)
	go func() {
		code, _ := p.post(t, asJSON)
		next <- code
	}()
	require.Eventually(t, func() bool { c, _ := p.d.Counts("m"); return c.Waiting == 1 }, 30*time.Second, time.Millisecond)
	require.Empty(t, began)
	release()
	require.Equal(t, 200, <-next)
	require.Eventually(t, func() bool { return p.d.Partitions()[0].Leases == 0 }, 30*time.Second, time.Millisecond)
}

// TestWhatHangsUnderHTTP: the watch finds it, the connection is dropped, and the request runs elsewhere.
func TestWhatHangsUnderHTTP(t *testing.T) {
	hung := make(chan string, 1000)
	p := newPorted(t, 2, dispatch.Options{HangFloor: 50 * time.Millisecond, Hung: func(partition string, _ error) { hung <- partition }}, nil)
	p.warm2(t)
	hold := make(chan struct{})
	defer close(hold)
	var first atomic.Bool
	var at atomic.Int64
	for i := range p.ports {
		p.ports[i].do(func(w http.ResponseWriter, _ *http.Request) {
			if !first.Swap(true) {
				at.Store(int64(i))
				<-hold
			}
			_, _ = io.WriteString(w, jsonAnswer)
		})
	}
	for len(hung) > 0 {
		<-hung
	}
	for !first.Load() { // an execution of warm2 may have been taken for one that hangs
		code, text := p.post(t, asJSON)
		require.Equal(t, 200, code, text)
	}
	for "p"+p.parts[at.Load()].address != <-hung {
	}
}

// TestAPortThatIsNotTritons: its answers reach nobody. The request, and those that follow, go over gRPC.
func TestAPortThatIsNotTritons(t *testing.T) {
	for name, does := range map[string]http.HandlerFunc{
		"another server's error": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) },
		"a page":                 func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") },
		"a proxy's refusal": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(413)
			fmt.Fprint(w, `{"error":"too large"}`)
		},
		"restricted": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(403)
			fmt.Fprint(w, `{"error":"This API is restricted, expecting header 'k'"}`)
		},
		"of no length": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, jsonAnswer[:10])
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, jsonAnswer[10:])
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPorted(t, 1, dispatch.Options{}, nil)
			p.warm(t)
			p.ports[0].do(does)
			for range 5 {
				code, text := p.post(t, asJSON)
				require.Equal(t, 200, code)
				require.Contains(t, text, `"id":"7"`, "from the gRPC port")
			}
			require.EqualValues(t, 1, p.ports[0].asked.Load())
			require.Equal(t, 5, p.byGRPC())
			require.True(t, p.d.Partitions()[0].Up)
		})
	}
}

// TestAPortThatDoesNotSpeakHTTP, or speaks it without end or sense: requests go over gRPC, and the server is not taken for one that is lost.
func TestAPortThatDoesNotSpeakHTTP(t *testing.T) {
	for name, text := range map[string]string{
		"a banner":               "SSH-2.0-OpenSSH\r\n",
		"an alert of TLS":        "\x15\x03\x03\x00\x02\x02\x46",
		"frames of HTTP/2":       "\x00\x00\x00\x04\x00\x00\x00\x00\x00",
		"two lengths":            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n{}\n\n",
		"a negative length":      "HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\n{}\n",
		"a length that is words": "HTTP/1.1 200 OK\r\nContent-Length: few\r\n\r\n{}\n",
		"a line without a name":  "HTTP/1.1 200 OK\r\nwords\r\n\r\n",
		"no status":              "HTTP/1.1 OK\r\n\r\n",
		"another status first":   "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
		"chunks":                 "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"an endless head":        "HTTP/1.1 200 OK\r\n",
		"an endless line":        "HTTP/1.1 200 OK\r\nA: ",
	} {
		t.Run(name, func(t *testing.T) {
			p := newPorted(t, 1, dispatch.Options{}, nil)
			p.warm(t)
			p.ports[0].do(func(w http.ResponseWriter, _ *http.Request) {
				conn, _, err := w.(http.Hijacker).Hijack()
				if err != nil {
					panic(err)
				}
				defer func() { _ = conn.Close() }()
				_, err = io.WriteString(conn, text)
				more := map[string]string{"an endless head": strings.Repeat("A: b\r\n", 1000), "an endless line": strings.Repeat("x", 10_000)}[name]
				for i := 0; more != "" && err == nil; i++ {
					if i == 10_000 {
						t.Error("all of it is read")
						return
					}
					_, err = io.WriteString(conn, more)
				}
			})
			for range 5 {
				code, text := p.post(t, asJSON)
				require.Equal(t, 200, code, text)
				require.Contains(t, text, `"id":"7"`, "from the gRPC port")
			}
			require.EqualValues(t, 1, p.ports[0].asked.Load())
			require.Equal(t, 5, p.byGRPC())
			require.True(t, p.d.Partitions()[0].Up)
		})
	}
}

// TestNoPort: where nothing listens, everything goes over gRPC, and nothing fails.
func TestNoPort(t *testing.T) {
	p := newPorted(t, 1, dispatch.Options{}, nil)
	p.ports[0].Close()
	for range 20 {
		code, _ := p.post(t, asJSON)
		require.Equal(t, 200, code)
	}
	require.Equal(t, 20, p.byGRPC())
}

// TestTurmoilByHTTP: servers that end, break off, answer late and answer wrongly, callers that leave. Every request has one outcome, and every lease ends.
func TestTurmoilByHTTP(t *testing.T) {
	p := newPorted(t, 3, dispatch.Options{}, nil)
	for _, at := range p.ports {
		at.do(func(w http.ResponseWriter, r *http.Request) {
			switch rand.IntN(30) {
			case 0:
				panic(http.ErrAbortHandler)
			case 1:
				w.Header().Set("Content-Length", "500")
				_, _ = io.WriteString(w, jsonAnswer)
				panic(http.ErrAbortHandler)
			case 2:
				w.WriteHeader(500)
				_, _ = io.WriteString(w, `{"error":"a fault"}`)
				return
			case 3:
				w.Header().Set("Connection", "close")
			case 4, 5:
				time.Sleep(time.Duration(rand.IntN(8)) * time.Millisecond)
			}
			_, _ = io.WriteString(w, jsonAnswer)
		})
	}
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() {
			for n := 0; n < 60 || n < 10000 && p.byHTTP() == 0; n++ {
				conn, err := net.Dial("tcp", p.address)
				if err != nil {
					t.Error(err)
					return
				}
				_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
				one := "POST /v2/models/m/infer HTTP/1.1\r\nHost: a\r\nContent-Length: " + strconv.Itoa(len(asJSON)) + "\r\n\r\n" + asJSON
				_, _ = io.WriteString(conn, strings.Repeat(one, 1+rand.IntN(4)))
				if rand.IntN(3) > 0 {
					_, _ = conn.Read(make([]byte, 100))
				}
				_ = conn.Close()
			}
		})
	}
	running.Wait()
	require.Eventually(t, func() bool {
		n, _ := p.d.UnderWay()
		for _, s := range p.d.Partitions() {
			n += int64(s.Leases)
		}
		return n == 0 && p.seen.settled()
	}, 30*time.Second, time.Millisecond) // what clients that have left had sent may still come
	require.Positive(t, p.byHTTP())
}
