// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"errors"
	"io"
	"maps"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// ModelStreamInfer answers the requests of a stream. Answers of models that answer once keep the order of their requests, whatever their
// models; those of decoupled models are sent as they come. An error is a message of the stream and does not end it.
func (f *grpcFront) ModelStreamInfer(stream grpc.BidiStreamingServer[pb.ModelInferRequest, pb.ModelStreamInferResponse]) error {
	out := newStreamWriter(stream)
	defer out.close()
	for {
		var in streamRequest
		err := stream.RecvMsg(&in)
		if errors.Is(err, io.EOF) || in.garbled {
			return out.finish()
		}
		if err != nil {
			return err
		}
		f.streamOne(stream, out, &in.ModelInferRequest)
	}
}

// streamRequest is a message of a stream. One that is no request ends the stream, as its client would, where gRPC ends a call with an error.
type streamRequest struct {
	pb.ModelInferRequest
	garbled bool
}

// streamOne queues one request of a stream and arranges for its answers.
func (f *grpcFront) streamOne(stream grpc.BidiStreamingServer[pb.ModelInferRequest, pb.ModelStreamInferResponse], out *streamWriter, in *pb.ModelInferRequest) {
	r := &request{ctx: stream.Context(), id: in.Id}
	m, refusal := f.server.repo.find(in.ModelName, in.ModelVersion)
	if refusal == nil {
		refusal = f.read(in, m, r)
	}
	slot := out.open(refusal == nil && m.decoupled)
	if refusal == nil {
		empty := in.Parameters[wantFinal].GetBoolParam()
		r.respond = func(resp *response, final bool) {
			if resp != nil && resp.err == nil {
				resp.err = m.finish(r, resp)
			}
			if final {
				r.release()
			}
			answer := streamAnswer(m, in.Id, resp, final, empty)
			if resp != nil && resp.err != nil {
				out.fatal(answer, resp.err)
			}
			out.put(slot, answer, final)
		}
		refusal = f.server.repo.submit(m, in.ModelName, in.ModelVersion, r)
	}
	if refusal != nil {
		r.release()
		out.put(slot, &pb.ModelStreamInferResponse{ErrorMessage: refusal.Message, InferResponse: &pb.ModelInferResponse{Id: in.Id}}, true)
	}
}

// streamAnswer is one message of a stream, or nil where Triton sends none: the empty end of a decoupled request that did not ask for it.
func streamAnswer(m *model, id string, resp *response, final, wantEmpty bool) *pb.ModelStreamInferResponse {
	mark := map[string]*pb.InferParameter{"triton_final_response": {ParameterChoice: &pb.InferParameter_BoolParam{BoolParam: final}}}
	switch {
	case resp == nil && !wantEmpty:
		return nil
	case resp == nil:
		return &pb.ModelStreamInferResponse{InferResponse: &pb.ModelInferResponse{ModelName: m.name, Id: id, Parameters: mark}}
	case resp.err != nil:
		return &pb.ModelStreamInferResponse{ErrorMessage: resp.err.Message,
			InferResponse: &pb.ModelInferResponse{ModelName: m.name, Id: id, Parameters: mark}}
	}
	answer := encodeResponse(m, id, resp)
	if answer.Parameters == nil {
		answer.Parameters = mark
	}
	maps.Copy(answer.Parameters, mark)
	return &pb.ModelStreamInferResponse{InferResponse: answer}
}

// streamWriter sends the answers of one stream from one goroutine, so that instances never wait for a slow client.
type streamWriter struct {
	stream grpc.BidiStreamingServer[pb.ModelInferRequest, pb.ModelStreamInferResponse]
	ended  chan struct{}

	mu      sync.Mutex
	changed sync.Cond
	order   []*streamSlot // unfinished requests of models that answer once, oldest first
	pending int           // requests without their last answer
	out     []*pb.ModelStreamInferResponse
	closing bool // nothing more will come
	err     error
	// statuses are the errors that end the stream in place of a message; nil: the
	// client did not ask for that (header triton_grpc_error).
	statuses map[*pb.ModelStreamInferResponse]error
}

// fatal makes the error of a model end the stream when it is its turn, if the client asked for that.
func (w *streamWriter) fatal(answer *pb.ModelStreamInferResponse, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.statuses != nil {
		w.statuses[answer] = err
	}
}

// streamSlot is one request of the stream.
type streamSlot struct {
	free   bool // decoupled: not bound to an order
	answer *pb.ModelStreamInferResponse
	done   bool
}

func newStreamWriter(stream grpc.BidiStreamingServer[pb.ModelInferRequest, pb.ModelStreamInferResponse]) *streamWriter {
	w := &streamWriter{stream: stream, ended: make(chan struct{})}
	w.changed.L = &w.mu
	if slices.Contains(metadata.ValueFromIncomingContext(stream.Context(), "triton_grpc_error"), "true") {
		w.statuses = make(map[*pb.ModelStreamInferResponse]error)
	}
	go w.write()
	return w
}

func (w *streamWriter) open(free bool) *streamSlot {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := &streamSlot{free: free}
	w.pending++
	if !free {
		w.order = append(w.order, s)
	}
	return s
}

// put hands over an answer of a request (nil for none) and whether it is the last.
func (w *streamWriter) put(s *streamSlot, answer *pb.ModelStreamInferResponse, final bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if final {
		w.pending--
	}
	if s.free {
		if answer != nil {
			w.out = append(w.out, answer)
		}
	} else {
		s.answer, s.done = answer, true
		for len(w.order) > 0 && w.order[0].done {
			w.out = append(w.out, w.order[0].answer)
			w.order = w.order[1:]
		}
	}
	w.changed.Broadcast() // write and finish both wait
}

func (w *streamWriter) write() {
	defer close(w.ended)
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for len(w.out) == 0 {
			if w.closing || w.err != nil {
				return
			}
			w.changed.Wait()
		}
		batch := w.out
		w.out = nil
		var err error
		for i, answer := range batch {
			if err = w.statuses[answer]; err != nil {
				batch = batch[:i]
				break
			}
		}
		ends := err
		w.mu.Unlock()
		for _, answer := range batch {
			if err = w.stream.Send(answer); err != nil {
				break
			}
		}
		w.mu.Lock()
		w.changed.Broadcast() // finish waits for this too
		if err == nil {
			err = ends
		}
		if err != nil {
			w.err = err
		}
	}
}

// finish waits for the answers of all requests and sends them.
func (w *streamWriter) finish() error {
	stop := make(chan struct{})
	defer close(stop)
	go func() { // a client that goes away ends the wait
		select {
		case <-w.stream.Context().Done():
			w.mu.Lock()
			w.err = w.stream.Context().Err()
			w.changed.Broadcast()
			w.mu.Unlock()
		case <-stop:
		}
	}()
	w.mu.Lock()
	for w.pending > 0 && w.err == nil {
		w.changed.Wait()
	}
	w.mu.Unlock()
	w.close()
	w.mu.Lock()
	defer w.mu.Unlock()
	return grpcError(w.err)
}

// close ends the writing goroutine once what is queued has been sent.
func (w *streamWriter) close() {
	w.mu.Lock()
	w.closing = true
	w.changed.Broadcast()
	w.mu.Unlock()
	<-w.ended
}
