// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http

import (
	"context"
	"log/slog"
	nethttp "net/http"
	"runtime"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/buffers"
	"github.com/conch-serving/conch/internal/triton/tritonjson"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/gate"
	"github.com/conch-serving/conch/sidecar/dispatch/spans"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// DefaultMaxBodyBytes is the largest request body, after decompression too: what Triton's own HTTP endpoint takes.
const DefaultMaxBodyBytes = 64 << 20

// Inferer answers inference requests; the dispatcher is one.
type Inferer interface {
	// Begin answers one request, takes over one reference to it, and does not wait. Then is called once with the answer, which it frees, by any goroutine,
	// this one included, and must not block. Errors are gRPC status errors with Triton's text. There is no turn.
	Begin(ctx context.Context, t *wire.Turn, r *batch.Request, then func(*wire.Turn, *batch.Response, error))
}

// Catalog has the models that are served. It is called for every inference request, so it must be a look-up and not a
// call to a partition.
type Catalog interface {
	// Model returns the configuration of a model. The error is a gRPC status NOT_FOUND with Triton's text. An empty
	// version is the one that Triton's policy picks.
	Model(name, version string) (*tritonpb.ModelConfig, error)
}

// Server is the server of a partition.
type Server struct {
	// Partition is its id.
	Partition string
	// Endpoint is its HTTP endpoint, "host:port" or "unix:path"; empty if it has none.
	Endpoint string
}

// Picker chooses a partition for a request that passes through untouched.
type Picker interface {
	// Pick returns a partition that has the model; any partition if the model is empty; it may wait until the model is
	// loaded. Done must be called when the exchange is over, with its failure, or nil if it succeeded: the gRPC status error that the server's answer
	// would be by gRPC, UNKNOWN where only its text says what it is, as among events, or wire.ErrLost if the connection to the server failed. The
	// error is a gRPC status error.
	Pick(ctx context.Context, model string) (on Server, done func(failure error), err error)
}

// Endpoints lists the HTTP endpoints of all partitions that are up, in a stable order.
type Endpoints interface {
	HTTPEndpoints() []string
}

// Aggregator answers about all partitions as one server would, by the methods of Triton's gRPC service.
type Aggregator = tritonpb.GRPCInferenceServiceServer

// Options are what a Handler needs.
type Options struct {
	Inferer    Inferer
	Catalog    Catalog
	Picker     Picker
	Endpoints  Endpoints
	Aggregator Aggregator
	// Refused is called for inference requests that are answered before the Inferer, or a server, receives them. The model is that of their path,
	// and may be unknown. The cause is the answer's error; it is nil for an invalid body, and CANCELLED for a body that never came whole because
	// the client's connection ended. It may be nil.
	Refused func(ctx context.Context, model string, cause error)
	// Remember is called for each setting that servers have accepted; it may be nil.
	Remember func(path string, body []byte)

	// MaxBodyBytes limits a request's body, after decompression too; zero means DefaultMaxBodyBytes.
	MaxBodyBytes int64
	// Patience is how long a client may send nothing of a body that it began; zero
	// means for ever. It replaces the server's ReadTimeout.
	Patience time.Duration
	// Leaving reports whether connections are to end with their next answer; nil
	// means never.
	Leaving func() bool
	// Pool supplies buffers for bodies; nil means one of its own.
	Pool mem.BufferPool
	// Spans traces requests that pass through untouched; nil traces nothing. The Inferer traces all others.
	Spans *spans.Tracer
	// Logger logs failed pass-throughs; nil discards.
	Logger *slog.Logger
}

// Handler is the front. Give it a net/http server of its own: it takes every path.
type Handler struct {
	o           Options
	proxy       *proxy
	compressors map[string]*sync.Pool // of flateWriter, by content encoding
	inflating   chan struct{}         // holds one for every compressed body that is being read
}

// New makes a front. Close it when the server has shut down.
func New(o Options) *Handler {
	if o.MaxBodyBytes == 0 {
		o.MaxBodyBytes = DefaultMaxBodyBytes
	}
	if o.Pool == nil {
		o.Pool = new(buffers.Pool)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Refused == nil {
		o.Refused = func(context.Context, string, error) {}
	}
	return &Handler{o: o, proxy: newProxy(o.Logger), compressors: newCompressors(), inflating: make(chan struct{}, runtime.GOMAXPROCS(0))}
}

// Close closes the connections to partitions that carry no request.
func (h *Handler) Close() { h.proxy.transport.CloseIdleConnections() }

// ServeHTTP answers one request.
func (h *Handler) ServeHTTP(w nethttp.ResponseWriter, r *nethttp.Request) {
	w.Header()["Date"] = nil // Triton sends none
	// It is not known of a chunked request whether it had a Content-Length too.
	// net/http ignores that, and a proxy before Conch might not: so what comes
	// after the request on the connection is not read. Triton's clients send
	// lengths.
	if len(r.TransferEncoding) > 0 || h.o.Leaving != nil && h.o.Leaving() {
		w.Header()["Connection"] = []string{"close"}
	}
	path := requestPath(r)
	rt, ok := parseRoute(path)
	admitted, err := gate.ConnOf(r.Context()).Admit(nil)
	if err != nil {
		h.refused(r, rt, err)
		failStatus(w, plainType, err) // the body is not read
		return
	}
	later := false
	defer func() {
		if !later {
			admitted.End()
		}
	}()
	if r.ContentLength == 0 {
		endReading(w)
	}
	if len(r.RequestURI) > maxTargetBytes {
		h.refused(r, rt, nil)
		fail(w, nethttp.StatusNotFound, plainType, "Not Found")
		return
	}
	if !ok {
		h.unknown(w, r, path)
		return
	}
	if rt.handle == nil {
		later = h.infer(w, r, rt, admitted.End)
		return
	}
	rt.handle(h, w, r, rt)
}

// refused calls Options.Refused for a request that is answered here, if it is one for inference.
func (h *Handler) refused(r *nethttp.Request, rt route, cause error) {
	if rt.infers && r.Method == nethttp.MethodPost {
		h.o.Refused(r.Context(), rt.model, cause)
	}
}

// infer is the request path of HTTP. Later says that the answer comes later, and that end is called before it is all sent.
func (h *Handler) infer(w nethttp.ResponseWriter, r *nethttp.Request, rt route, end func()) (later bool) {
	if !allow(w, r, nethttp.MethodPost, plainType) {
		return false
	}
	config, err := h.o.Catalog.Model(rt.model, rt.version)
	if err != nil {
		h.refused(r, rt, err)
		failStatus(w, plainType, err)
		return false
	}
	if config.GetModelTransactionPolicy().GetDecoupled() {
		h.refused(r, rt, nil)
		fail(w, nethttp.StatusNotImplemented, plainType,
			"HTTP end point doesn't support models with decoupled transaction policy")
		return false
	}
	body, ok := h.inferenceBody(w, r, rt)
	if !ok {
		return false
	}
	in := &inference{config: config, model: rt.model, version: rt.version}
	headerLength, err := inferenceHeaderLength(r.Header, body.Len())
	if err == nil {
		err = in.decode(body, headerLength)
	}
	if err == nil && body.Len() <= batch.MostHTTP {
		in.request.HTTP = &batch.HTTP{Body: body, HeaderLength: headerLength}
		if len(r.Header[inferenceHeader]) == 0 {
			in.request.HTTP.HeaderLength = -1
		}
	} else {
		body.Free() // the tensors have references of their own
	}
	if err != nil {
		in.request.Free()
		h.refused(r, rt, err)
		failDecode(w, err)
		return false
	}
	return h.dispatch(w, r, in, end)
}

const (
	jsonType   = "application/json"
	plainType  = "text/plain"
	binaryType = "application/octet-stream"
)

// fail answers with an error as Triton does: a JSON body, whatever the content type.
func fail(w nethttp.ResponseWriter, code int, contentType, message string) {
	body := tritonjson.Error(message)
	reply(w, code, contentType, body)
}

func reply(w nethttp.ResponseWriter, code int, contentType string, body []byte) {
	head := w.Header()
	head["Content-Type"] = []string{contentType}
	head["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(code)
	_, _ = w.Write(body) // a caller that has gone needs no answer
}

func failStatus(w nethttp.ResponseWriter, contentType string, err error) {
	s, _ := status.FromError(err)
	fail(w, httpCode(s.Code()), contentType, s.Message())
}

// httpCode is Triton's own mapping, extended to codes that only Conch uses.
func httpCode(c codes.Code) int {
	switch c {
	case codes.OK:
		return nethttp.StatusOK
	case codes.NotFound:
		return nethttp.StatusNotFound
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted:
		return nethttp.StatusServiceUnavailable
	case codes.Unimplemented:
		return nethttp.StatusNotImplemented
	case codes.Internal, codes.DataLoss:
		return nethttp.StatusInternalServerError
	default:
		return nethttp.StatusBadRequest
	}
}
