// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"encoding/binary"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/mem"
)

// Membership describes how requests of a model, the member, run as rows of another one, its merge group: a model whose batches hold rows of any
// member. It is immutable.
type Membership struct {
	// Member is the model that clients name, Version that of its answers.
	Member, Version string
	// Group is the model that runs them.
	Group string
	// Input is the group's input with the index of each row's member, an INT32 per row; Index is this member's.
	Input string
	Index int32
	// Outputs are the group's names of the member's outputs. It has all of them.
	Outputs map[string]string
	// Produced are the member's outputs in the order of its configuration.
	Produced []string
}

// outputOf returns the member's name of a group's output; empty for one of another member.
func (a *Membership) outputOf(output string) string {
	if a.Outputs[output] == output {
		return output
	}
	for _, name := range a.Produced {
		if a.Outputs[name] == output {
			return name
		}
	}
	return ""
}

// appendIndex appends the data of Input for rows of the member.
func (a *Membership) appendIndex(data []byte, rows int64) []byte {
	for range rows {
		data = binary.LittleEndian.AppendUint32(data, uint32(a.Index)) //nolint:gosec // not negative
	}
	return data
}

func (a *Membership) indexTensor(data []byte, rows int64) Tensor {
	return Tensor{Name: a.Input, Datatype: "INT32", Shape: []int64{rows, 1}, Data: mem.BufferSlice{mem.SliceBuffer(data)}}
}

// requested returns the group's outputs that a request of the member asks for. Parameters of requested outputs are kept.
func (a *Membership) requested(r *Request) []RequestedOutput {
	var out []RequestedOutput
	if len(r.Outputs) == 0 {
		for _, name := range a.Produced {
			out = append(out, RequestedOutput{Name: a.Outputs[name]})
		}
		return out
	}
	for _, o := range r.Outputs {
		if as, has := a.Outputs[o.Name]; has {
			o.Name = as
		}
		out = append(out, o)
	}
	return out
}

// Request converts a request of the member that is sent alone to one of the group with the same rows. Fields inside of tensors that this build
// does not know are left out. The caller frees it.
func (a *Membership) Request(r *Request) *Request {
	out := &Request{Model: a.Group, ID: r.ID, Parameters: r.Parameters, Unknown: r.Unknown, Inputs: slices.Clone(r.Inputs), Outputs: a.requested(r)}
	for i := range out.Inputs {
		t := &out.Inputs[i]
		t.Data.Ref()
		if t.typed() && t.Data == nil {
			_ = t.Normalize() // Triton refuses contents that do not match
		}
	}
	rows := int64(max(1, r.Rows()))
	if rows > maxMemberRows {
		rows = 1 // far more than a batch may have: Triton refuses it for its other inputs
	}
	out.Inputs = append(out.Inputs, a.indexTensor(a.appendIndex(make([]byte, 0, 4*rows), rows), rows))
	return out
}

// maxMemberRows bounds what Conch writes for a shape that was not checked yet.
const maxMemberRows = 1 << 20

// Answer converts a group's answer to one request to the member's answer.
func (a *Membership) Answer(resp *Response) {
	if resp.Cleared {
		return // a cleared answer has no names
	}
	resp.Detach()
	resp.Model, resp.Version = a.Member, a.Version
	for i := range resp.Outputs {
		if name := a.outputOf(resp.Outputs[i].Name); name != "" {
			resp.Outputs[i].Name = name
		}
	}
}

// counted are the numbers of inputs in Triton's refusal of a request that has too few or too many.
var counted = regexp.MustCompile(`(expected|got) (\d+)( inputs)`)

// Text converts the text of a server's error about a request to the group to that about one to the member.
func (a *Membership) Text(text string) string {
	if !strings.Contains(text, a.Group) && !strings.Contains(text, a.Input) {
		return text
	}
	text = strings.ReplaceAll(text, "'"+a.Group+"'", "'"+a.Member+"'")
	text = strings.ReplaceAll(text, "'"+a.Group+"_", "'"+a.Member+"_") // an instance of it
	text = strings.ReplaceAll(strings.ReplaceAll(text, ", "+a.Input, ""), a.Input+", ", "")
	return counted.ReplaceAllStringFunc(text, func(match string) string {
		parts := counted.FindStringSubmatch(match)
		n, _ := strconv.Atoi(parts[2])
		return fmt.Sprintf("%s %d%s", parts[1], max(0, n-1), parts[3])
	})
}

// AssembleGroup joins requests of members of one group, each with its member, into one request of the group, like Assemble.
func AssembleGroup(reqs []*Request, members []*Membership) (*Request, error) {
	joined, err := Assemble(reqs)
	if err != nil {
		return nil, err
	}
	first := members[0]
	joined.Model, joined.Version, joined.Outputs = first.Group, "", nil
	total := int64(0)
	for _, r := range reqs {
		total += int64(r.Rows())
	}
	indexes := make([]byte, 0, 4*total)
	for i, r := range reqs {
		indexes = members[i].appendIndex(indexes, int64(r.Rows()))
		if i > 0 && members[i] == members[i-1] && len(r.Outputs) == 0 && len(reqs[i-1].Outputs) == 0 {
			continue // the same as those of the one before
		}
		for _, o := range members[i].requested(r) {
			if !slices.ContainsFunc(joined.Outputs, func(u RequestedOutput) bool { return u.Name == o.Name }) {
				joined.Outputs = append(joined.Outputs, o)
			}
		}
	}
	joined.Inputs = append(joined.Inputs, first.indexTensor(indexes, total))
	return joined, nil
}

// SplitGroup divides a group's answer among the requests that AssembleGroup joined, like Split. Each gets its member's outputs under
// their own names.
func SplitGroup(resp *Response, reqs []*Request, members []*Membership) ([]*Response, error) {
	parts, err := split(resp, reqs, members)
	for i, p := range parts {
		p.Model, p.Version = members[i].Member, members[i].Version
	}
	return parts, err
}
