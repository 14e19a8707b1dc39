// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"fmt"
	"hash/maphash"
	"math"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// Batchable reports whether requests of a model that a server has with this
// configuration may share executions, and if not, why.
func Batchable(config *tritonpb.ModelConfig) (ok bool, reason string) {
	switch {
	case config == nil:
		return false, "configuration not known"
	case config.GetSequenceBatching() != nil:
		return false, "sequence batching"
	case config.GetEnsembleScheduling() != nil:
		return false, "ensemble"
	case config.GetModelTransactionPolicy().GetDecoupled():
		return false, "decoupled"
	case config.GetMaxBatchSize() <= 0:
		return false, "no batch dimension (max_batch_size 0)"
	case len(config.GetBatchInput()) > 0:
		return false, "batch_input"
	case len(config.GetBatchOutput()) > 0:
		return false, "batch_output"
	case config.GetResponseCache().GetEnable():
		return false, "response cache"
	case asksForQueue(config.GetDynamicBatching()):
		return false, "queue policy, priorities or preserve_ordering"
	}
	for _, in := range config.GetInput() {
		switch {
		case in.GetAllowRaggedBatch():
			return false, fmt.Sprintf("ragged input %q", in.GetName())
		case in.GetIsShapeTensor():
			return false, fmt.Sprintf("shape tensor %q", in.GetName())
		}
	}
	for _, out := range config.GetOutput() {
		if out.GetIsShapeTensor() {
			return false, fmt.Sprintf("shape tensor %q", out.GetName())
		}
	}
	if len(config.GetInput()) == 0 {
		return false, "no inputs"
	}
	return true, ""
}

// asksForQueue reports whether the server's queue has rules of its own: limits,
// priorities, order. Where Conch keeps these, the server has none: see QueuePolicy.
func asksForQueue(d *tritonpb.ModelDynamicBatching) bool {
	all := d.GetDefaultQueuePolicy()
	return d.GetPriorityLevels() > 0 || d.GetPreserveOrdering() || all.GetMaxQueueSize() > 0 || all.GetDefaultTimeoutMicroseconds() > 0
}

// Rules decide which requests of one model may share a batch. They are
// immutable and safe for concurrent use.
type Rules struct {
	batchable bool
	reason    string
	maxRows   int64
	required  int
	inputs    map[string]inputRule
	outputs   map[string]string // datatype by name
	produced  []outputRule
	versions  map[string]bool
	rowless   bool // tensors have no batch dimension
	seed      maphash.Seed
	textID    textIDRule
}

type outputRule struct {
	name, datatype string
	rowBytes       int // of one row; 0 where that is not known
}

type inputRule struct {
	datatype string
	size     int
	dims     []int64 // without the batch dimension; -1 is any
	optional bool
	index    int
}

// NewRules compiles the rules of one model. Versions are those that it serves;
// a request for any other is not batched. Members are the configurations of the
// models that an ensemble calls, which get its sequences.
func NewRules(config *tritonpb.ModelConfig, versions []string, members ...*tritonpb.ModelConfig) *Rules {
	u := &Rules{
		maxRows:  int64(config.GetMaxBatchSize()),
		inputs:   make(map[string]inputRule, len(config.GetInput())),
		outputs:  make(map[string]string, len(config.GetOutput())),
		versions: make(map[string]bool, len(versions)),
		seed:     maphash.MakeSeed(),
		textID:   newTextIDRule(append(members, config)),
	}
	u.batchable, u.reason = Batchable(config)
	for i, in := range config.GetInput() {
		datatype := triton.DatatypeName(in.GetDataType())
		u.inputs[in.GetName()] = inputRule{datatype, triton.SizeOf(datatype), in.GetDims(), in.GetOptional(), i}
		if !in.GetOptional() {
			u.required++
		}
	}
	// Seen inputs are counted in a 64-bit set.
	if len(u.inputs) > 64 && u.batchable {
		u.batchable, u.reason = false, "more than 64 inputs"
	}
	for _, out := range config.GetOutput() {
		rule := outputRule{name: out.GetName(), datatype: triton.DatatypeName(out.GetDataType())}
		u.outputs[rule.name] = rule.datatype
		if size := triton.SizeOf(rule.datatype); size > 0 {
			if n, ok := triton.Elements(out.GetDims()); ok && n <= maxRowBytes/int64(size) {
				rule.rowBytes = int(n) * size
			}
		}
		u.produced = append(u.produced, rule)
	}
	for _, v := range versions {
		u.versions[v] = true
	}
	return u
}

// Sharing returns these rules with the keys of another model's: requests of either with equal keys may share a batch. It is for the members of a
// merge group, which take the same inputs.
func (u *Rules) Sharing(group *Rules) *Rules {
	out := *u
	out.seed = group.seed
	return &out
}

// Whole returns the rules for requests of an ensemble that Conch executes step by step. Key is ok for those that Triton would not refuse, and that ask
// for nothing but their outputs. The ensemble may have no batch dimension; such requests count as one row.
func (u *Rules) Whole() *Rules {
	out := *u
	out.batchable, out.reason = true, ""
	out.rowless = u.maxRows <= 0
	if len(u.inputs) > 64 || len(u.inputs) == 0 {
		out.batchable, out.reason = false, "no inputs, or more than 64"
	}
	return &out
}

// Key reports whether the request may be batched and with which: requests with
// equal keys may share a batch. It checks everything that Triton would refuse,
// because a request that Triton refuses must not fail others in its batch. When ok
// is false the request is to be forwarded alone, and reason is why; it is not an
// error, and Triton answers the request with its own text.
//
// The key covers version, parameters except `timeout`, `priority` and `triton_enable_empty_final_response`, and the names and shapes
// of all inputs. Key also normalises typed contents.
func (u *Rules) Key(r *Request) (key uint64, rows int, ok bool, reason string) {
	switch {
	case !u.batchable:
		return 0, 0, false, u.reason
	case r.Irregular != "":
		return 0, 0, false, r.Irregular
	case len(r.Unknown) > 0 || r.foreign:
		return 0, 0, false, "fields that this version of Conch does not know"
	case r.Version != "" && !u.versions[r.Version]:
		return 0, 0, false, "version that is not served"
	}
	var h maphash.Hash
	h.SetSeed(u.seed)
	h.WriteString(r.Version)
	key = h.Sum64()
	for _, p := range r.Parameters {
		switch p.Name {
		case ParameterSequenceID, ParameterSequenceStart, ParameterSequenceEnd:
			return 0, 0, false, "sequence parameters"
		}
		if !p.valid() {
			return 0, 0, false, "parameter that Triton does not take"
		}
		if ofOneCaller(p.Name) {
			continue
		}
		// Sums, because the order of parameters and of inputs does not matter.
		h.Reset()
		h.WriteByte('p')
		h.WriteString(p.Name)
		h.WriteByte(0)
		h.Write(p.Value)
		key += h.Sum64()
	}
	n, reason := u.checkInputs(r)
	if reason != "" {
		return 0, 0, false, reason
	}
	for i := range r.Inputs {
		t := &r.Inputs[i]
		h.Reset()
		h.WriteByte('i')
		h.WriteString(t.Name)
		for _, d := range t.Shape[min(1, len(t.Shape)):] {
			h.WriteByte(0)
			maphash.WriteComparable(&h, d)
		}
		key += h.Sum64()
	}
	// Names may repeat; joining compares each with each.
	if len(r.Outputs) > len(u.outputs) {
		return 0, 0, false, "more requested outputs than the model has"
	}
	for i := range r.Outputs {
		o := &r.Outputs[i]
		if _, known := u.outputs[o.Name]; !known {
			return 0, 0, false, "requested output that the model does not have"
		}
		if len(o.Parameters) > 0 {
			return 0, 0, false, "requested output with parameters"
		}
	}
	return key, n, true, ""
}

// Alone reports whether a request that shares no execution may be queued all the same, to be executed alone, and its rows: its tensors are in shared
// memory, or classes are asked of outputs. What Triton would refuse before it queues it is not for the queue.
func (u *Rules) Alone(r *Request) (rows int, ok bool) {
	if !u.batchable || r.Irregular != "" || len(r.Unknown) > 0 || r.foreign || r.Version != "" && !u.versions[r.Version] || len(r.Inputs) == 0 {
		return 0, false
	}
	for _, p := range r.Parameters {
		if !p.valid() || p.Name == ParameterSequenceID || p.Name == ParameterSequenceStart || p.Name == ParameterSequenceEnd {
			return 0, false
		}
	}
	n := r.Inputs[0].rows()
	for i := range r.Inputs {
		rule, known := u.inputs[r.Inputs[i].Name]
		if !known || r.Inputs[i].Datatype != rule.datatype || len(r.Inputs[i].Shape) != len(rule.dims)+1 || r.Inputs[i].rows() != n {
			return 0, false
		}
	}
	return int(n), n >= 1 && n <= u.maxRows
}

func (u *Rules) checkInputs(r *Request) (rows int, reason string) {
	var seen uint64
	required := 0
	n, lead := int64(1), 1
	if u.rowless {
		lead = 0
	}
	for i := range r.Inputs {
		t := &r.Inputs[i]
		rule, known := u.inputs[t.Name]
		switch {
		case !known:
			return 0, "input that the model does not have"
		case seen&(1<<rule.index) != 0:
			return 0, "input given twice"
		case len(t.Parameters) > 0:
			return 0, "input with parameters"
		case t.Datatype != rule.datatype || rule.size < 0:
			return 0, "datatype of an input"
		case len(t.Shape) != len(rule.dims)+lead:
			return 0, "rank of an input"
		case u.rowless:
		case t.Shape[0] < 1 || t.Shape[0] > u.maxRows:
			return 0, "rows outside 1 to max_batch_size"
		case i > 0 && t.Shape[0] != n:
			return 0, "inputs with different numbers of rows"
		default:
			n = t.Shape[0]
		}
		seen |= 1 << rule.index
		if !rule.optional {
			required++
		}
		for k, d := range rule.dims {
			if got := t.Shape[k+lead]; got < 1 || (d >= 0 && d != got) {
				return 0, "shape of an input"
			}
		}
		if t.typed() && t.Data == nil {
			if err := t.Normalize(); err != nil {
				return 0, "typed contents that do not match the datatype"
			}
		}
		count, ok := triton.Elements(t.Shape)
		if !ok || t.Data == nil || !exactly(t.Data.Len(), t, count, rule.size) {
			return 0, "size of an input's data"
		}
	}
	if required != u.required {
		return 0, "input that is missing"
	}
	return int(n), ""
}

// exactly reports whether the tensor's data is count elements and no more.
func exactly(have int, t *Tensor, count int64, size int) bool {
	if size > 0 {
		return count <= math.MaxInt64/int64(size) && int64(have) == count*int64(size)
	}
	c := newCursor(t.Data)
	_, ok := c.skipElements(count)
	return ok && c.left == 0
}

// Hazard returns a gRPC status error for the requests that are known to crash a
// Triton server (2.51). They are: a shape whose byte size overflows, which Triton
// computes as too small; a classification of a BYTES output, which divides by the
// size of its elements; a text as sequence id that is longer than the tensor that
// Triton writes it into. It also returns one for an extent in shared memory whose end
// overflows, which older servers take for one inside the region. It returns nil
// for all others.
//
// A classification of an answer without elements crashes a server that it reaches
// over HTTP, and is answered over gRPC: see Request.AsksForClasses.
func (u *Rules) Hazard(r *Request) error {
	if err := u.textID.hazard(r); err != nil {
		return err
	}
	for i := range r.Inputs {
		t := &r.Inputs[i]
		if err := r.extentHazard("input", t.Name, t.Parameters); err != nil {
			return err
		}
		if overflows(t.Shape, triton.SizeOf(t.Datatype)) {
			return status.Errorf(codes.InvalidArgument, "%sinvalid shape %v for input '%s' for model '%s': its byte size exceeds the maximum", requestPrefix(r.ID), t.Shape, t.Name, r.Model)
		}
	}
	for i := range r.Outputs {
		o := &r.Outputs[i]
		if err := r.extentHazard("output", o.Name, o.Parameters); err != nil {
			return err
		}
		if _, ok := FindParameter(o.Parameters, ParameterClassification); !ok {
			continue
		}
		if u.outputs[o.Name] == bytesDatatype {
			return status.Errorf(codes.InvalidArgument, "%sclassification is not supported for output '%s' of datatype BYTES for model '%s'", requestPrefix(r.ID), o.Name, r.Model)
		}
	}
	return nil
}

// AsksForClasses reports whether a request asks for the best classes of an output, in place of its values. Such a request is not for a server's HTTP port.
func (r *Request) AsksForClasses() bool {
	for i := range r.Outputs {
		if _, ok := FindParameter(r.Outputs[i].Parameters, ParameterClassification); ok {
			return true
		}
	}
	return false
}

// extentHazard returns an error for an extent in shared memory that no region can have.
func (r *Request) extentHazard(what, name string, parameters []Parameter) error {
	if len(parameters) == 0 {
		return nil
	}
	number := func(name string) int64 {
		p, _ := FindParameter(parameters, name)
		if v, ok := p.Uint64(); ok {
			return int64(v) // what does not fit is negative
		}
		v, _ := p.Int64()
		return v
	}
	offset, size := number(ParameterSharedMemoryOffset), number(ParameterSharedMemorySize)
	if offset >= 0 && size >= 0 && offset <= math.MaxInt64-size {
		return nil
	}
	return status.Errorf(codes.InvalidArgument, "%soffset %d and byte size %d of %s '%s' for model '%s' are outside what a region can have", requestPrefix(r.ID), offset, size, what, name, r.Model)
}

// requestPrefix is the beginning of Triton's messages about one request.
func requestPrefix(id string) string {
	if id == "" {
		id = "<id_unknown>"
	}
	return "[request id: " + id + "] "
}
