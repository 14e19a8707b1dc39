// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// TestLargePlansWeighLittle: what a policy may need to say is far below the limit.
func TestLargePlansWeighLittle(t *testing.T) {
	p := &Plan{}
	for i := range 1000 {
		part := &Partition{Id: fmt.Sprint("p", i), Node: "n", Gpus: []string{"gpu0"}}
		for j := range 10 {
			part.Instances = append(part.Instances, &Instance{Model: fmt.Sprint("model", j), MaxBatch: 8, Rate: 3})
			p.Reasons = append(p.Reasons, &Reason{Model: fmt.Sprint("model", i, j), Text: strings.Repeat("why ", 20)})
		}
		p.Partitions = append(p.Partitions, part)
	}
	wire, err := proto.Marshal(&PolicyMessage{Message: &PolicyMessage_Plan{Plan: p}})
	require.NoError(t, err)
	require.NoError(t, weigh(wire, (&PolicyMessage{}).ProtoReflect().Descriptor()))
}

// TestHostileAnswersAreNotDecoded: a few bytes on the wire that become many in memory.
func TestHostileAnswersAreNotDecoded(t *testing.T) {
	plan := func(content []byte) []byte { // PolicyMessage.plan
		return protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), content)
	}
	field := func(number protowire.Number, content []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), content)
	}
	for name, test := range map[string]struct {
		wire []byte
		want string
	}{
		"32 MiB of empty partitions": {plan([]byte(strings.Repeat(string(field(4, nil)), 16<<20))), "once decoded"},
		"ten million names":          {plan(field(5, []byte(strings.Repeat(string(field(3, []byte("a"))), 10_000_000)))), "once decoded"},
		"ten million unknown fields": {plan([]byte(strings.Repeat(string(field(99, nil)), 10_000_000))), "once decoded"},
		"a name of 60 MiB":           {plan(field(2, make([]byte, 60<<20))), "once decoded"},
		"cut off":                    {plan([]byte{0x22, 0x05, 0x01}), "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			codec := &answerCodec{}
			err := weigh(test.wire, (&PolicyMessage{}).ProtoReflect().Descriptor())
			require.ErrorContains(t, err, test.want)
			require.NoError(t, codec.err)
		})
	}
}
