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

// Membership says how requests of a model, the member, run as rows of another one, its merge group: a model whose batches hold rows of any
// member. It is immutable.
type Membership struct {
	// Member is the model that clients name, Version what answers to them say.
	Member, Version string
	// Group is the model that runs them.
	Group string
	// Input is the group's input that says whose each row is, an INT32 per row; Index is what it says of the member's.
	Input string
	Index int32
	// Outputs are the group's names of the member's outputs. All of them are in it.
	Outputs map[string]string
	// Produced are the member's outputs in the order of its configuration.
	Produced []string
}

// own is the member's name of a group's output; empty for one of another member.
func (a *Membership) own(output string) string {
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

// whose is the input that says of rows that they are the member's.
func (a *Membership) whose(data []byte, rows int64) []byte {
	for range rows {
		data = binary.LittleEndian.AppendUint32(data, uint32(a.Index)) //nolint:gosec // not negative
	}
	return data
}

func (a *Membership) whoseTensor(data []byte, rows int64) Tensor {
	return Tensor{Name: a.Input, Datatype: "INT32", Shape: []int64{rows, 1}, Data: mem.BufferSlice{mem.SliceBuffer(data)}}
}

// requested are the group's outputs that a request of the member is after. Parameters of requested outputs stay with them.
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

// Request is a request of the member, as one of the group with the same rows, for one that goes alone. What this build does not know
// inside of tensors is left out. The caller frees it.
func (a *Membership) Request(r *Request) *Request {
	out := &Request{Model: a.Group, ID: r.ID, Parameters: r.Parameters, Unknown: r.Unknown, Inputs: slices.Clone(r.Inputs), Outputs: a.requested(r)}
	for i := range out.Inputs {
		t := &out.Inputs[i]
		t.Data.Ref()
		if t.typed() && t.Data == nil {
			_ = t.Normalize() // Triton refuses what is not in order, in its own words
		}
	}
	rows := int64(max(1, r.Rows()))
	if rows > maxMemberRows {
		rows = 1 // far more than a batch may have: Triton refuses it for its other inputs
	}
	out.Inputs = append(out.Inputs, a.whoseTensor(a.whose(make([]byte, 0, 4*rows), rows), rows))
	return out
}

// maxMemberRows bounds what a shape that nobody has checked makes Conch write.
const maxMemberRows = 1 << 20

// Answer makes of a group's answer to one request what the member would have answered.
func (a *Membership) Answer(resp *Response) {
	if resp.Cleared {
		return // Triton's own names nothing
	}
	resp.Detach()
	resp.Model, resp.Version = a.Member, a.Version
	for i := range resp.Outputs {
		if own := a.own(resp.Outputs[i].Name); own != "" {
			resp.Outputs[i].Name = own
		}
	}
}

// counted are the numbers of inputs in Triton's refusal of a request that has too few or too many.
var counted = regexp.MustCompile(`(expected|got) (\d+)( inputs)`)

// Text makes of what a server says about a request to the group what it would say about the member.
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
	whose := make([]byte, 0, 4*total)
	for i, r := range reqs {
		whose = members[i].whose(whose, int64(r.Rows()))
		if i > 0 && members[i] == members[i-1] && len(r.Outputs) == 0 && len(reqs[i-1].Outputs) == 0 {
			continue // the same as those of the one before
		}
		for _, o := range members[i].requested(r) {
			if !slices.ContainsFunc(joined.Outputs, func(u RequestedOutput) bool { return u.Name == o.Name }) {
				joined.Outputs = append(joined.Outputs, o)
			}
		}
	}
	joined.Inputs = append(joined.Inputs, first.whoseTensor(whose, total))
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
