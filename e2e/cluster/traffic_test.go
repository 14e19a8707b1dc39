// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
)

// infer has a request answered as a client behind a Service does, whose connection is to one of the replicas, the nth: where that one takes no connection it tries
// the next, and a request that a replica took and whose connection broke, since that replica was killed, is asked once more. Whatever a replica answers is the answer.
func (r *rig) infer(n int, at func(c *replica) error) (err error) {
	cut := map[*replica]bool{}
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) { // a client's pause
		for i := range r.replicas {
			c := r.replicas[(n+i)%len(r.replicas)]
			if c.away.Load() {
				continue
			}
			err = at(c)
			if len(r.replicas) > 1 && (errors.Is(err, syscall.ECONNREFUSED) || unsent(err)) {
				continue
			}
			if broken := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || cutOff(err); !broken || cut[c] || len(r.replicas) < 2 {
				return err
			}
			cut[c] = true
			r.cut.Add(1)
		}
	}
	return err
}

// inferAt sends a request to an address, and looks at the answer: the model's is 2x+1.
func inferAt(address, model string) error {
	body := `{"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1, 16], "data": [3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3]}]}`
	client := http.Client{Timeout: 20 * time.Second}
	answer, err := client.Post("http://"+address+"/v2/models/"+model+"/infer", "application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	var out struct{ Outputs []struct{ Data []float64 } }
	if answer.StatusCode != http.StatusOK || json.Unmarshal(text, &out) != nil || len(out.Outputs) != 1 || len(out.Outputs[0].Data) != 16 || out.Outputs[0].Data[0] != 7 {
		return fmt.Errorf("HTTP %d: %s", answer.StatusCode, text)
	}
	return nil
}

// load sends requests by both protocols to all replicas until the returned function is called, which says how many were sent and which failed. What is measured has callers by HTTP
// alone.
func (r *rig) load() (end func() (sent int, failed []error)) {
	byHTTP := func(n int, model string) error {
		return r.infer(n, func(c *replica) error { return inferAt(c.address, model) })
	}
	if os.Getenv(measuredFile) != "" {
		return r.loadBy(20*time.Millisecond, byHTTP)
	}
	clients := &clients{all: map[client]*grpc.ClientConn{}}
	over := r.loadBy(10*time.Millisecond, byHTTP, func(n int, model string) error {
		return r.infer(n, func(c *replica) error { return clients.infer(client{n, c.port() + "01"}, model) })
	})
	return func() (int, []error) {
		defer clients.close()
		return over()
	}
}

// load is that of the rig, to one replica alone.
func (c *replica) load() (end func() (sent int, failed []error)) {
	return c.r.loadAt(func() string { return c.address })
}

// loadAt is load over HTTP, with an address for each request.
func (r *rig) loadAt(address func() string) (end func() (sent int, failed []error)) {
	return r.loadBy(10*time.Millisecond, func(_ int, model string) error { return inferAt(address(), model) })
}

// callers is how many there are of each kind.
const callers = 4

// loadBy has callers of each kind ask, each of which pauses after an answer.
func (r *rig) loadBy(pause time.Duration, kinds ...func(n int, model string) error) (end func() (sent int, failed []error)) {
	r.cut.Store(0)
	r.gap.Store(0)
	var mu sync.Mutex
	var sent int
	var failed []error
	answered := time.Now()
	done := make(chan struct{})
	var all sync.WaitGroup
	for i := range callers * len(kinds) {
		ask := kinds[i/callers]
		all.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				err := ask(i, []string{"one", "two"}[(n+i)%2])
				mu.Lock()
				sent++
				r.sent.Add(1)
				if now := time.Now(); err != nil {
					failed = append(failed, err)
				} else {
					r.gap.Store(max(r.gap.Load(), int64(now.Sub(answered))))
					answered = now
				}
				mu.Unlock()
				time.Sleep(pause)
			}
		})
	}
	return func() (int, []error) {
		close(done)
		all.Wait()
		return sent, failed
	}
}

// flows waits until some more requests were answered.
func (r *rig) flows() {
	r.t.Helper()
	want := r.sent.Load() + 40
	r.eventually("requests are answered", time.Minute, func() error {
		if n := r.sent.Load(); n < want {
			return fmt.Errorf("%d of %d were", n, want)
		}
		return nil
	})
}

// none fails where a request did.
func (r *rig) none(sent int, failed []error) {
	r.t.Helper()
	if len(failed) > 0 {
		r.t.Errorf("%d of %d requests failed; the first: %v", len(failed), sent, failed[0])
		return
	}
	r.t.Logf("%d requests, none failed, %d were asked once more; %.1f s without an answer at most", sent, r.cut.Load(), time.Duration(r.gap.Load()).Seconds())
}

// measuredFile names the environment variable with which `make bench BENCH=failover` names a file.
const measuredFile = "CONCH_CLUSTER_MEASURED"

// measured writes what callers noticed of a fault to that file.
func (r *rig) measured(sent int, failed []error) {
	name := os.Getenv(measuredFile)
	if name == "" {
		return
	}
	file, err := os.OpenFile(name, os.O_APPEND|os.O_WRONLY, 0)
	must(r.t, err)
	must(r.t, json.NewEncoder(file).Encode(map[string]any{
		"sent": sent, "lost": len(failed), "again": r.cut.Load(), "gapSeconds": time.Duration(r.gap.Load()).Seconds(),
	}))
	must(r.t, file.Close())
}
