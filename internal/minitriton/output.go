// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"google.golang.org/grpc/codes"
)

// requestedOutput is one output that a request asks for, and in what form.
type requestedOutput struct {
	name string
	// classes asks for the names of so many highest values in place of the values; 0 for the values.
	classes uint32
	// place is where in shared memory the data go; nil has them in the answer.
	place *placement
}

// finish gives the outputs of an answer the form that the request asks for: classes, or a place in shared memory.
func (m *model) finish(r *request, resp *response) *Error {
	for i := range resp.outputs {
		out := &resp.outputs[i]
		want := r.requested(out.name)
		switch {
		case want == nil || out.placed:
		case want.place != nil:
			if uint64(len(out.data)) > want.place.size {
				return refuse(codes.Internal, "shared memory size specified with the request for output '%s' (%d bytes) should be at least %d bytes to hold the results",
					out.name, want.place.size, len(out.data))
			}
			want.place.write(out.data)
			out.data, out.placed = nil, true
		case want.classes > 0:
			if err := classify(out, int(want.classes), m.config.MaxBatchSize > 0, m.labels[out.name]); err != nil {
				return err
			}
		}
	}
	return nil
}
