// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// small limits, so that what must be bounded would show soon.
const (
	queueBytes   = 64 << 20
	messageBytes = 16 << 20
	stall        = 2 * time.Second
)

func fortress(t *testing.T) *rig.Conch {
	t.Helper()
	return embedded(t, rig.ConchOptions{Settings: map[string]any{"limits": map[string]any{
		"queueBytes": queueBytes, "messageBytes": messageBytes, "stall": stall.String(), "queueRequests": 5000,
	}}})
}

// rss is how much memory of a process is resident.
func rss(t *testing.T, pid int) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(data)) {
		if after, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.Atoi(strings.Fields(after)[0])
			require.NoError(t, err)
			return kib << 10
		}
	}
	require.FailNow(t, "no VmRSS")
	return 0
}

// watchRSS returns the most that was resident until it is asked.
func watchRSS(t *testing.T, pid int) (peak func() int) {
	t.Helper()
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		most := 0
		for {
			most = max(most, rss(t, pid))
			select {
			case <-stop:
				done <- most
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	peak = sync.OnceValue(func() int { close(stop); return <-done })
	t.Cleanup(func() { peak() }) // before the process ends, whatever fails
	return peak
}

// bound is the formula of docs/operations.md.
func bound(base, connections, requests int) int {
	processors := runtime.GOMAXPROCS(0) // conch has as many
	return base + 32<<20 + 2*(queueBytes+processors*2*messageBytes+connections*(40<<10)+requests*(24<<10))
}

// whileGood makes good calls of both protocols during an attack and requires that all are answered rightly; it returns their 99th
// percentile.
func whileGood(t *testing.T, c *rig.Conch, attack func()) time.Duration {
	t.Helper()
	conn, err := grpc.NewClient(c.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	stub, web := tritonpb.NewGRPCInferenceServiceClient(conn), httpCaller(t, c.HTTP, false)
	ctx, cancel := context.WithCancel(t.Context())
	var times []time.Duration
	var failed error
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; (ctx.Err() == nil || i < 20) && failed == nil; i++ {
			start := time.Now()
			if failed = unaryCall(stub, i); failed == nil {
				failed = web(i)
			}
			times = append(times, time.Since(start)/2)
			time.Sleep(time.Millisecond)
		}
	}()
	attack()
	cancel()
	<-done
	require.NoError(t, failed, "others are served meanwhile")
	slices.Sort(times)
	return times[len(times)*99/100]
}

func dialTCP(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() }) // many were closed by conch
	return c
}

// closedWithin requires that the server ends a connection.
func closedWithin(t *testing.T, c net.Conn, limit time.Duration) string {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(limit)))
	sent, err := io.ReadAll(c)
	var timeout net.Error
	if err != nil && !strings.Contains(err.Error(), "reset") {
		require.ErrorAs(t, err, &timeout)
		require.False(t, timeout.Timeout(), "the connection is still open after %v, sent %q", limit, sent)
	}
	return string(sent)
}

// Ten thousand connections that say nothing, on each protocol, cost what docs/operations.md says, and others are served.
func TestIdleConnections(t *testing.T) {
	t.Parallel()
	c := fortress(t)
	base := rss(t, c.Pid())
	var limit syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	n := min(10_000, int(limit.Max)-2000)
	t.Logf("%d connections on each protocol: the hard limit of open files is %d", n, limit.Max)
	require.Greater(t, n, 500)
	for protocol, address := range map[string]string{"gRPC": c.GRPC, "HTTP": c.HTTP} {
		open := make([]net.Conn, n)
		p99 := whileGood(t, c, func() {
			for i := range open {
				open[i] = dialTCP(t, address)
				if protocol == "gRPC" {
					_, err := open[i].Write([]byte(http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00")) // and SETTINGS
					require.NoError(t, err)
				}
			}
		})
		most := rss(t, c.Pid())
		t.Logf("%s: %d MiB resident, %d before; others' p99 %v", protocol, most>>20, base>>20, p99)
		require.Less(t, most, bound(base, n, 0))
		for _, conn := range open {
			require.NoError(t, conn.Close())
		}
	}
}

// What is refused over HTTP, and how.
func TestHostileHTTP(t *testing.T) {
	t.Parallel()
	c := fortress(t)
	infer := "POST /v2/models/" + quickModel + "/infer HTTP/1.1\r\nHost: c\r\n"
	post := func(rest string) string {
		conn := dialTCP(t, c.HTTP)
		_, err := io.WriteString(conn, rest)
		require.NoError(t, err)
		return closedWithin(t, conn, time.Minute)
	}
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	_, err := z.Write(make([]byte, 4*messageBytes))
	require.NoError(t, err)
	require.NoError(t, z.Close())
	for name, attack := range map[string]struct{ send, status string }{
		"a length given twice, differently": {infer + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n12345", "400 "},
		"a header as large as a body":       {infer + "X: " + strings.Repeat("x", 128<<10) + "\r\n\r\n", "431 "},
		"too many headers":                  {infer + strings.Repeat("X: y\r\n", 20_000) + "\r\n", "431 "},
		"no length that is a number":        {infer + "Content-Length: -1\r\n\r\n", "400 "},
		"chunked, but not only":             {infer + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "501 "},
		"a body beyond the largest":         {infer + fmt.Sprintf("Content-Length: %d\r\n\r\n", messageBytes+1), "400 "},
		"a gzip bomb": {infer + "Connection: close\r\nContent-Encoding: gzip\r\nContent-Length: " + strconv.Itoa(bomb.Len()) +
			"\r\n\r\n" + bomb.String(), "400 "},
		"a chunk without an end": {infer + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n", "400 "},
		"a body that stops":      {infer + "Content-Length: 100\r\n\r\n{", "400 "},
		"half a header":          {infer + "X", ""},
	} {
		t.Run(name, func(t *testing.T) {
			answer := post(attack.send)
			if attack.status == "" {
				return // closed is enough
			}
			require.True(t, strings.HasPrefix(answer, "HTTP/1.1 "+attack.status), "%.200q", answer)
		})
	}

	// Two framings at once: whatever follows the body is never taken for a request.
	answer := post(infer + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v2/health/live HTTP/1.1\r\nHost: c\r\n\r\n")
	require.LessOrEqual(t, strings.Count(answer, "HTTP/1.1 "), 1, "%q", answer)

	// Pipelined requests are answered in their order.
	conn := dialTCP(t, c.HTTP)
	_, err = io.WriteString(conn, strings.Repeat("GET /v2/health/live HTTP/1.1\r\nHost: c\r\n\r\n", 50))
	require.NoError(t, err)
	reader := bufio.NewReader(conn)
	for range 50 {
		response, err := http.ReadResponse(reader, nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, response.StatusCode)
		require.NoError(t, response.Body.Close())
	}
}

// Bodies that are never whole count while they come: beyond the limit others are refused or the unfinished evicted, and memory is bounded.
func TestBodiesThatAreNeverWhole(t *testing.T) {
	t.Parallel()
	c := fortress(t)
	base := rss(t, c.Pid())
	peak := watchRSS(t, c.Pid())
	const senders = 40 // each almost a whole message: ten times what may be held
	conn, err := grpc.NewClient(c.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	part := make([]byte, messageBytes-1)
	p99 := whileGood(t, c, func() {
		var all sync.WaitGroup
		for range senders {
			all.Go(func() { // over HTTP
				raw, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", c.HTTP)
				if err != nil {
					return
				}
				defer raw.Close()
				_ = raw.SetDeadline(time.Now().Add(2 * stall))
				fmt.Fprintf(raw, "POST /v2/models/%s/infer HTTP/1.1\r\nHost: c\r\nContent-Length: %d\r\n\r\n", quickModel, messageBytes)
				_, _ = raw.Write(part) // it may be refused in the middle
				_, _ = io.Copy(io.Discard, raw)
			})
		}
		all.Wait()
		unfinished(t, c.GRPC, senders, part)
	})
	most := peak()
	t.Logf("%d MiB resident at most, %d before; others' p99 %v", most>>20, base>>20, p99)
	require.Less(t, most, bound(base, 2*senders, 2*senders))
	require.Positive(t, scrape(t, c).sum("conch_edge_refused_total", "reason=evicted"), "gRPC calls were evicted")
	requireNothingHeld(t, c)
}

// requireNothingHeld waits until conch counts no bytes of requests and answers any more.
func requireNothingHeld(t *testing.T, c *rig.Conch) {
	t.Helper()
	require.Eventually(t, func() bool {
		m := scrape(t, c)
		return len(m.labelled("conch_edge_bytes")) == 1 && m.sum("conch_edge_bytes") == 0
	}, 30*time.Second, 50*time.Millisecond, "in the end nothing is held")
}

// unfinished opens calls on one HTTP/2 connection and sends all of their messages but the end.
func unfinished(t *testing.T, address string, n int, part []byte) {
	t.Helper()
	raw := dialTCP(t, address)
	defer raw.Close()
	require.NoError(t, raw.SetDeadline(time.Now().Add(20*time.Second)))
	f := newRawHTTP2(t, raw)
	refused, ended := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	go func() { // window updates are ignored: the windows of conch are large, and ours are not asked for
		defer close(ended)
		once := sync.OnceFunc(func() { close(refused) })
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			switch v := frame.(type) {
			case *http2.SettingsFrame:
				if !v.IsAck() {
					mu.Lock()
					_ = f.WriteSettingsAck()
					mu.Unlock()
				}
			case *http2.HeadersFrame, *http2.RSTStreamFrame:
				once()
			}
		}
	}()
	prefix := binary.BigEndian.AppendUint32([]byte{0}, messageBytes)
	for i := range n {
		mu.Lock()
		id := uint32(2*i + 1)
		f.open(id)
		require.NoError(t, f.WriteData(id, false, prefix))
		for sent := 0; sent < min(len(part), 3<<20); sent += 16 << 10 { // within the stream's window
			if err := f.WriteData(id, false, part[:16<<10]); err != nil {
				break
			}
		}
		mu.Unlock()
	}
	select {
	case <-refused:
	case <-ended:
		require.FailNow(t, "no call of this connection is refused or evicted")
	}
	require.NoError(t, raw.Close())
	<-ended
}

// rawHTTP2 speaks HTTP/2 as it likes.
type rawHTTP2 struct {
	*http2.Framer
	t      *testing.T
	header bytes.Buffer
	encode *hpack.Encoder
}

func newRawHTTP2(t *testing.T, c net.Conn) *rawHTTP2 {
	_, err := io.WriteString(c, http2.ClientPreface)
	require.NoError(t, err)
	h := &rawHTTP2{Framer: http2.NewFramer(c, c), t: t}
	h.encode = hpack.NewEncoder(&h.header)
	require.NoError(t, h.WriteSettings())
	return h
}

// open begins a ModelInfer call.
func (h *rawHTTP2) open(id uint32) {
	h.header.Reset()
	for _, f := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", tritonpb.GRPCInferenceService_ModelInfer_FullMethodName}, {":authority", "c"},
		{"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		_ = h.encode.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // into memory
	}
	_ = h.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: h.header.Bytes(), EndHeaders: true}) // conch may have gone
}

// Calls that are opened and reset, and pings, as fast as they can be written.
func TestFloodsOverHTTP2(t *testing.T) {
	t.Parallel()
	c := fortress(t)
	base := rss(t, c.Pid())
	peak := watchRSS(t, c.Pid())
	p99 := whileGood(t, c, func() {
		raw := dialTCP(t, c.GRPC)
		f := newRawHTTP2(t, raw)
		go func() { _, _ = io.Copy(io.Discard, raw) }()
		for i := range uint32(20_000) {
			f.open(2*i + 1)
			if err := f.WriteRSTStream(2*i+1, http2.ErrCodeCancel); err != nil {
				break
			}
		}
		require.NoError(t, raw.Close())

		pings := dialTCP(t, c.GRPC)
		f = newRawHTTP2(t, pings)
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			_, _ = io.Copy(io.Discard, pings)
		}()
		for i := range 200_000 {
			if err := f.WritePing(false, [8]byte{byte(i)}); err != nil {
				break
			}
		}
		select {
		case <-gone:
		case <-time.After(time.Minute):
			require.Fail(t, "a flood of pings is not ended")
		}
	})
	most := peak()
	t.Logf("%d MiB resident at most, %d before; others' p99 %v", most>>20, base>>20, p99)
	require.Less(t, most, bound(base, 2, 5000))
}

// Answers that the client does not read: it asks for much and opens no window.
func TestAnswersThatNobodyTakes(t *testing.T) {
	t.Parallel()
	c := fortress(t)
	raw := dialTCP(t, c.GRPC)
	f := newRawHTTP2(t, raw)
	require.NoError(t, f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	data := make(chan int, 1)
	go func() {
		n := 0
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				data <- n
				return
			}
			if d, ok := frame.(*http2.DataFrame); ok {
				n += len(d.Data())
			}
		}
	}()
	message, err := proto.Marshal(tensor(quickModel, 1))
	require.NoError(t, err)
	body := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
	for i := range uint32(100) {
		f.open(2*i + 1)
		require.NoError(t, f.WriteData(2*i+1, true, body))
	}
	select {
	case n := <-data:
		require.Zero(t, n, "no window, no data")
	case <-time.After(time.Minute):
		require.Fail(t, "who takes nothing is still connected")
	}
	require.EqualValues(t, 1, scrape(t, c).sum("conch_edge_refused_total", "reason=stalled"))
	requireNothingHeld(t, c)
}

// Messages that are too large, as they are or once they are unpacked, are refused in gRPC's words.
func TestLargeMessages(t *testing.T) {
	t.Parallel()
	c := fortress(t)
	base := rss(t, c.Pid())
	peak := watchRSS(t, c.Pid())
	conn, err := grpc.NewClient(c.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	defer conn.Close()
	stub := tritonpb.NewGRPCInferenceServiceClient(conn)
	request := &tritonpb.ModelInferRequest{ModelName: quickModel, RawInputContents: [][]byte{make([]byte, 2*messageBytes)}}
	_, err = stub.ModelInfer(t.Context(), request)
	require.Equal(t, codes.ResourceExhausted, status.Code(err), "%v", err)
	var all sync.WaitGroup
	for range 8 { // 32 KiB each on the wire, 32 MiB each unpacked
		all.Go(func() {
			_, err := stub.ModelInfer(t.Context(), request, grpc.UseCompressor("gzip"))
			if code := status.Code(err); code != codes.ResourceExhausted && code != codes.Unavailable {
				t.Errorf("a bomb is answered with %v", err)
			}
		})
	}
	all.Wait()
	most := peak()
	t.Logf("%d MiB resident at most, %d before", most>>20, base>>20)
	require.Less(t, most, bound(base, 1, 8))
}
