// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/conch-serving/conch/internal/triton"
	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// request is one inference, whichever protocol it came by.
type request struct {
	ctx     context.Context
	id      string
	inputs  []tensor
	outputs []requestedOutput // empty asks for all
	rows    int               // batch size; 1 for a model without batch dimension
	raw     bool              // the only input came without name and shape

	places []*placement // held until release

	sequence sequence
	priority uint64        // 1 is highest; 0 takes the model's default
	timeout  time.Duration // how long the caller would have it queued at most; 0 leaves it to the model

	// respond is called with every response and, in the last call or on its own, final. It must not block for long.
	respond func(r *response, final bool)

	enqueued time.Time
	held     bool // the model is not unloaded before the request is answered, although it may be about to be

	// What the queue policies say of it.
	level   uint64    // of priority; 0 where there are none
	expires time.Time // how long it may wait; zero is for ever
	late    bool      // it waits behind those whose time is not over
}

// sequence says to which sequence a request belongs. A zero id is none.
type sequence struct {
	id         string
	text       bool // the id was given as text
	start, end bool
}

// response is one answer, or the refusal of one request.
type response struct {
	outputs    []tensor
	parameters []responseParameter
	err        *Error
}

// responseParameter is a parameter of an answer: a string, an int64 or a bool.
type responseParameter struct {
	name  string
	value any
}

func (r *request) wants(output string) bool { return len(r.outputs) == 0 || r.requested(output) != nil }

// requested finds what a request says about an output. Of an output listed twice the first counts.
func (r *request) requested(output string) *requestedOutput {
	for i := range r.outputs {
		if r.outputs[i].name == output {
			return &r.outputs[i]
		}
	}
	return nil
}

// hold takes the place of a tensor of the request into account; nil is none.
func (r *request) hold(p *placement) {
	if p != nil {
		r.places = append(r.places, p)
	}
}

// release unpins the shared memory of a request that has ended.
func (r *request) release() {
	for _, p := range r.places {
		p.region.users.Add(-1)
	}
	r.places = nil
}

func (r *request) input(name string) *tensor {
	for i := range r.inputs {
		if r.inputs[i].name == name {
			return &r.inputs[i]
		}
	}
	return nil
}

func formatShape(dims []int64) string {
	s := make([]string, len(dims))
	for i, d := range dims {
		s[i] = strconv.FormatInt(d, 10)
	}
	return "[" + strings.Join(s, ",") + "]"
}

// prepare checks a request against the model's config in Triton's order, with Triton's words, and sets its rows.
func (m *model) prepare(r *request) *Error {
	for _, want := range r.outputs {
		if !slices.ContainsFunc(m.config.Output, func(o *pb.ModelOutput) bool { return o.Name == want.name }) {
			return invalid("unexpected inference output '%s' for model '%s'", want.name, m.name)
		}
	}
	if r.raw {
		if err := m.deduceRaw(r); err != nil {
			return err
		}
	}
	if err := m.checkInputNames(r); err != nil {
		return err
	}
	if err := m.checkBatch(r); err != nil {
		return err
	}
	for i := len(r.inputs) - 1; i >= 0; i-- {
		if err := m.checkInput(r, &r.inputs[i]); err != nil {
			return err
		}
	}
	return nil
}

// deduceRaw names the input of a raw binary request and gives it the shape that its size implies.
func (m *model) deduceRaw(r *request) *Error {
	if len(m.config.Input) != 1 {
		return requestError(r.id, "Raw request must only have 1 input (found 1) to be deduced but got %d inputs in '%s' model configuration",
			len(m.config.Input), m.name)
	}
	r.raw = false
	in, config := &r.inputs[0], m.config.Input[0]
	size := triton.ElementSize(config.DataType)
	shape := slices.Clone(config.Dims)
	variable, fixed := -1, int64(1)
	for i, d := range shape {
		if d != -1 {
			fixed *= d
		} else if variable >= 0 {
			return requestError(r.id, "The shape of the raw input '%s' can not be deduced because there are more than one variable-sized dimension", config.Name)
		} else {
			variable = i
		}
	}
	if size == 0 && (variable >= 0 || fixed != 1) {
		return requestError(r.id, "For BYTE datatype raw input '%s', the model must have input shape [1]", config.Name)
	}
	in.name, in.dtype = config.Name, config.DataType
	if size == 0 {
		in.data = appendBytesElement(nil, in.data)
	}
	if variable >= 0 {
		shape[variable] = int64(len(in.data)) / (size * fixed)
	}
	if m.config.MaxBatchSize > 0 {
		shape = append([]int64{1}, shape...)
	}
	in.shape = shape
	if expected := elements(shape) * size; size > 0 && expected != int64(len(in.data)) {
		return requestError(r.id, "input byte size mismatch for input 'raw_input' for model '%s'. Expected %d, got %d", m.name, expected, len(in.data))
	}
	return nil
}

func (m *model) checkInputNames(r *request) *Error {
	for i := range r.inputs {
		for k := range i {
			if r.inputs[k].name == r.inputs[i].name {
				return requestError(r.id, "input '%s' already exists in request", r.inputs[i].name)
			}
		}
	}
	if len(r.inputs) > len(m.config.Input) || len(r.inputs) < m.requiredInputs {
		return m.wrongInputs(r)
	}
	for i := len(r.inputs) - 1; i >= 0; i-- {
		if _, ok := m.inputs[r.inputs[i].name]; !ok {
			return invalid("unexpected inference input '%s' for model '%s'", r.inputs[i].name, m.name)
		}
	}
	return nil
}

// wrongInputs words the wrong number of inputs as Triton does, including its unbalanced bracket when nothing is missing.
func (m *model) wrongInputs(r *request) *Error {
	var got, missing []string
	for i := len(r.inputs) - 1; i >= 0; i-- {
		got = append(got, "'"+r.inputs[i].name+"'")
	}
	for _, in := range m.config.Input {
		if r.input(in.Name) == nil && !in.Optional {
			missing = append(missing, "'"+in.Name+"'")
		}
	}
	need := "]"
	if len(missing) > 0 {
		need = "[" + strings.Join(missing, ",") + "]"
	}
	expected := fmt.Sprintf("%d inputs", len(m.config.Input))
	if m.requiredInputs != len(m.config.Input) {
		expected = fmt.Sprintf("number of inputs between %d and %d", m.requiredInputs, len(m.config.Input))
	}
	return requestError(r.id, "expected %s but got %d inputs for model '%s'. Got input(s) [%s], but missing required input(s) %s. Please provide all required input(s).",
		expected, len(r.inputs), m.name, strings.Join(got, ","), need)
}

func (m *model) checkBatch(r *request) *Error {
	r.rows = 1
	if m.config.MaxBatchSize == 0 {
		return nil
	}
	for i := len(r.inputs) - 1; i >= 0; i-- {
		in := &r.inputs[i]
		if len(in.shape) == 0 {
			return requestError(r.id, "input '%s' has no shape but model requires batch dimension for '%s'", in.name, m.name)
		}
		if i == len(r.inputs)-1 {
			r.rows = int(int32(in.shape[0]))
		} else if int64(r.rows) != in.shape[0] {
			return requestError(r.id, "input '%s' batch size does not match other inputs for '%s'", in.name, m.name)
		}
	}
	if r.rows > int(m.config.MaxBatchSize) {
		return requestError(r.id, "inference request batch-size must be <= %d for '%s'", m.config.MaxBatchSize, m.name)
	}
	return nil
}

func (m *model) checkInput(r *request, in *tensor) *Error {
	config := m.inputs[in.name]
	if in.dtype != config.DataType {
		return requestError(r.id, "inference input '%s' data-type is '%s', but model '%s' expects '%s'",
			in.name, triton.DatatypeName(in.dtype), m.name, triton.DatatypeName(config.DataType))
	}
	own := in.shape
	rows := int64(1)
	if m.config.MaxBatchSize > 0 {
		own = own[1:]
		if r.rows != 0 { // Triton reads a batch of zero as not given
			rows = int64(uint32(r.rows))
		}
	}
	if !slices.EqualFunc(own, config.Dims, func(have, want int64) bool { return want == -1 || have == want }) {
		return m.wrongShape(r, in, config.Dims)
	}
	if size := triton.ElementSize(config.DataType); size > 0 {
		if expected := rows * elements(own) * size; expected != int64(len(in.data)) || overflows(own) {
			return requestError(r.id, "input byte size mismatch for input '%s' for model '%s'. Expected %d, got %d", in.name, m.name, expected, len(in.data))
		}
		return nil
	}
	return m.checkStrings(r, in, rows*elements(own))
}

// overflows reports whether the product of a shape's dimensions is too large for 64 bits, or nearly. Triton 2.51 does not check that, and crashes.
func overflows(shape []int64) bool {
	n := float64(1)
	for _, d := range shape {
		n *= float64(d)
	}
	return math.Abs(n) > math.MaxInt64/16
}

func (m *model) wrongShape(r *request, in *tensor, dims []int64) *Error {
	hint := ""
	expected := dims
	if m.config.MaxBatchSize > 0 {
		expected = append([]int64{-1}, dims...)
		hint = "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input shape. " +
			"If you want to specify the full shape including the batch dim in your input dims config, try setting max_batch_size to zero. " +
			"See the model configuration docs for more info on max_batch_size."
	}
	return requestError(r.id, "unexpected shape for input '%s' for model '%s'. Expected %s, got %s. %s",
		in.name, m.name, formatShape(expected), formatShape(in.shape), hint)
}

// checkStrings counts the elements by their lengths, as Triton's core does. A last element that is cut off counts; the backend refuses
// it, which makes it a failed execution in the statistics.
func (m *model) checkStrings(r *request, in *tensor, expected int64) *Error {
	n := int64(0)
	var cut *Error
	for data := in.data; len(data) > 0 && cut == nil; n++ {
		if len(data) < 4 {
			return requestError(r.id, "incomplete string length indicator for inference input '%s' for model '%s', expecting 4 bytes but only %d bytes available. "+
				"Please make sure the string length indicator is in one buffer.", in.name, m.name, len(data))
		}
		if n == expected {
			return requestError(r.id, "unexpected number of string elements %d for inference input '%s' for model '%s', expecting %d", n+1, in.name, m.name, expected)
		}
		size := uint64(binary.LittleEndian.Uint32(data))
		if uint64(len(data)-4) < size {
			cut = invalid("incomplete string data for inference input '%s', expecting string of length %d but only %d bytes available", in.name, size, len(data)-4)
			continue
		}
		data = data[4+size:]
	}
	if n != expected {
		return requestError(r.id, "expected %d string elements for inference input '%s' for model '%s', got %d", expected, in.name, m.name, n)
	}
	if cut != nil {
		m.stats.refused(failBackend, 0)
	}
	return cut
}

// microseconds is a number of microseconds as a duration, the longest there is for a number beyond it.
func microseconds(n uint64) time.Duration {
	if n > math.MaxInt64/1000 {
		return math.MaxInt64
	}
	return time.Duration(n) * time.Microsecond
}
