// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonjson"
	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// optionalJSON reads a body that may be left out.
func optionalJSON(w http.ResponseWriter, r *http.Request) (tritonjson.Value, error) {
	b, err := body(w, r)
	if err != nil || len(b) == 0 {
		return tritonjson.Value{}, err
	}
	return rootOf(b)
}

func requiredJSON(w http.ResponseWriter, r *http.Request) (tritonjson.Value, error) {
	b, err := body(w, r)
	if err != nil {
		return tritonjson.Value{}, err
	}
	return rootOf(b)
}

func rootOf(text []byte) (tritonjson.Value, error) {
	doc, err := tritonjson.Parse(text)
	if err != nil {
		return tritonjson.Value{}, err
	}
	return doc.Root(), nil
}

// repository serves the repository API. Triton ignores a repository's name for the index.
func (h *httpFront) repository(w http.ResponseWriter, r *http.Request, repository, model, action string) {
	if !jsonMethod(w, r, http.MethodPost) {
		return
	}
	doc, err := optionalJSON(w, r)
	switch {
	case err != nil:
	case model == "":
		err = h.index(w, doc)
		if err == nil {
			return
		}
	case repository != "":
		err = errRepositoryName
	case action == "load":
		err = h.load(r, model, doc)
	default:
		var p tritonjson.Value
		if p, err = parameters(doc); err != nil {
			break
		}
		v, _ := p.Find("unload_dependents")
		dependents, _ := v.AsBool() // anything else says nothing
		if refusal := h.server.repo.unload(r.Context(), model, dependents); refusal != nil {
			err = refusal
		}
	}
	if err != nil {
		jsonError(w, err)
		return
	}
	document(w, http.StatusOK, nil)
}

func (h *httpFront) index(w http.ResponseWriter, doc tritonjson.Value) error {
	ready := false
	if v, ok := doc.Find("ready"); ok {
		var err error
		if ready, err = v.AsBool(); err != nil {
			return err
		}
	}
	models, refusal := h.server.repo.index(ready)
	if refusal != nil {
		return refusal
	}
	document(w, http.StatusOK, tritonjson.RepositoryIndex(&pb.RepositoryIndexResponse{Models: models}))
	return nil
}

func (h *httpFront) load(r *http.Request, model string, doc tritonjson.Value) error {
	var l loadRequest
	p, err := parameters(doc)
	if err != nil {
		return err
	}
	for k, v := range p.Members() {
		text, err := v.AsString()
		if err != nil {
			return err
		}
		value := []byte(text)
		switch {
		case strings.HasPrefix(k, filePrefix):
			value = triton.LenientBase64(text)
		case k != "config":
			return errors.New("unexpected error on creating Triton parameter")
		}
		if refusal := l.set(k, value); refusal != nil {
			return refusal
		}
	}
	if refusal := h.server.repo.load(r.Context(), model, l); refusal != nil {
		return refusal
	}
	return nil
}

// parameters are those of a load or unload; none at all are well.
func parameters(doc tritonjson.Value) (tritonjson.Value, error) {
	p, ok := doc.Find("parameters")
	if ok && p.Kind() != tritonjson.Object {
		return p, errors.New("attempt to get members for non-object")
	}
	return p, nil
}

// settings serves a document that GET reads and POST changes.
func (h *httpFront) settings(w http.ResponseWriter, r *http.Request, read func() ([]byte, error), change func(tritonjson.Value) ([]byte, error)) {
	var b []byte
	var err error
	if r.Method == http.MethodPost {
		var doc tritonjson.Value
		if doc, err = requiredJSON(w, r); err == nil {
			b, err = change(doc)
		}
	} else {
		if !jsonMethod(w, r, http.MethodGet) {
			return
		}
		b, err = read()
	}
	if err != nil {
		jsonError(w, err)
		return
	}
	document(w, http.StatusOK, b)
}

// tracing serves the trace settings of a model, or of all with an empty name.
func (h *httpFront) tracing(w http.ResponseWriter, r *http.Request, model string) {
	change := func(doc tritonjson.Value) ([]byte, error) {
		if refusal := h.server.knownToTrace(model); refusal != nil {
			return nil, refusal
		}
		set, err := traceOrder(doc)
		if err != nil {
			return nil, err
		}
		inForce, refusal := h.server.settings.setTrace(model, set, traceHTTP)
		if refusal != nil {
			return nil, refusal
		}
		b := append(tritonjson.AppendString([]byte(`{"trace_level":[`), inForce["trace_level"][0]), ']')
		for _, k := range [...]string{"trace_rate", "trace_count", "log_frequency", "trace_file", "trace_mode"} {
			b = tritonjson.AppendString(append(append(append(b, `,"`...), k...), `":`...), inForce[k][0])
		}
		return append(b, '}'), nil
	}
	h.settings(w, r, func() ([]byte, error) { return change(tritonjson.Value{}) }, change)
}

// traceOrder reads what a document sets; a null takes back what was set.
func traceOrder(doc tritonjson.Value) (map[string][]string, error) {
	set := map[string][]string{}
	if _, ok := doc.Find("trace_file"); ok {
		set["trace_file"] = nil // refused, whatever it says
		return set, nil
	}
	if v, ok := doc.Find("trace_level"); ok {
		set["trace_level"] = nil
		if v.Kind() != tritonjson.Null {
			if err := v.CheckArray(); err != nil {
				return nil, err
			}
			for level := range v.Elements() {
				text, err := level.AsString()
				if err != nil {
					return nil, err
				}
				set["trace_level"] = append(set["trace_level"], text)
			}
			if len(set["trace_level"]) == 0 {
				set["trace_level"] = []string{"OFF"}
			}
		}
	}
	for _, number := range traceNumbers {
		v, ok := doc.Find(number.name)
		if !ok {
			continue
		}
		set[number.name] = nil
		if v.Kind() != tritonjson.Null {
			text, err := v.AsString()
			if err != nil {
				return nil, err
			}
			set[number.name] = []string{text}
		}
	}
	return set, nil
}

// logging serves the log settings.
func (h *httpFront) logging(w http.ResponseWriter, r *http.Request) {
	change := func(doc tritonjson.Value) ([]byte, error) {
		all, err := h.server.settings.changeLog(func(l *logging) error { return setLogJSON(l, doc) })
		if err != nil {
			return nil, err
		}
		b := []byte(`{"log_file":""`)
		for _, f := range all.flags() {
			b = fmt.Appendf(b, `,"%s":%t`, f.name, *f.flag)
		}
		b = fmt.Appendf(b, `,"log_verbose_level":%d,"log_format":`, all.verbose)
		return append(tritonjson.AppendString(b, all.format), '}'), nil
	}
	h.settings(w, r, func() ([]byte, error) { return change(tritonjson.Value{}) }, change)
}

// memory serves the shared memory API: system regions are kept as a list, CUDA regions cannot be had without a GPU.
func (h *httpFront) memory(w http.ResponseWriter, r *http.Request, kind, region, action string) {
	method := http.MethodPost
	if action == "status" {
		method = http.MethodGet
	}
	if !jsonMethod(w, r, method) {
		return
	}
	var b []byte
	var err error
	switch {
	case action == "status":
		b, err = h.memoryStatus(kind, region)
	case action == "unregister":
		if kind == "system" {
			if refusal := h.server.regions.unregister(region); refusal != nil {
				err = refusal
			}
		}
	case region == "":
		err = invalid("'region name' is necessary to register %s shared memory region", kind)
	default:
		var doc tritonjson.Value
		if doc, err = requiredJSON(w, r); err != nil {
			break
		}
		if kind == "cuda" {
			err = cudaRegister(doc)
		} else {
			err = h.memoryRegister(region, doc)
		}
	}
	if err != nil {
		jsonError(w, err)
		return
	}
	document(w, http.StatusOK, b)
}

func (h *httpFront) memoryRegister(region string, doc tritonjson.Value) error {
	for _, name := range [...]string{"key", "byte_size"} {
		if _, ok := doc.Find(name); !ok {
			return invalid("Shared memory register request has no '%s' field", name)
		}
	}
	key, _ := doc.Find("key")
	name, err := key.AsString()
	if err != nil {
		return err
	}
	size, _ := doc.Find("byte_size")
	n, err := size.AsUint()
	if err != nil {
		return err
	}
	at := uint64(0)
	if offset, ok := doc.Find("offset"); ok {
		if at, err = offset.AsUint(); err != nil {
			return err
		}
	}
	if refusal := h.server.regions.register(region, name, at, n); refusal != nil {
		return refusal
	}
	return nil
}

// cudaRegister checks a registration as Triton does, down to the handle, which nothing without a GPU can open.
func cudaRegister(doc tritonjson.Value) error {
	handle, ok := doc.Find("raw_handle")
	if !ok {
		return invalid("Shared memory register request has no 'raw_handle' field")
	}
	v, err := handle.Member("b64")
	if err != nil {
		return err
	}
	text, err := v.AsString()
	if err != nil {
		return err
	}
	for _, name := range [...]string{"byte_size", "device_id"} {
		if _, err := doc.Member(name); err != nil {
			return err
		}
	}
	const handleSize = 64 // of a cudaIpcMemHandle_t
	if raw, err := base64.StdEncoding.DecodeString(text); err != nil || len(raw) != handleSize {
		return invalid("'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t")
	}
	return invalid("failed to register shared memory region: invalid args")
}

func (h *httpFront) memoryStatus(kind, region string) ([]byte, error) {
	if kind == "cuda" {
		if region != "" {
			return nil, refuse(codes.NotFound, "Unable to find cuda shared memory region: '%s'", region)
		}
		return []byte("[]"), nil
	}
	all, refusal := h.server.regions.status(region)
	if refusal != nil {
		return nil, refusal
	}
	b := []byte{'['}
	for i, name := range slices.Sorted(maps.Keys(all)) {
		if i > 0 {
			b = append(b, ',')
		}
		s := all[name]
		b = tritonjson.AppendString(append(b, `{"name":`...), s.Name)
		b = tritonjson.AppendString(append(b, `,"key":`...), s.Key)
		b = fmt.Appendf(b, `,"offset":%d,"byte_size":%d}`, s.Offset, s.ByteSize)
	}
	return append(b, ']'), nil
}
