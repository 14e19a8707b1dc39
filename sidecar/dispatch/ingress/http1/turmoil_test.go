// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http1_test

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	nethttp "net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTurmoil: clients that pipeline, mix plain requests with others, stop in the middle and leave, of a handler that is slow at times and panics. Every answer
// is that of its request, in order, and no request is handled twice.
func TestTurmoil(t *testing.T) {
	var handled sync.Map
	var under atomic.Int64
	handler := nethttp.HandlerFunc(func(w nethttp.ResponseWriter, r *nethttp.Request) {
		under.Add(1)
		defer under.Add(-1)
		id := r.Header.Get("X-Id")
		var body []byte
		if r.Header.Get("X-Skip") == "" {
			var err error
			if body, err = io.ReadAll(r.Body); err != nil {
				return
			}
			if string(body) != strings.Repeat(id, len(body)/max(1, len(id))) {
				panic("a body that is another's")
			}
		}
		if _, twice := handled.LoadOrStore(id, true); twice {
			t.Error(id, "is handled twice")
		}
		switch r.Header.Get("X-Do") {
		case "slow":
			select {
			case <-r.Context().Done():
			case <-time.After(time.Duration(rand.IntN(12)) * time.Millisecond):
			}
		case "panic":
			panic(nethttp.ErrAbortHandler)
		}
		answer := strings.Repeat(id+",", 1+len(body)/7)
		w.Header()["Content-Length"] = []string{strconv.Itoa(len(answer))}
		w.Header()["X-Of"] = []string{id}
		_, _ = io.WriteString(w, answer)
	})
	s := startLater(t, true, true, handler, nil)
	ends := time.Now().Add(700 * time.Millisecond)
	var running sync.WaitGroup
	var answered atomic.Int64
	for g := range 6 {
		running.Go(func() {
			for n := 0; time.Now().Before(ends); n++ {
				conn, err := net.Dial("tcp", s.address)
				if err != nil {
					t.Error(err)
					return
				}
				_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
				var text strings.Builder
				var ids []string
				for i := range 1 + rand.IntN(5) {
					id := fmt.Sprintf("%d-%d-%d", g, n, i)
					ids = append(ids, id)
					body := strings.Repeat(id, []int{0, 1, 3, 700, 9000}[rand.IntN(5)])
					path, do := "/v2/models/m/infer", ""
					switch rand.IntN(12) {
					case 0:
						path = "/other"
					case 1, 2, 3:
						do = "X-Do: slow\r\n"
					case 4:
						if rand.IntN(3) == 0 {
							do = "X-Do: panic\r\n"
						}
					case 5:
						do = "X-Skip: 1\r\n"
					}
					if rand.IntN(10) == 0 {
						fmt.Fprintf(&text, "POST %s HTTP/1.1\r\nHost: a\r\nX-Id: %s\r\n%sTransfer-Encoding: chunked\r\n\r\n", path, id, do)
						if len(body) > 0 {
							fmt.Fprintf(&text, "%x\r\n%s\r\n", len(body), body)
						}
						text.WriteString("0\r\n\r\n")
					} else {
						fmt.Fprintf(&text, "POST %s HTTP/1.1\r\nHost: a\r\nX-Id: %s\r\n%sContent-Length: %d\r\n\r\n%s", path, id, do, len(body), body)
					}
				}
				sent, cut := text.String(), rand.IntN(6) == 0
				if cut {
					sent = sent[:rand.IntN(len(sent))]
				}
				go func() {
					for len(sent) > 0 {
						k := len(sent)
						if rand.IntN(2) == 0 {
							k = min(k, 1+rand.IntN(3000))
						}
						if _, err := io.WriteString(conn, sent[:k]); err != nil {
							return
						}
						if sent = sent[k:]; rand.IntN(4) == 0 {
							time.Sleep(time.Duration(rand.IntN(7)) * time.Millisecond)
						}
					}
					if cut {
						_ = conn.(*net.TCPConn).CloseWrite()
					}
				}()
				from := bufio.NewReader(conn)
				leaves := rand.IntN(6) == 0
				for _, id := range ids {
					if leaves && rand.IntN(2) == 0 {
						break
					}
					a, err := nethttp.ReadResponse(from, nil)
					if err != nil {
						break
					}
					got, err := io.ReadAll(a.Body)
					if a.StatusCode != nethttp.StatusOK {
						break // to a request that was cut
					}
					if of := a.Header.Get("X-Of"); of != "" && (of != id || err == nil && strings.ReplaceAll(string(got), id+",", "") != "") {
						t.Errorf("%s has the answer of %s: %.80s", id, of, got)
					}
					answered.Add(1)
					if a.Close {
						break
					}
				}
				_ = conn.Close()
			}
		})
	}
	running.Wait()
	require.Eventually(t, func() bool { return under.Load() == 0 }, 30*time.Second, time.Millisecond)
	t.Log("answered", answered.Load())
	require.Positive(t, answered.Load())
}
