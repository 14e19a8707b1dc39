// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package batch

// pairInputs gives every input its raw contents as Triton does: one entry per
// input that is not in shared memory, in order. It returns why that failed, if
// it did. Entries left over are ignored, as Triton ignores them.
func (d *reader) pairInputs(m *Request) (irregular string) {
	next := 0
	for i := range m.Inputs {
		t := &m.Inputs[i]
		shared := t.SharedMemory()
		switch {
		case shared && t.hasContents:
			irregular = "input " + t.Name + " has contents and shared memory"
		case shared:
		case t.hasContents && len(d.raws) > 0:
			irregular = "input " + t.Name + " has typed contents beside raw ones"
		case t.hasContents:
		case next < len(d.raws):
			t.Data = d.raws[next]
			next++
		default:
			irregular = "input " + t.Name + " has no data"
		}
	}
	for _, raw := range d.raws[next:] {
		raw.Free()
	}
	return irregular
}

// pairOutputs gives every output its raw contents. A server may leave out the
// entries of outputs in shared memory, or write empty ones.
func (d *reader) pairOutputs(m *Response) {
	all := len(d.raws) >= len(m.Outputs)
	next := 0
	for i := range m.Outputs {
		t := &m.Outputs[i]
		if next == len(d.raws) {
			break
		}
		if all || (!t.SharedMemory() && !t.hasContents) {
			t.Data = d.raws[next]
			next++
		}
	}
	for _, raw := range d.raws[next:] {
		raw.Free()
	}
}
