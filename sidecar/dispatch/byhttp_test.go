// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// port is the HTTP port of a partition for tests. It answers a request for inference with what it was asked, in Triton's form.
type port struct {
	*httptest.Server
	asked atomic.Int64 // requests that came

	mu     sync.Mutex
	does   http.HandlerFunc // in place of that, if set
	last   *http.Request
	body   []byte
	header http.Header
}

const jsonAnswer = `{"id":"of-the-port","model_name":"m","model_version":"1","outputs":[{"name":"OUT","datatype":"FP32","shape":[1,4],"data":[0.5,1.0,1e3,-0.0]}]}`

func newPort(t *testing.T) *port {
	p := &port{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.asked.Add(1)
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		p.mu.Lock()
		p.last, p.body, p.header = r, body, r.Header
		does := p.does
		p.mu.Unlock()
		if does != nil {
			does(w, r)
			return
		}
		w.Header()["Date"] = nil
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, jsonAnswer)
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *port) address() string { return strings.TrimPrefix(p.URL, "http://") }

func (p *port) do(h http.HandlerFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.does = h
}

// says has the port answer with an error.
func (p *port) says(code int, text string) {
	p.do(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": text})
	})
}

// ported is a model on servers with HTTP ports, and the HTTP front before them.
type ported struct {
	d       *dispatch.Dispatcher
	seen    *recorder
	parts   []*triton
	ports   []*port
	routes  *router.Table
	address string
}

func newPorted(t *testing.T, n int, o dispatch.Options, change func(*router.Model)) *ported {
	if o.Brief == 0 {
		o.Brief = time.Hour
	}
	o.Forward.IdleHTTP = time.Hour // or a busy machine closes what a test waits for
	p := &ported{}
	for range n {
		p.parts = append(p.parts, newTriton(t))
	}
	routes := table(1, func(m *router.Model) {
		m.SLO = time.Hour // or a busy machine is late
		if change != nil {
			change(m)
		}
	}, p.parts...)
	for i := range n {
		p.ports = append(p.ports, newPort(t))
		routes.Partitions[i].Endpoint.HTTP = p.ports[i].address()
	}
	p.routes = routes
	p.d, p.seen = newDispatcher(t, o, routes)
	_, p.address = fronts(t, p.d, routes)
	return p
}

const asJSON = `{"id":"7","inputs":[{"name":"IN","datatype":"FP32","shape":[1,4],"data":[1,1,1,1]}]}`

// post asks for inference.
func (p *ported) post(t *testing.T, body string) (code int, answer string) {
	return postTo(t, http.DefaultClient, "http://"+p.address+"/v2/models/m/infer", body)
}

// warm asks until requests go to the HTTP ports.
func (p *ported) warm(t *testing.T) {
	require.Eventually(t, func() bool {
		code, _ := p.post(t, asJSON)
		require.Equal(t, 200, code)
		for _, at := range p.ports {
			if at.asked.Load() == 0 {
				return false
			}
		}
		return true
	}, 30*time.Second, time.Millisecond)
	for i, at := range p.ports {
		at.asked.Store(0)
		p.parts[i].set(func() { p.parts[i].seen = nil })
	}
}

// warm2 is warm for two servers: one is asked while the other is held.
func (p *ported) warm2(t *testing.T) {
	for i := range p.ports {
		server, port := p.parts[1-i], p.ports[1-i]
		hold, held := make(chan struct{}), make(chan string, 1000)
		port.do(func(w http.ResponseWriter, _ *http.Request) {
			held <- "over HTTP"
			<-hold
			_, _ = io.WriteString(w, jsonAnswer)
		})
		server.set(func() { server.hold, server.started = hold, held })
		var running sync.WaitGroup
		for p.ports[i].asked.Load() == 0 {
			answered := make(chan struct{})
			running.Go(func() {
				defer close(answered)
				_, _ = p.post(t, asJSON)
			})
			select { // alone: what shares an execution goes over gRPC
			case <-held:
			case <-answered:
			}
		}
		close(hold)
		running.Wait()
		port.do(nil)
		server.set(func() { server.hold, server.started = nil, nil })
	}
	for i, at := range p.ports {
		at.asked.Store(0)
		p.parts[i].set(func() { p.parts[i].seen = nil })
	}
}

// byGRPC is how many requests came over gRPC since warm.
func (p *ported) byGRPC() (n int) {
	for _, at := range p.parts {
		at.set(func() { n += len(at.seen) })
	}
	return n
}

func (p *ported) byHTTP() (n int) {
	for _, at := range p.ports {
		n += int(at.asked.Load())
	}
	return n
}

// TestALoneRequestGoesOnByHTTP: it reaches the server's HTTP port as it came, and the answer comes back as it was given.
func TestALoneRequestGoesOnByHTTP(t *testing.T) {
	binary := `{"inputs":[{"name":"IN","datatype":"FP32","shape":[1,4],"parameters":{"binary_data_size":16}}],"parameters":{"binary_data_output":true,"own":"x"}}`
	head := strconv.Itoa(len(binary))
	for name, c := range map[string]struct {
		change func(*router.Model)
		body   string
		header map[string]string
		gzip   bool
		length string // that reaches the server
	}{
		"JSON":           {body: asJSON},
		"binary":         {body: binary + string(make([]byte, 16)), header: map[string]string{"Inference-Header-Content-Length": head}, length: head},
		"raw":            {body: string(make([]byte, 16)), header: map[string]string{"Inference-Header-Content-Length": "0"}, length: "0"},
		"compressed":     {body: asJSON, header: map[string]string{"Content-Encoding": "gzip"}, gzip: true},
		"passed through": {body: asJSON, change: func(m *router.Model) { m.Batchable, m.PassThroughReason = false, "a test" }},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPorted(t, 1, dispatch.Options{}, c.change)
			p.warm(t)
			sent := c.body
			if c.gzip {
				var b bytes.Buffer
				z := gzip.NewWriter(&b)
				_, _ = io.WriteString(z, c.body)
				require.NoError(t, z.Close())
				sent = b.String()
			}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+p.address+"/v2/models/m/versions/1/infer", strings.NewReader(sent))
			require.NoError(t, err)
			r.Header.Set("Accept-Encoding", "identity")
			r.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
			for k, v := range c.header {
				r.Header.Set(k, v)
			}
			answer, err := http.DefaultClient.Do(r)
			require.NoError(t, err)
			text, err := io.ReadAll(answer.Body)
			require.NoError(t, err)
			require.NoError(t, answer.Body.Close())
			require.Equal(t, 200, answer.StatusCode, string(text))
			require.Equal(t, jsonAnswer, string(text))
			require.Equal(t, "application/json", answer.Header.Get("Content-Type"))
			at := p.ports[0]
			require.EqualValues(t, 1, at.asked.Load())
			require.Zero(t, p.byGRPC())
			require.Equal(t, "/v2/models/m/versions/1/infer", at.last.RequestURI)
			require.Equal(t, c.body, string(at.body))
			require.Equal(t, c.length, at.header.Get("Inference-Header-Content-Length"))
			require.Empty(t, at.header.Get("Content-Encoding"))
			require.Empty(t, at.header.Get("Accept-Encoding"))
			require.Equal(t, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", at.header.Get("Traceparent"))
			require.Equal(t, dispatch.OK, p.seen.outcomes[len(p.seen.outcomes)-1].Result)
		})
	}
}

// TestAnswersOfTheHTTPPortArePassedOn, with their binary part, and compressed for a client that asks for it.
func TestAnswersOfTheHTTPPortArePassedOn(t *testing.T) {
	p := newPorted(t, 1, dispatch.Options{}, nil)
	p.warm(t)
	head := `{"model_name":"m","model_version":"1","outputs":[{"name":"OUT","datatype":"FP32","shape":[1,4],"parameters":{"binary_data_size":16}}]}`
	data := "0123456789abcdef"
	p.ports[0].do(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Inference-Header-Content-Length", strconv.Itoa(len(head)))
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = io.WriteString(w, head+data)
	})
	for _, encoding := range []string{"identity", "gzip"} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+p.address+"/v2/models/m/infer", strings.NewReader(asJSON))
		require.NoError(t, err)
		r.Header.Set("Accept-Encoding", encoding)
		answer, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		from := io.Reader(answer.Body)
		if encoding == "gzip" {
			require.Equal(t, "gzip", answer.Header.Get("Content-Encoding"))
			from, err = gzip.NewReader(from)
			require.NoError(t, err)
		}
		text, err := io.ReadAll(from)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, head+data, string(text))
		require.Equal(t, strconv.Itoa(len(head)), answer.Header.Get("Inference-Header-Content-Length"))
		require.Equal(t, "application/octet-stream", answer.Header.Get("Content-Type"))
	}
	require.EqualValues(t, 2, p.ports[0].asked.Load())
}

// TestWhatDoesNotGoByHTTP: what the HTTP port would answer otherwise, or not faster.
func TestWhatDoesNotGoByHTTP(t *testing.T) {
	sequence := strings.Replace(asJSON, `"inputs"`, `"parameters":{"sequence_id":7,"sequence_start":true},"inputs"`, 1)
	long := strings.Replace(asJSON, `"inputs"`, `"parameters":{"own":"`+strings.Repeat("x", 64<<10)+`"},"inputs"`, 1)
	// A server crashes on classes of nothing that are asked for over HTTP.
	classes := strings.Replace(asJSON, `"inputs"`, `"outputs":[{"name":"OUT","parameters":{"classification":1}}],"inputs"`, 1)
	for name, body := range map[string]string{"a sequence": sequence, "large": long, "classes": classes} {
		t.Run(name, func(t *testing.T) {
			p := newPorted(t, 1, dispatch.Options{}, nil)
			p.warm(t)
			code, text := p.post(t, body)
			require.Equal(t, 200, code, text)
			require.Equal(t, 1, p.byGRPC())
			require.Zero(t, p.byHTTP())
		})
	}
	t.Run("long executions", func(t *testing.T) {
		p := newPorted(t, 1, dispatch.Options{Brief: time.Nanosecond}, nil)
		for range 10 {
			code, _ := p.post(t, asJSON)
			require.Equal(t, 200, code)
		}
		require.Zero(t, p.byHTTP())
	})
	t.Run("gRPC", func(t *testing.T) {
		p := newPorted(t, 1, dispatch.Options{}, nil)
		p.warm(t)
		require.NoError(t, infer(t.Context(), t, p.d, 1, 1, nil))
		require.Zero(t, p.byHTTP())
	})
}

// TestWhatIsNotAloneIsBatched: requests that came over HTTP while another ran share an execution, over gRPC.
func TestWhatIsNotAloneIsBatched(t *testing.T) {
	p := newPorted(t, 1, dispatch.Options{}, nil)
	p.warm(t)
	began, hold := make(chan struct{}), make(chan struct{})
	p.ports[0].do(func(w http.ResponseWriter, _ *http.Request) {
		close(began)
		<-hold
		_, _ = io.WriteString(w, jsonAnswer)
	})
	before := len(p.parts[0].executions())
	var running sync.WaitGroup
	running.Go(func() { _, _ = p.post(t, asJSON) })
	<-began
	for range 3 {
		running.Go(func() {
			code, text := p.post(t, asJSON)
			if code != 200 {
				t.Error(code, text)
			}
		})
	}
	require.Eventually(t, func() bool { c, _ := p.d.Counts("m"); return c.Waiting == 3 }, 30*time.Second, time.Millisecond)
	close(hold)
	running.Wait()
	require.Equal(t, []int{3}, p.parts[0].executions()[before:])
	require.EqualValues(t, 1, p.ports[0].asked.Load())
}

// TestErrorsByHTTPAreThoseByGRPC: status, text, content type and outcome are the same by whichever port of the server an error came.
func TestErrorsByHTTPAreThoseByGRPC(t *testing.T) {
	for _, c := range []struct {
		code codes.Code
		http int
		text string
	}{
		{codes.InvalidArgument, 400, "[request id: 7] inference input data-type for input 'IN' is 'FP32'"},
		{codes.InvalidArgument, 400, "a model's own \"words\"\n\u00e4"},
		{codes.NotFound, 404, "Request for unknown model: 'm' version 1 is not at ready state"},
		{codes.Internal, 500, "onnx runtime error 2: not enough memory"},
		{codes.Unimplemented, 501, "not supported"},
		{codes.Unavailable, 503, "Request timeout expired"},
		{codes.Unavailable, 503, "[request id: 7] Exceeds maximum queue size"},
	} {
		t.Run(c.text, func(t *testing.T) {
			type got struct {
				status  int
				text    string
				kind    string
				outcome dispatch.Result
			}
			ask := func(p *ported) got {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+p.address+"/v2/models/m/infer", strings.NewReader(asJSON))
				require.NoError(t, err)
				answer, err := http.DefaultClient.Do(r)
				require.NoError(t, err)
				text, err := io.ReadAll(answer.Body)
				require.NoError(t, err)
				require.NoError(t, answer.Body.Close())
				require.Eventually(t, p.seen.settled, 30*time.Second, time.Millisecond)
				return got{answer.StatusCode, string(text), answer.Header.Get("Content-Type"), p.seen.outcomes[len(p.seen.outcomes)-1].Result}
			}
			one := newPorted(t, 1, dispatch.Options{Brief: time.Nanosecond}, nil)
			one.parts[0].refuse = fails(status.Error(c.code, c.text))
			want := ask(one)
			require.Equal(t, c.http, want.status)
			other := newPorted(t, 1, dispatch.Options{}, nil)
			other.warm(t)
			other.ports[0].says(c.http, c.text)
			require.Equal(t, want, ask(other))
			require.Zero(t, other.byGRPC())
			require.EqualValues(t, 1, other.ports[0].asked.Load())
		})
	}
}

// TestRequestsThatWaitForEachOtherAreBrief: what is passed through waits in the server for what of its model came before, and the execution itself may be
// brief. What comes after it, and other models, say nothing of how long it takes.
func TestRequestsThatWaitForEachOtherAreBrief(t *testing.T) {
	for name, c := range map[string]struct {
		others, callers, ended int
		each                   time.Duration
		byHTTP                 int
	}{
		"one that lasts long":                          {0, 1, 1, 40 * time.Minute, 0},
		"eight at once":                                {0, 8, 8, 5 * time.Minute, 1},
		"eight at once, each of which lasts long":      {0, 8, 1, 40 * time.Minute, 0},
		"one that lasts long, beside eight of another": {8, 1, 1, 40 * time.Minute, 0},
	} {
		t.Run(name, func(t *testing.T) {
			now := newMovableClock()
			p := newPorted(t, 1, dispatch.Options{Clock: now, Brief: 10 * time.Minute}, func(m *router.Model) { m.Batchable, m.PassThroughReason = false, "a test" })
			both := *p.routes
			both.Revision, both.Models = 2, map[string]*router.Model{"m": p.routes.Models["m"]}
			other := *p.routes.Models["m"]
			other.Name = "other"
			both.Models["other"] = &other
			require.NoError(t, p.d.Swap(t.Context(), &both))
			p.warm(t)
			server, port, started := p.parts[0], p.ports[0], make(chan string, 1)
			begin := func(model string) (end func()) {
				hold, answered := make(chan struct{}), make(chan struct{})
				server.set(func() { server.hold, server.started = hold, started })
				port.do(func(w http.ResponseWriter, _ *http.Request) {
					started <- "over HTTP"
					<-hold
					_, _ = io.WriteString(w, jsonAnswer)
				})
				go func() {
					defer close(answered)
					_, _ = postTo(t, http.DefaultClient, "http://"+p.address+"/v2/models/"+model+"/infer", asJSON)
				}()
				<-started
				return func() { close(hold); <-answered }
			}
			var ends []func()
			for range c.others {
				defer begin("other")()
			}
			for range c.callers {
				ends = append(ends, begin("m"))
			}
			for _, end := range ends[:c.ended] {
				now.move(c.each)
				end()
			}
			server.set(func() { server.hold, server.started = nil, nil })
			port.do(nil)
			asked := port.asked.Load()
			code, _ := p.post(t, asJSON)
			require.Equal(t, 200, code)
			require.EqualValues(t, c.byHTTP, port.asked.Load()-asked)
			for _, end := range ends[c.ended:] {
				end()
			}
		})
	}
}
