// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	goflag "flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	nethttp "net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/internal/minitriton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// outcome is a caller's answer: over gRPC a message or an error, over HTTP a
// status and a body.
type outcome struct {
	resp *tritonpb.ModelInferResponse
	err  error
	code int
	body string
}

// pending is a request that has been sent.
type pending struct {
	request  *tritonpb.ModelInferRequest
	http     bool
	mayLeave bool // it has a deadline, or was cancelled
	absent   bool // its model was not served when it was sent
	either   bool // its model was loaded or unloaded while it was on its way
	cancel   context.CancelFunc
	done     chan outcome
}

// world is Conch before partitions that are started and killed, and a server
// beside it that always runs: the reference for the answers.
type world struct {
	*rig
	t         *testing.T
	http      string
	client    *nethttp.Client
	reference *minitriton.Server
	refClient tritonpb.GRPCInferenceServiceClient

	servers  map[string]*minitriton.Server // by partition
	loaded   map[string]bool
	gone     map[string]*router.Model // as last served
	waiting  []*pending
	killed   bool // since nothing was under way
	next     int
	sent     int
	answered int
}

// TestBatchingNeverShows: whatever is sent, cancelled, swapped, unloaded and
// killed, in any order, every caller gets the answer that a server alone would
// have given, over either protocol.
func TestBatchingNeverShows(t *testing.T) {
	// A case has some thirty steps and hundreds of requests: a quarter of rapid's
	// usual number is enough, unless more were asked for.
	if checks := goflag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		require.NoError(t, goflag.Set("rapid.checks", "25"))
		t.Cleanup(func() { require.NoError(t, goflag.Set("rapid.checks", checks.DefValue)) })
	}
	w := newWorld(t, 3)
	property := func(t *rapid.T) {
		w.forget()
		t.Repeat(map[string]func(*rapid.T){
			"send": func(t *rapid.T) { w.send(t, 1, "") },
			"burst": func(t *rapid.T) {
				n := rapid.IntRange(4, 12).Draw(t, "requests")
				w.send(t, n, rapid.SampledFrom([]string{"identity", "add_sub", "string", ""}).Draw(t, "model"))
			},
			"cancel": w.cancelOne,
			"swap":   w.swap,
			"load":   w.loadOrUnload,
			"kill":   w.kill,
			"settle": w.settle,
		})
		w.settle(t)
	}
	// How often requests share a batch depends on the machine: more are sent while too few have.
	const enough, rounds = 20, 50
	executions, shared := 0, 0
	for round := 0; round == 0 || shared <= enough && round < rounds && !t.Failed(); round++ {
		rapid.Check(t, property)
		executions, shared = w.seen.shared()
	}
	t.Logf("%d requests, %d answered in full, %d executions, %d of them shared", w.sent, w.answered, executions, shared)
	require.Greater(t, shared, enough, "without batches the test says nothing")
	require.Greater(t, w.answered, w.sent/3)
	require.Eventually(t, func() bool { return w.seen.settled() }, 30*time.Second, time.Millisecond)
	w.seen.count(t)
}

func newWorld(t *testing.T, partitions int) *world {
	models := []string{"identity", "add_sub", "string"}
	w := &world{rig: newRig(t, partitions, models...), t: t, servers: map[string]*minitriton.Server{}, loaded: map[string]bool{}, gone: map[string]*router.Model{}, next: partitions}
	for i, p := range w.table.Partitions {
		w.servers[p.ID] = w.rig.servers[i]
	}
	for _, name := range models {
		w.loaded[name] = true
	}
	w.profiles(100*time.Microsecond, 2*time.Millisecond)
	w.http = serveHTTP(t, w.d, w.agg)
	transport := &nethttp.Transport{MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	w.client = &nethttp.Client{Transport: transport}
	// The reference is like the others and in no table.
	w.newPartition(t, "reference", 0)
	w.reference = w.rig.servers[len(w.rig.servers)-1]
	w.refClient = tritonpb.NewGRPCInferenceServiceClient(dialTo(t, w.reference.Endpoint().GRPC))
	return w
}

// send starts requests of any kind, or of one model, some with a deadline, some
// to be cancelled.
func (w *world) send(t *rapid.T, n int, like string) {
	for range n {
		seed := rapid.Uint64().Draw(t, "seed")
		g := rand.New(rand.NewPCG(seed, seed))
		q := &pending{request: randomRequest(g, w.sent), done: make(chan outcome, 1)}
		for tries := 0; like != "" && q.request.ModelName != like && tries < 50; tries++ {
			q.request = randomRequest(g, w.sent)
		}
		q.http = g.IntN(2) == 0 && asHTTP(q.request) != nil
		_, known := w.loaded[q.request.ModelName]
		q.absent = known && !w.loaded[q.request.ModelName]
		w.sent++
		ctx, cancel := context.WithCancel(w.t.Context())
		switch g.IntN(6) {
		case 0:
			ctx, cancel = context.WithTimeout(w.t.Context(), time.Duration(g.IntN(5000))*time.Microsecond)
			q.mayLeave = true
		case 1:
			q.request.Parameters = map[string]*tritonpb.InferParameter{"timeout": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 1 + g.Int64N(20_000)}}}
		}
		q.cancel = cancel
		w.waiting = append(w.waiting, q)
		go func() { q.done <- w.call(ctx, q) }()
	}
}

func (w *world) call(ctx context.Context, q *pending) (o outcome) {
	if !q.http {
		o.resp, o.err = w.rig.client.ModelInfer(ctx, q.request)
		return o
	}
	return w.post(ctx, w.http, q.request)
}

// post sends a request as JSON.
func (w *world) post(ctx context.Context, address string, m *tritonpb.ModelInferRequest) (o outcome) {
	path := "/v2/models/" + m.ModelName
	if m.ModelVersion != "" {
		path += "/versions/" + m.ModelVersion
	}
	r, err := nethttp.NewRequestWithContext(ctx, nethttp.MethodPost, "http://"+address+path+"/infer", bytes.NewReader(asHTTP(m)))
	if err != nil {
		return outcome{err: err}
	}
	response, err := w.client.Do(r)
	if err != nil {
		return outcome{err: err}
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return outcome{code: response.StatusCode, body: string(body), err: err}
}

// asHTTP is a request as JSON; nil if it has no such form.
func asHTTP(m *tritonpb.ModelInferRequest) []byte {
	inputs := make([]map[string]any, 0, len(m.Inputs))
	for i, in := range m.Inputs {
		if in.Contents != nil || i >= len(m.RawInputContents) {
			return nil
		}
		raw := m.RawInputContents[i]
		tensor := map[string]any{"name": in.Name, "datatype": in.Datatype, "shape": in.Shape}
		switch in.Datatype {
		case "INT32":
			values := make([]int32, len(raw)/4)
			for k := range values {
				values[k] = int32(binary.LittleEndian.Uint32(raw[4*k:]))
			}
			tensor["data"] = values
		case "BYTES":
			words := []string{}
			for len(raw) > 0 {
				n := binary.LittleEndian.Uint32(raw)
				words = append(words, string(raw[4:4+n]))
				raw = raw[4+n:]
			}
			tensor["data"] = words
		default:
			return nil
		}
		inputs = append(inputs, tensor)
	}
	message := map[string]any{"id": m.Id, "inputs": inputs}
	if len(m.Outputs) > 0 {
		outputs := make([]map[string]any, 0, len(m.Outputs))
		for _, o := range m.Outputs {
			outputs = append(outputs, map[string]any{"name": o.Name})
		}
		message["outputs"] = outputs
	}
	body, err := json.Marshal(message)
	if err != nil {
		return nil
	}
	return body
}

func (w *world) cancelOne(t *rapid.T) {
	if len(w.waiting) == 0 {
		t.Skip("nothing to cancel")
	}
	q := rapid.SampledFrom(w.waiting).Draw(t, "request")
	q.mayLeave = true
	q.cancel()
}

// swap gives every model another place, discipline, target and limit.
func (w *world) swap(t *rapid.T) {
	next := &router.Table{Revision: w.table.Revision + 1, Partitions: w.table.Partitions, Models: map[string]*router.Model{}}
	for _, name := range slices.Sorted(maps.Keys(w.loaded)) {
		if !w.loaded[name] {
			continue
		}
		m := *w.config(name)
		m.Discipline = rapid.SampledFrom([]string{"adaptive", "deferred", "eager", "timeout"}).Draw(t, "discipline")
		m.SLO = time.Duration(rapid.IntRange(1, 30).Draw(t, "slo")) * time.Millisecond
		m.MaxBatch = rapid.SampledFrom([]int{0, 2, 4}).Draw(t, "max batch")
		m.Places = nil
		partitions := rapid.IntRange(1, 1<<len(next.Partitions)-1).Draw(t, "partitions")
		for i, p := range next.Partitions {
			if partitions&(1<<i) != 0 {
				m.Places = append(m.Places, router.Place{Partition: p.ID})
			}
		}
		next.Models[name] = &m
	}
	w.apply(t, next)
}

// config is a model as it was first served.
func (w *world) config(name string) *router.Model {
	if m := w.table.Models[name]; m != nil {
		return m
	}
	return w.gone[name]
}

func (w *world) apply(t *rapid.T, next *router.Table) {
	for name, m := range w.table.Models {
		w.gone[name] = m
	}
	if err := w.d.Swap(w.t.Context(), next); err != nil {
		t.Fatal(err)
	}
	w.table = next
}

func (w *world) loadOrUnload(t *rapid.T) {
	name := rapid.SampledFrom(slices.Sorted(maps.Keys(w.loaded))).Draw(t, "model")
	if w.loaded[name] && rapid.IntRange(0, 2).Draw(t, "stay") > 0 {
		return
	}
	w.loaded[name] = !w.loaded[name]
	for _, q := range w.waiting {
		q.either = q.either || q.request.ModelName == name
	}
	next := &router.Table{Revision: w.table.Revision + 1, Partitions: w.table.Partitions, Models: maps.Clone(w.table.Models)}
	if !w.loaded[name] {
		delete(next.Models, name)
	} else {
		m := *w.config(name)
		m.Places = nil
		for _, p := range next.Partitions {
			m.Places = append(m.Places, router.Place{Partition: p.ID})
		}
		next.Models[name] = &m
	}
	w.apply(t, next)
}

// kill ends a partition as SIGKILL does and puts another in its place. A request
// is retried once, so no caller notices unless it happens to the request twice:
// the requests under way are waited for in between.
func (w *world) kill(t *rapid.T) {
	if w.killed {
		w.settle(t)
	}
	w.killed = true
	i := rapid.IntRange(0, len(w.table.Partitions)-1).Draw(t, "partition")
	dead := w.table.Partitions[i]
	_ = w.servers[dead.ID].Close()
	delete(w.servers, dead.ID)
	p := w.newPartition(w.t, fmt.Sprint("p", w.next), i)
	w.next++
	w.servers[p.ID] = w.rig.servers[len(w.rig.servers)-1]
	next := &router.Table{Revision: w.table.Revision + 1, Partitions: slices.Clone(w.table.Partitions), Models: map[string]*router.Model{}}
	next.Partitions[i] = p
	for name, m := range w.table.Models {
		c := *m
		c.Places = slices.Clone(m.Places)
		for k := range c.Places {
			if c.Places[k].Partition == dead.ID {
				c.Places[k].Partition = p.ID
			}
		}
		next.Models[name] = &c
	}
	w.apply(t, next)
}

// forget releases what a failed case has left.
func (w *world) forget() {
	for _, q := range w.waiting {
		q.cancel()
	}
	w.waiting, w.killed = nil, false
}

// settle waits for all requests and compares their answers with the reference.
func (w *world) settle(t *rapid.T) {
	for _, q := range w.waiting {
		select {
		case o := <-q.done:
			w.judge(t, q, o)
		case <-time.After(time.Minute):
			t.Fatalf("no answer to %v", q.request)
		}
		q.cancel()
	}
	w.waiting, w.killed = nil, false
}

func (w *world) judge(t *rapid.T, q *pending, got outcome) {
	left := errors.Is(got.err, context.Canceled) || errors.Is(got.err, context.DeadlineExceeded) ||
		status.Code(got.err) == codes.Canceled || status.Code(got.err) == codes.DeadlineExceeded
	if left && q.mayLeave {
		return
	}
	missing := status.Code(got.err) == codes.NotFound || got.code == nethttp.StatusNotFound
	if q.either && (missing || w.killed && status.Code(got.err) == codes.Unavailable || w.killed && got.code == nethttp.StatusServiceUnavailable) {
		return // unloaded, and then the server that had it was killed
	}
	if w.killed && q.request.Parameters["timeout"] != nil && (strings.Contains(status.Convert(got.err).Message(), "Request timeout expired") || strings.Contains(got.body, "Request timeout expired")) {
		return // it may have waited for the next server
	}
	if q.absent && !q.either {
		if !missing {
			t.Fatalf("%v of a model that is not served: %+v", q.request, got)
		}
		return
	}
	if !q.http {
		want, err := w.refClient.ModelInfer(w.t.Context(), q.request)
		if status.Code(err) != status.Code(got.err) || status.Convert(err).Message() != status.Convert(got.err).Message() || !proto.Equal(want, got.resp) {
			t.Fatalf("%v (%+v)\nserver: %v, %v\nconch:  %v, %v", q.request, *q, want, err, got.resp, got.err)
		}
	} else if want := w.post(w.t.Context(), w.reference.Endpoint().HTTP, q.request); want != got {
		t.Fatalf("%v\nserver: %+v\nconch:  %+v", q.request, want, got)
	}
	w.answered++
}
