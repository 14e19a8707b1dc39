// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// optionalJSON reads a body that may be left out.
func optionalJSON(w http.ResponseWriter, r *http.Request) (jsonValue, error) {
	b, err := body(w, r)
	if err != nil || len(b) == 0 {
		return jsonValue{}, err
	}
	return parseJSON(b)
}

func requiredJSON(w http.ResponseWriter, r *http.Request) (jsonValue, error) {
	b, err := body(w, r)
	if err != nil {
		return jsonValue{}, err
	}
	return parseJSON(b)
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
		dependents := doc.get("parameters").get("unload_dependents")
		if refusal := h.server.repo.unload(r.Context(), model, dependents.kind == jsonBool && dependents.bits != 0); refusal != nil {
			err = refusal
		}
	}
	if err != nil {
		jsonError(w, err)
		return
	}
	document(w, http.StatusOK, nil)
}

func (h *httpFront) index(w http.ResponseWriter, doc jsonValue) error {
	ready := false
	if v := doc.get("ready"); v.present {
		var err error
		if ready, err = v.asBool(); err != nil {
			return err
		}
	}
	models, refusal := h.server.repo.index(ready)
	if refusal != nil {
		return refusal
	}
	b := []byte{'['}
	for i, m := range models {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(append(b, `{"name":`...), m.Name)
		for _, f := range [...]struct{ name, value string }{{"version", m.Version}, {"state", m.State}, {"reason", m.Reason}} {
			if f.value != "" {
				b = appendString(append(append(append(b, `,"`...), f.name...), `":`...), f.value)
			}
		}
		b = append(b, '}')
	}
	document(w, http.StatusOK, append(b, ']'))
	return nil
}

func (h *httpFront) load(r *http.Request, model string, doc jsonValue) error {
	var l loadRequest
	p := doc.get("parameters")
	for i, k := range p.names {
		text, err := p.items[i].asString()
		if err != nil {
			return err
		}
		value := []byte(text)
		if strings.HasPrefix(k, filePrefix) {
			value = lenientBase64(text)
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

// lenientBase64 decodes as far as the text is base64, as Triton does.
func lenientBase64(text string) []byte {
	data, _ := io.ReadAll(base64.NewDecoder(base64.StdEncoding, strings.NewReader(text)))
	return data
}

// settings serves a document that GET reads and POST changes.
func (h *httpFront) settings(w http.ResponseWriter, r *http.Request, f func(jsonValue) ([]byte, error)) {
	doc := jsonValue{}
	if r.Method == http.MethodPost {
		var err error
		if doc, err = optionalJSON(w, r); err != nil {
			jsonError(w, err)
			return
		}
	} else if !jsonMethod(w, r, http.MethodGet) {
		return
	}
	b, err := f(doc)
	if err != nil {
		jsonError(w, err)
		return
	}
	document(w, http.StatusOK, b)
}

func (h *httpFront) tracing(doc jsonValue) ([]byte, error) {
	set := map[string][]string{}
	for i, k := range doc.names {
		for _, v := range append([]jsonValue{doc.items[i]}, doc.items[i].items...) {
			if v.kind == jsonString {
				set[k] = append(set[k], v.str)
			}
		}
	}
	all := h.server.settings.setTrace(set)
	b := append(appendString([]byte(`{"trace_level":[`), all["trace_level"][0]), ']')
	for _, k := range [...]string{"trace_rate", "trace_count", "log_frequency", "trace_file", "trace_mode"} {
		b = appendString(append(append(append(b, `,"`...), k...), `":`...), all[k][0])
	}
	return append(b, '}'), nil
}

func (h *httpFront) logging(doc jsonValue) ([]byte, error) {
	set := map[string]*pb.LogSettingsRequest_SettingValue{}
	for i, k := range doc.names {
		v := &pb.LogSettingsRequest_SettingValue{}
		switch item := doc.items[i]; item.kind {
		case jsonBool:
			v.ParameterChoice = &pb.LogSettingsRequest_SettingValue_BoolParam{BoolParam: item.bits != 0}
		case jsonInt:
			v.ParameterChoice = &pb.LogSettingsRequest_SettingValue_Uint32Param{Uint32Param: uint32(item.bits)}
		case jsonString:
			v.ParameterChoice = &pb.LogSettingsRequest_SettingValue_StringParam{StringParam: item.str}
		}
		set[k] = v
	}
	all, refusal := h.server.settings.setLog(set)
	if refusal != nil {
		return nil, refusal
	}
	b := []byte{'{'}
	for i, k := range [...]string{"log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format"} {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(appendString(b, k), ':')
		switch p := all[k].ParameterChoice.(type) {
		case *pb.LogSettingsRequest_SettingValue_BoolParam:
			b = strconv.AppendBool(b, p.BoolParam)
		case *pb.LogSettingsRequest_SettingValue_Uint32Param:
			b = strconv.AppendUint(b, uint64(p.Uint32Param), 10)
		case *pb.LogSettingsRequest_SettingValue_StringParam:
			b = appendString(b, p.StringParam)
		}
	}
	return append(b, '}'), nil
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
		var doc jsonValue
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

func (h *httpFront) memoryRegister(region string, doc jsonValue) error {
	key, size, offset := doc.get("key"), doc.get("byte_size"), doc.get("offset")
	if !key.present {
		return invalid("Shared memory register request has no 'key' field")
	}
	if !size.present {
		return invalid("Shared memory register request has no 'byte_size' field")
	}
	name, err := key.asString()
	if err != nil {
		return err
	}
	n, err := size.asUint()
	if err != nil {
		return err
	}
	at := uint64(0)
	if offset.present {
		if at, err = offset.asUint(); err != nil {
			return err
		}
	}
	if refusal := h.server.regions.register(region, name, at, n); refusal != nil {
		return refusal
	}
	return nil
}

// cudaRegister checks a registration as Triton does, down to the handle, which nothing without a GPU can open.
func cudaRegister(doc jsonValue) error {
	handle := doc.get("raw_handle")
	if !handle.present {
		return invalid("Shared memory register request has no 'raw_handle' field")
	}
	v, err := handle.member("b64")
	if err != nil {
		return err
	}
	text, err := v.asString()
	if err != nil {
		return err
	}
	for _, name := range [...]string{"byte_size", "device_id"} {
		if _, err := doc.member(name); err != nil {
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
		b = appendString(append(b, `{"name":`...), s.Name)
		b = appendString(append(b, `,"key":`...), s.Key)
		b = fmt.Appendf(b, `,"offset":%d,"byte_size":%d}`, s.Offset, s.ByteSize)
	}
	return append(b, ']'), nil
}
