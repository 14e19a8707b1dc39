// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonjson"
	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// generate serves Triton's generate extension: members of a flat JSON object become inputs by their names, and every answer becomes a flat
// JSON object with its members in order of their names. Without stream there must be exactly one answer; with it each is an event.
//
// Once the request is accepted the status is that of the first answer, and a fault found after it is a body with status 200, as in Triton.
func (h *httpFront) generate(w http.ResponseWriter, r *http.Request, name, version string, stream bool) {
	if !jsonMethod(w, r, http.MethodPost) {
		return
	}
	m, refusal := h.server.repo.find(name, version)
	if refusal != nil {
		jsonError(w, refusal)
		return
	}
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
		jsonError(w, invalid("Unsupported content-encoding, only 'identity' is supported."))
		return
	}
	doc, err := requiredJSON(w, r)
	req := &request{ctx: context.WithoutCancel(r.Context())} // over HTTP a caller that goes stops nothing
	if err == nil {
		err = h.readGenerate(doc, m, req)
	}
	if err != nil {
		jsonError(w, err)
		return
	}
	answers := newAnswerQueue()
	req.respond = func(resp *response, final bool) { answers.put(m, req, resp, final) }
	if refusal := h.server.repo.submit(m, name, version, req); refusal != nil {
		jsonError(w, refusal)
		return
	}
	if stream {
		streamAnswers(r.Context(), w, answers)
	} else {
		oneAnswer(r.Context(), w, answers)
	}
}

// readGenerate makes a request of a flat object. Members of its "parameters" that are inputs count like members of its own.
func (h *httpFront) readGenerate(doc tritonjson.Value, m *model, r *request) error {
	if doc.Kind() != tritonjson.Object {
		return refuse(codes.Internal, "attempt to get members for non-object")
	}
	for name, v := range doc.Members() {
		var err error
		switch name {
		case "id":
			if r.id, err = v.AsString(); err != nil {
				return unreadable("id", err)
			}
		case "parameters":
			if v.Kind() != tritonjson.Object {
				return refuse(codes.Internal, "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object")
			}
			for inner, value := range v.Members() {
				if err = readGenerateMember(inner, value, m, r); err != nil {
					return err
				}
			}
		default:
			err = readGenerateMember(name, v, m, r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readGenerateMember reads an input, or a parameter, which has no effect: Triton hands it to the model under its name alone, so that
// even sequence_id says nothing here.
func readGenerateMember(name string, v tritonjson.Value, m *model, r *request) error {
	config := m.inputs[name]
	if config == nil {
		if noParameter(v) {
			return invalid("parameter '%s' has invalid type. It should be either 'int', 'bool', or 'string'.", name)
		}
		return nil
	}
	t := tensor{name: name, dtype: config.DataType}
	given := int64(0)
	for range v.Elements() {
		given++
	}
	if v.Kind() != tritonjson.Array {
		given = 1
		v, _ = rootOf(slices.Concat([]byte{'['}, v.Raw(), []byte{']'})) // the value was read before
	}
	shape := config.Dims
	if m.config.MaxBatchSize > 0 {
		shape = append([]int64{-1}, shape...)
	}
	var err error
	if t.shape, err = generateShape(name, shape, given, m.config.MaxBatchSize > 0); err != nil {
		return err
	}
	if err = readElements(&t, v, given); err != nil {
		return err
	}
	r.inputs = append(r.inputs, t)
	return nil
}

// generateShape fits a number of elements into a shape: the last variable dimension takes what the others leave, and of two the first is
// the batch, of one row.
func generateShape(name string, shape []int64, n int64, batched bool) ([]int64, error) {
	out := slices.Clone(shape)
	variable, known := -1, int64(1)
	for i, d := range out {
		if d != -1 {
			known *= d
			continue
		}
		if variable >= 0 {
			if variable != 0 || !batched {
				return nil, invalid("The schema can not convert input '%s' to tensor with proper shape", name)
			}
			out[variable] = 1
		}
		variable = i
	}
	if n%known != 0 || variable < 0 && n != known {
		return nil, invalid("The schema can not convert input '%s' to tensor with proper shape", name)
	}
	if variable >= 0 {
		out[variable] = n / known
	}
	return out, nil
}

// appendGenerated writes one answer as a flat object. An output of one element is no array.
func appendGenerated(b []byte, m *model, id string, resp *response) ([]byte, *Error) {
	members := map[string]func([]byte) []byte{
		"model_name":    func(b []byte) []byte { return tritonjson.AppendString(b, m.name) },
		"model_version": func(b []byte) []byte { return tritonjson.AppendString(b, m.versionString()) },
	}
	if id != "" {
		members["id"] = func(b []byte) []byte { return tritonjson.AppendString(b, id) }
	}
	for _, p := range resp.parameters {
		members[p.name] = p.appendJSON
	}
	for _, t := range resp.outputs {
		if t.dtype == pb.DataType_TYPE_FP16 || t.dtype == pb.DataType_TYPE_BF16 {
			return nil, invalid("sending %s data via JSON is not supported. Please use the binary data format for output %s", triton.DatatypeName(t.dtype), t.name)
		}
		members[t.name] = func(b []byte) []byte {
			data := appendJSONData(nil, t)
			if elements(t.shape) == 1 {
				data = data[1 : len(data)-1]
			}
			return append(b, data...)
		}
	}
	b = append(b, '{')
	for i, name := range slices.Sorted(maps.Keys(members)) {
		if i > 0 {
			b = append(b, ',')
		}
		b = members[name](append(tritonjson.AppendString(b, name), ':'))
	}
	return append(b, '}'), nil
}

// answerQueue holds the answers of one request until the connection has taken them, so that an instance never waits for a slow client.
type answerQueue struct {
	mu      sync.Mutex
	changed chan struct{} // holds a token when something was put
	answers []generated
	ended   bool
}

// generated is one answer as it is written.
type generated struct {
	body   []byte
	failed bool
}

func newAnswerQueue() *answerQueue { return &answerQueue{changed: make(chan struct{}, 1)} }

func (q *answerQueue) put(m *model, r *request, resp *response, final bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if resp != nil {
		refusal := resp.err
		var b []byte
		if refusal == nil {
			b, refusal = appendGenerated(nil, m, r.id, resp)
		}
		if refusal != nil {
			b = tritonjson.Error(refusal.Message)
		}
		q.answers = append(q.answers, generated{body: b, failed: refusal != nil})
	}
	q.ended = q.ended || final
	select {
	case q.changed <- struct{}{}:
	default:
	}
}

// next waits for more answers, and says whether they are the last. It is false with no answers when the caller has gone.
func (q *answerQueue) next(ctx context.Context) (answers []generated, last, ok bool) {
	for {
		q.mu.Lock()
		answers, last = q.answers, q.ended
		q.answers = nil
		q.mu.Unlock()
		if len(answers) > 0 || last {
			return answers, last, true
		}
		select {
		case <-q.changed:
		case <-ctx.Done():
			return nil, false, false
		}
	}
}

func generatedStatus(first []generated) int {
	if len(first) > 0 && first[0].failed {
		return http.StatusBadRequest // whatever the model's error is
	}
	return http.StatusOK
}

// oneAnswer waits for the end and writes the answer, if there was exactly one.
func oneAnswer(ctx context.Context, w http.ResponseWriter, q *answerQueue) {
	var all []generated
	for {
		answers, last, ok := q.next(ctx)
		if !ok {
			return
		}
		if all = append(all, answers...); last {
			break
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(generatedStatus(all))
	b := tritonjson.Error("generate expects model to produce exactly 1 response, use generate stream for model that generates various number of responses")
	if len(all) == 1 {
		b = all[0].body
	}
	_, _ = w.Write(b) // fails when the client has gone
	_ = http.NewResponseController(w).Flush()
}

// streamAnswers writes every answer as an event as it comes.
func streamAnswers(ctx context.Context, w http.ResponseWriter, q *answerQueue) {
	flush := http.NewResponseController(w)
	started := false
	for {
		answers, last, ok := q.next(ctx)
		if !ok {
			return
		}
		if !started {
			started = true
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			w.WriteHeader(generatedStatus(answers))
		}
		for _, a := range answers {
			b := append(append([]byte("data: "), a.body...), "\n\n"...)
			if _, err := w.Write(b); err != nil {
				return // the client has gone
			}
		}
		if err := flush.Flush(); err != nil || last {
			return
		}
	}
}
