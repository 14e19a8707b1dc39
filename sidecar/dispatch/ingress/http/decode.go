// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package http

import (
	"errors"
	"fmt"
	"math"
	nethttp "net/http"
	"strings"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonjson"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// inference is one inference request while it is decoded, served and rendered.
type inference struct {
	config         *tritonpb.ModelConfig
	model, version string

	id      string // the caller's
	request batch.Request
	// binary is whether outputs that the caller did not name are returned in binary, named the same for those that it
	// named.
	binary bool
	named  map[string]bool
}

// decode reads the body, of which the first headerLength bytes are JSON. Tensors become views of body with references
// of their own; the caller keeps its reference. The order of the checks is Triton's, so that of several faults the
// same one is reported.
func (in *inference) decode(body mem.Buffer, headerLength int) error {
	in.request.Model, in.request.Version = in.model, in.version
	if headerLength == 0 {
		return in.decodeRaw(body)
	}
	doc, err := tritonjson.Parse(body.ReadOnlyData()[:headerLength])
	if err != nil {
		return decodeError(err, "")
	}
	root := doc.Root()
	if id, ok := root.Find("id"); ok {
		text, err := id.AsString()
		if err != nil {
			return decodeError(err, "Unable to parse 'id'")
		}
		// Bytes that are no UTF-8 cannot be passed on to the server; the caller still gets them back.
		if in.id = cString(text); utf8.ValidString(in.id) {
			in.request.ID = in.id
		}
	}
	if parameters, ok := root.Find("parameters"); ok {
		if err := in.parameters(parameters); err != nil {
			return err
		}
	}
	inputs, err := root.Member("inputs")
	if err == nil {
		err = inputs.CheckArray()
	}
	if err != nil {
		return decodeError(err, "Unable to parse 'inputs'")
	}
	at := headerLength
	for input := range inputs.Elements() {
		if at, err = in.input(input, body, at); err != nil {
			return err
		}
	}
	if at != body.Len() {
		return status.Errorf(codes.InvalidArgument, "unexpected additional input data for model '%s'", in.model)
	}
	outputs, ok := root.Find("outputs")
	if !ok {
		return nil
	}
	if err := outputs.CheckArray(); err != nil {
		return decodeError(err, "Unable to parse 'outputs'")
	}
	for output := range outputs.Elements() {
		if err := in.output(output); err != nil {
			return err
		}
	}
	return nil
}

// decodeError converts a fault of the JSON to Triton's form: INTERNAL, with what was being read before the reason.
func decodeError(err error, doing string) error {
	var depth *tritonjson.DepthError
	if errors.As(err, &depth) {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if doing == "" {
		return status.Error(codes.Internal, err.Error())
	}
	return status.Errorf(codes.Internal, "%s: %s", doing, err)
}

func stringMember(object tritonjson.Value, name string) (string, error) {
	v, err := object.Member(name)
	if err == nil {
		var text string
		if text, err = v.AsString(); err == nil {
			return cString(text), nil
		}
	}
	return "", decodeError(err, fmt.Sprintf("Unable to parse '%s'", name))
}

// cString is a string as Triton handles it as one of C's, in memory of its own.
func cString(s string) string {
	if i := strings.IndexByte(s, 0); i >= 0 {
		s = s[:i]
	}
	return strings.Clone(s)
}

func (in *inference) parameters(object tritonjson.Value) error {
	if object.Kind() != tritonjson.Object {
		return status.Error(codes.Internal, "failed to get request params.: attempt to get members for non-object")
	}
	seen := make(map[string]bool)
	for name, value := range object.Members() {
		if seen[name] {
			continue
		}
		name = cString(name)
		seen[name] = true
		if err := in.parameter(name, value); err != nil {
			return err
		}
	}
	return nil
}

func (in *inference) parameter(name string, value tritonjson.Value) error {
	var p batch.Parameter
	var err error
	switch name {
	case batch.ParameterSequenceID:
		if id, e := value.AsUint(); e == nil {
			p = batch.Int64Parameter(name, int64(id))
			break
		}
		var text string
		text, err = value.AsString()
		p = batch.StringParameter(name, cString(text))
	case batch.ParameterSequenceStart, batch.ParameterSequenceEnd:
		var b bool
		b, err = value.AsBool()
		p = batch.BoolParameter(name, b)
	case batch.ParameterPriority:
		var u uint64
		u, err = value.AsUint()
		p = batch.Uint64Parameter(name, u)
	case batch.ParameterTimeout:
		var u uint64
		u, err = value.AsUint()
		p = batch.Int64Parameter(name, int64(min(u, math.MaxInt64)))
	case "binary_data_output":
		if in.binary, err = value.AsBool(); err == nil {
			return nil
		}
	default:
		if strings.HasPrefix(name, "triton_") {
			return status.Error(codes.InvalidArgument, "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.")
		}
		if p, err = customParameter(name, value); err != nil {
			return err
		}
	}
	if err != nil {
		return decodeError(err, fmt.Sprintf("Unable to parse '%s'", name))
	}
	if !utf8.ValidString(p.Name) || !validText(p) {
		// Triton accepts it over HTTP, but from here to the server it has to be a string of protobuf's.
		return status.Errorf(codes.InvalidArgument, "parameter '%s' is not UTF-8", strings.ToValidUTF8(p.Name, "\uFFFD"))
	}
	if len(in.request.Parameters) == batch.MaxParameters {
		return tooMany("parameters", batch.MaxParameters)
	}
	in.request.Parameters = append(in.request.Parameters, p)
	return nil
}

func validText(p batch.Parameter) bool {
	text, ok := p.Text()
	return !ok || utf8.ValidString(text)
}

// tooMany refuses parts that cost many times their size, in numbers that no model needs.
func tooMany(what string, most int) error {
	return status.Errorf(codes.InvalidArgument, "too many parts in one request: more than %d %s", most, what)
}

func customParameter(name string, value tritonjson.Value) (batch.Parameter, error) {
	switch value.Kind() {
	case tritonjson.String:
		text, _ := value.AsString()
		return batch.StringParameter(name, cString(text)), nil
	case tritonjson.Bool:
		b, _ := value.AsBool()
		return batch.BoolParameter(name, b), nil
	case tritonjson.Integer, tritonjson.Double:
		if i, err := value.AsInt(); err == nil {
			return batch.Int64Parameter(name, i), nil
		}
		f, _ := value.AsDouble()
		return batch.DoubleParameter(name, f), nil
	}
	return batch.Parameter{}, status.Errorf(codes.InvalidArgument,
		"parameter '%s' has invalid type. It should be either 'int', 'bool', or 'string'.", name)
}

// sharedMemory appends the parameters of a tensor that lives in a shared-memory region.
func sharedMemory(parameters tritonjson.Value, list []batch.Parameter) ([]batch.Parameter, error) {
	region, ok := parameters.Find(batch.ParameterSharedMemoryRegion)
	if ok {
		text, err := region.AsString()
		if err != nil {
			return nil, decodeError(err, "Unable to parse 'shared_memory_region'")
		}
		list = append(list, batch.StringParameter(batch.ParameterSharedMemoryRegion, cString(text)))
	}
	for _, name := range []string{batch.ParameterSharedMemoryOffset, batch.ParameterSharedMemorySize} {
		var u uint64 // over HTTP, unlike gRPC, a size that is missing is zero
		if v, found := parameters.Find(name); found {
			var err error
			if u, err = v.AsUint(); err != nil {
				return nil, decodeError(err, fmt.Sprintf("Unable to parse '%s'", name))
			}
		} else if name == batch.ParameterSharedMemoryOffset {
			continue
		}
		if ok {
			list = append(list, batch.Int64Parameter(name, int64(u)))
		}
	}
	return list, nil
}

// input reads one input; at is where in the body the next binary tensor begins.
func (in *inference) input(v tritonjson.Value, body mem.Buffer, at int) (int, error) {
	data, hasData := v.Find("data")
	parameters, _ := v.Find("parameters")
	size, hasBinary := parameters.Find(batch.ParameterBinaryDataSize)
	_, hasShared := parameters.Find(batch.ParameterSharedMemoryRegion)
	if err := checkSources(hasData, hasBinary, hasShared); err != nil {
		return at, err
	}
	var t batch.Tensor
	var err error
	if t.Name, err = stringMember(v, "name"); err != nil {
		return at, err
	}
	if t.Datatype, err = stringMember(v, "datatype"); err != nil {
		return at, err
	}
	if t.Shape, err = readShape(v); err != nil {
		return at, err
	}
	count, ok := triton.Elements(t.Shape)
	elementSize := int64(triton.SizeOf(t.Datatype))
	absurd := !ok || count > math.MaxInt64/max(elementSize, 1)

	switch {
	case hasBinary:
		n, err := size.AsUint()
		if err != nil {
			return at, decodeError(err, "Unable to parse 'binary_data_size'")
		}
		if left := uint64(body.Len() - at); n > left {
			return at, status.Errorf(codes.InvalidArgument,
				"unexpected size for input '%s', expecting %d additional bytes for model '%s'", t.Name, n-left, in.model)
		}
		if absurd {
			return at, in.absurdShape(t.Name, n)
		}
		t.Data = mem.BufferSlice{body.Slice(at, at+int(n))}
		at += int(n)
	case hasShared:
		if absurd {
			return at, in.absurdShape(t.Name, 0)
		}
		if t.Parameters, err = sharedMemory(parameters, nil); err != nil {
			return at, err
		}
	case ok && count == 0: // the data is not read
		t.Data = mem.BufferSlice{mem.SliceBuffer(nil)}
	default:
		raw, err := in.jsonData(&t, data, count, elementSize >= 0, absurd)
		if err != nil {
			return at, err
		}
		t.Data = mem.BufferSlice{mem.SliceBuffer(raw)}
	}
	if len(in.request.Inputs) == batch.MaxTensors {
		return at, tooMany("inputs", batch.MaxTensors)
	}
	in.request.Inputs = append(in.request.Inputs, t)
	return at, nil
}

func checkSources(data, binary, shared bool) error {
	var set strings.Builder
	n := 0
	for _, source := range []struct {
		has  bool
		name string
	}{{data, " 'data'"}, {binary, " 'binary_data_size'"}, {shared, " 'shared_memory_region'"}} {
		if source.has {
			set.WriteString(source.name)
			n++
		}
	}
	const rule = "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', 'shared_memory_region' in 'parameters'. But"
	switch n {
	case 1:
		return nil
	case 0:
		return status.Error(codes.InvalidArgument, rule+" no field is set")
	default:
		return status.Error(codes.InvalidArgument, rule+" set"+set.String())
	}
}

func (in *inference) jsonData(t *batch.Tensor, data tritonjson.Value, count int64, known, absurd bool) ([]byte, error) {
	if err := data.CheckArray(); err != nil {
		return nil, decodeError(err, "Unable to parse 'data'")
	}
	switch {
	case !known:
		return nil, status.Errorf(codes.InvalidArgument, "invalid datatype for input %s", t.Name)
	case t.Datatype == "FP16" || t.Datatype == "BF16":
		return nil, status.Errorf(codes.InvalidArgument,
			"receiving %s data via JSON is not supported. Please use the binary data format for input %s", t.Datatype, t.Name)
	case absurd && t.Datatype == "BYTES":
		return nil, in.absurdShape(t.Name, uint64(len(data.Raw())))
	case absurd: // a real server crashes
		return nil, decodeError(tritonjson.ErrShape, "Unable to parse 'data'")
	}
	raw, err := tritonjson.ReadTensor(data, t.Datatype, count)
	if err != nil {
		doing := "Unable to parse 'data'"
		if t.Datatype == "BYTES" {
			doing = "Unable to parse JSON bytes array"
		}
		return nil, decodeError(err, doing)
	}
	return raw, nil
}

// absurdShape refuses a shape whose size overflows: the server computes it unchecked and crashes.
func (in *inference) absurdShape(name string, got uint64) error {
	id := in.request.ID
	if id == "" {
		id = "<id_unknown>"
	}
	return status.Errorf(codes.InvalidArgument,
		"[request id: %s] input byte size mismatch for input '%s' for model '%s'. Expected more than %d, got %d",
		id, name, in.model, int64(math.MaxInt64), got)
}

func readShape(v tritonjson.Value) ([]int64, error) {
	array, err := v.Member("shape")
	if err == nil {
		err = array.CheckArray()
	}
	if err != nil {
		return nil, decodeError(err, "Unable to parse 'shape'")
	}
	shape := make([]int64, 0, 4)
	for dim := range array.Elements() {
		u, err := dim.AsUint()
		if err != nil {
			return nil, decodeError(err, "Unable to parse 'shape'")
		}
		shape = append(shape, int64(u)) // what does not fit is negative and thereby absurd
	}
	return shape, nil
}

func (in *inference) output(v tritonjson.Value) error {
	parameters, _ := v.Find("parameters")
	_, shared := parameters.Find(batch.ParameterSharedMemoryRegion)
	classification, classified := parameters.Find(batch.ParameterClassification)
	binaryData, hasBinary := parameters.Find(batch.ParameterBinaryData)
	if shared && classified {
		return status.Error(codes.InvalidArgument, "Output can't set both 'shared_memory_region' and 'classification'")
	}
	if shared && hasBinary {
		switch binary, err := binaryData.AsBool(); {
		case err != nil:
			return decodeError(err, "Unable to set 'binary_data'")
		case binary:
			return status.Error(codes.InvalidArgument, "Output can't set both 'shared_memory_region' and 'binary_data'")
		}
	}
	var out batch.RequestedOutput
	var err error
	if out.Name, err = stringMember(v, "name"); err != nil {
		return err
	}
	if classified {
		n, err := classification.AsUint()
		if err != nil {
			return decodeError(err, "Unable to set 'classification'")
		}
		if n > 0 {
			out.Parameters = append(out.Parameters,
				batch.Int64Parameter(batch.ParameterClassification, int64(min(n, math.MaxInt64))))
		}
	}
	if out.Parameters, err = sharedMemory(parameters, out.Parameters); err != nil {
		return err
	}
	binary := false
	if !shared && hasBinary {
		if binary, err = binaryData.AsBool(); err != nil {
			return decodeError(err, "Unable to parse 'binary_data'")
		}
	}
	if _, twice := in.named[out.Name]; twice {
		return nil
	}
	if in.named == nil {
		in.named = make(map[string]bool)
	}
	if len(in.request.Outputs) == batch.MaxTensors {
		return tooMany("requested outputs", batch.MaxTensors)
	}
	in.named[out.Name] = binary
	in.request.Outputs = append(in.request.Outputs, out)
	return nil
}

// failDecode answers a request that could not be read.
func failDecode(w nethttp.ResponseWriter, err error) {
	var early *headerError
	if errors.As(err, &early) {
		failStatus(w, plainType, early.error)
		return
	}
	failStatus(w, jsonType, err)
}
