// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"encoding/binary"
	"math"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// newBuiltin makes the built-in model that parameter conch_builtin names:
//
//	identity   OUTPUTx = INPUTx, any type and shape
//	add_sub    OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1, TYPE_INT32
//	string     every element of INPUT0 with ASCII letters in upper case, TYPE_STRING
//	decoupled  one response per element of IN, after the milliseconds that DELAY says for it: OUT the element, IDX its index
//	sequence   OUTPUT = the sum of INPUT over the sequence so far, TYPE_INT32 [1]
//	slow       identity after conch_slow_ms milliseconds per execution, and the gate
//	delay      identity after as many milliseconds as the largest FP32 of the execution says, and the gate
//	error      identity, but a request with a negative FP32 fails, and one with -500 has two answers, which fail the
//	           execution as one with -1000 or less does
//	version    OUTPUT0 = INPUT0 + 100 times the version that runs, TYPE_INT32
//	rank       OUTPUT0 of every row is in how many dimensions INPUT0 comes to the model, the batch included, TYPE_INT32
//	controls   OUTPUT is INPUT and the sequence controls START, END, READY and CORRID that came with it, TYPE_INT64 [5]
//	crash      fails for ever from its first execution on, as a model whose python stub has died
//
// The gate of a model is the directory that parameter conch_gate names, if it does: an execution that begins while there is a file "closed"
// in it writes a file "begun-*" beside it and goes on once that is removed.
func newBuiltin(name string, c *pb.ModelConfig, version int64, p *place) (executor, error) {
	fits := func(in, out []string, t pb.DataType) error {
		if len(c.Input) != len(in) || len(c.Output) != len(out) {
			return invalid("conch_builtin %q has %d inputs and %d outputs, the config %d and %d", name, len(in), len(out), len(c.Input), len(c.Output))
		}
		for i, n := range in {
			if c.Input[i].Name != n || c.Input[i].DataType != t && t != 0 {
				return invalid("conch_builtin %q: input %d must be %s", name, i, n)
			}
		}
		for i, n := range out {
			if c.Output[i].Name != n {
				return invalid("conch_builtin %q: output %d must be %s", name, i, n)
			}
		}
		return nil
	}
	switch name {
	case "identity":
		return identity{}, nil
	case "add_sub":
		return addSub{}, fits([]string{"INPUT0", "INPUT1"}, []string{"OUTPUT0", "OUTPUT1"}, pb.DataType_TYPE_INT32)
	case "string":
		return upper{}, fits([]string{"INPUT0"}, []string{"OUTPUT0"}, pb.DataType_TYPE_STRING)
	case "decoupled":
		return &repeat{place: p}, fits([]string{"IN", "DELAY"}, []string{"OUT", "IDX"}, 0)
	case "sequence":
		return &accumulate{output: "OUTPUT", sums: map[string]int32{}}, fits([]string{"INPUT"}, []string{"OUTPUT"}, pb.DataType_TYPE_INT32)
	case "slow":
		ms, err := strconv.ParseFloat(parameter(c, "conch_slow_ms"), 64)
		if err != nil {
			return nil, invalid("parameter conch_slow_ms %q must be a number of milliseconds", parameter(c, "conch_slow_ms"))
		}
		return &slow{place: p, time: time.Duration(ms * float64(time.Millisecond)), gate: parameter(c, "conch_gate")}, nil
	case "delay":
		return &delay{place: p, gate: parameter(c, "conch_gate")}, fits([]string{"INPUT0"}, []string{"OUTPUT0"}, pb.DataType_TYPE_FP32)
	case "error":
		return failing{instance: c.InstanceGroup[0].Name + "_0"}, fits([]string{"INPUT0"}, []string{"OUTPUT0"}, pb.DataType_TYPE_FP32)
	case "version":
		return &versioned{offset: 100 * int32(version)}, fits([]string{"INPUT0"}, []string{"OUTPUT0"}, pb.DataType_TYPE_INT32)
	case "rank":
		return newRank(c), fits([]string{"INPUT0"}, []string{"OUTPUT0"}, 0)
	case "controls":
		return newControls(c), fits([]string{"INPUT"}, []string{"OUTPUT"}, pb.DataType_TYPE_INT32)
	case "crash":
		return crashed{instance: c.InstanceGroup[0].Name + "_0"}, nil
	default:
		return nil, invalid("conch_builtin %q is none of identity, add_sub, string, decoupled, sequence, slow, delay, error, version, rank, controls, crash", name)
	}
}

// identity shares the request's bytes with the response: nothing is copied.
type identity struct{}

func (identity) execute(p *payload, responses []response) error {
	for i, r := range p.requests {
		outputs := make([]tensor, 0, len(r.inputs))
		for _, in := range r.inputs {
			in.name = strings.Replace(in.name, "INPUT", "OUTPUT", 1)
			if r.wants(in.name) {
				outputs = append(outputs, in)
			}
		}
		responses[i].outputs = outputs
	}
	return nil
}

type addSub struct{}

func (addSub) execute(p *payload, responses []response) error {
	for i, r := range p.requests {
		a, b := r.input("INPUT0"), r.input("INPUT1")
		for _, op := range []struct {
			name string
			sign uint32
		}{{"OUTPUT0", 1}, {"OUTPUT1", ^uint32(0)}} {
			if !r.wants(op.name) {
				continue
			}
			out := make([]byte, len(a.data))
			for k := 0; k < len(out); k += 4 {
				binary.LittleEndian.PutUint32(out[k:], binary.LittleEndian.Uint32(a.data[k:])+op.sign*binary.LittleEndian.Uint32(b.data[k:]))
			}
			responses[i].outputs = append(responses[i].outputs, tensor{name: op.name, dtype: a.dtype, shape: a.shape, data: out})
		}
	}
	return nil
}

type upper struct{}

func (upper) execute(p *payload, responses []response) error {
	for i, r := range p.requests {
		in := &r.inputs[0]
		out := make([]byte, 0, len(in.data))
		eachString(in.data, func(e []byte) bool {
			from := len(out) + 4
			out = appendBytesElement(out, e)
			for k := from; k < len(out); k++ {
				if c := out[k]; 'a' <= c && c <= 'z' {
					out[k] = c - 'a' + 'A'
				}
			}
			return true
		})
		responses[i].outputs = []tensor{{name: "OUTPUT0", dtype: in.dtype, shape: in.shape, data: out}}
	}
	return nil
}

type repeat struct{ place *place }

func (d *repeat) execute(p *payload, _ []response) error {
	for _, r := range p.requests {
		in, delay := r.input("IN"), r.input("DELAY")
		for i := 0; i*4 < len(in.data); i++ {
			if len(delay.data) >= i*4+4 {
				d.place.until(d.place.clock.Now().Add(time.Duration(binary.LittleEndian.Uint32(delay.data[i*4:])) * time.Millisecond))
			}
			r.respond(&response{outputs: []tensor{
				{name: "OUT", dtype: pb.DataType_TYPE_INT32, shape: []int64{1}, data: in.data[i*4 : i*4+4]},
				{name: "IDX", dtype: pb.DataType_TYPE_UINT32, shape: []int64{1}, data: binary.LittleEndian.AppendUint32(nil, uint32(i))},
			}}, false)
		}
	}
	return nil
}

type slow struct {
	identity
	place *place
	time  time.Duration
	gate  string
}

func (s *slow) execute(p *payload, responses []response) error {
	if err := s.place.pass(s.gate); err != nil {
		return err
	}
	s.place.until(s.place.clock.Now().Add(s.time))
	return s.identity.execute(p, responses)
}

type delay struct {
	identity
	place *place
	gate  string
}

func (d *delay) execute(p *payload, responses []response) error {
	if err := d.place.pass(d.gate); err != nil {
		return err
	}
	longest := float32(0)
	for _, r := range p.requests {
		for data := r.inputs[0].data; len(data) >= 4; data = data[4:] {
			longest = max(longest, math.Float32frombits(binary.LittleEndian.Uint32(data)))
		}
	}
	d.place.until(d.place.clock.Now().Add(time.Duration(float64(longest) * float64(time.Millisecond))))
	return d.identity.execute(p, responses)
}

type failing struct {
	identity
	instance string
}

func (f failing) execute(p *payload, responses []response) error {
	if err := f.identity.execute(p, responses); err != nil {
		return err
	}
	for i, r := range p.requests {
		if len(r.inputs[0].data) < 4 {
			continue
		}
		least := math.Inf(1)
		for data := r.inputs[0].data; len(data) >= 4; data = data[4:] {
			least = min(least, float64(math.Float32frombits(binary.LittleEndian.Uint32(data))))
		}
		if least <= -1000 {
			return refuse(codes.Internal, "Failed to process the request(s) for model '%s', message: RuntimeError: the whole execution fails", f.instance)
		}
		if least == -500 {
			return refuse(codes.Internal, "Failed to process the request(s) for model '%s', message: Number of InferenceResponse objects do not match the number of InferenceRequest objects. InferenceRequest(s) size is:%d, and InferenceResponse(s) size is:%d\n", f.instance, len(p.requests), len(p.requests)+1)
		}
		if least < 0 {
			responses[i] = response{err: refuse(codes.Internal, "negative input")}
		}
	}
	return nil
}

type crashed struct{ instance string }

func (c crashed) execute(*payload, []response) error {
	return refuse(codes.Internal, "Stub process '%s' is not healthy.", c.instance)
}
