// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
)

// sequenceIDCases are texts for the ids of sequences that are as long as they may be, and longer. Nothing between: where the model wants
// its ids in a control input, 2.51 writes more than 20 bytes over whatever lies behind it, and dies.
func sequenceIDCases() []Case {
	const tooLong = "string correlation ID cannot be longer than 128 characters"
	text := func(length int) option { return parameter(seqID, strings.Repeat("x", length)) }
	longer := func(e *Env, model string) {
		e.Helper()
		_, err := e.Client.Stub.ModelInfer(e.ctx(), step(model, 1, text(129), parameter(start, true)))
		e.refused(err, codes.Unimplemented, tooLong)
	}
	return []Case{
		{"sequence/a text of 20 where the model wants a number", func(e *Env) { e.sum("sequence", text(20), 1, 2, 3) }},
		{"sequence/a text of 128", func(e *Env) { e.sum("sequence_text", text(128), 1, 2, 3) }},
		{"sequence/a text of 129", func(e *Env) { longer(e, "sequence_text") }},
		{"sequence/a text of 129 where the model wants a number", func(e *Env) { longer(e, "sequence") }},
		{"sequence/a text of 129 over HTTP", func(e *Env) {
			e.wantHTTP(e.call("POST", inferPath("sequence"), `{"inputs":[{"name":"INPUT","datatype":"INT32","shape":[1,1],"data":[1]}],"parameters":{"sequence_id":`+
				strconv.Quote(strings.Repeat("x", 129))+`,"sequence_start":true}}`), 501, jsonType, errorJSON(tooLong))
		}},
	}
}
