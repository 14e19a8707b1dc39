// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package tritonjson_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/triton/tritonjson"
)

// BenchmarkTensor reads and writes ten thousand numbers as a client of Triton's HTTP endpoint sends and gets them.
func BenchmarkTensor(b *testing.B) {
	const count = 10_000
	for _, c := range []struct{ datatype, element string }{{"FP32", "0.73921"}, {"FP32", "0.10000000149011612"}, {"INT64", "123456"}} {
		b.Run(c.datatype+" "+c.element, func(b *testing.B) {
			text := []byte("[")
			for i := range count {
				if i > 0 {
					text = append(text, ',')
				}
				text = append(text, c.element...)
			}
			text = append(text, ']')
			var raw, back []byte
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				doc, err := tritonjson.Parse(text)
				require.NoError(b, err)
				raw, err = tritonjson.ReadTensor(doc.Root(), c.datatype, count)
				require.NoError(b, err)
				back, err = tritonjson.AppendTensor(back[:0], c.datatype, raw, count)
				require.NoError(b, err)
			}
		})
	}
}
