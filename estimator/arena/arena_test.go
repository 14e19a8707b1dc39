// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package arena_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/estimator/arena"
)

const mib = 1 << 20

// What ONNX Runtime 1.23 logs ("Extended allocation by") for these requests in turn.
func TestExtentsDouble(t *testing.T) {
	for _, tt := range []struct {
		requests []int64
		held     int64
	}{
		{[]int64{1}, mib},
		{[]int64{mib, 1}, 3 * mib},
		{[]int64{82944, 1327104, 5308416, 5308416}, (1 + 2 + 8 + 8) * mib},
		{[]int64{5308416, 1327104, 5308416, 5308416}, (8 + 8 + 16) * mib},
		{[]int64{1024 * mib, 1024 * mib}, 2048 * mib},
		{[]int64{5000 * mib}, 5000 * mib},
	} {
		var a arena.Arena
		for _, n := range tt.requests {
			a.Alloc(n)
		}
		require.Equal(t, tt.held, a.Held(), "%v", tt.requests)
	}
}

// Four additions in a chain, 512 KiB a row: each reads the value before it, so that two lie in the common block and the result beside it. ONNX Runtime 1.23
// extends its arena by 1, 2, then 4 and 8 MiB.
func TestAChainAtThreeBatchSizes(t *testing.T) {
	var a arena.Arena
	for _, tt := range []struct{ rows, held int64 }{{1, 3 * mib}, {2, 3 * mib}, {6, 15 * mib}} {
		row := tt.rows * mib / 2
		a.Run([]arena.Event{
			{Value: 0, Bytes: row}, {Value: 1, Bytes: row}, {Value: 0}, {Value: 2, Bytes: row}, {Value: 1}, {Value: 3, Bytes: row, Result: true}, {Value: 2},
		}, 4)
		require.Equal(t, tt.held, a.Held(), "%d rows", tt.rows)
	}
}

func TestACommonBlockFillsGaps(t *testing.T) {
	require.Equal(t, int64(320), arena.Common([]arena.Event{
		{Value: 0, Bytes: 128}, {Value: 1, Bytes: 64}, {Value: 2, Bytes: 64}, {Value: 1}, {Value: 3, Bytes: 60}, // where 1 was
		{Value: 0}, {Value: 4, Bytes: 64}, {Value: 5, Bytes: 64}, {Value: 6, Bytes: 1},
	}))
	require.Zero(t, arena.Common([]arena.Event{{Value: 0, Bytes: 128, Result: true}}), "results lie elsewhere")
}

func TestBlocksAreGivenOutOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var a arena.Arena
		out := map[arena.Block]int64{}
		var order []arena.Block
		live, most := int64(0), int64(0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(order) > 0 && rapid.Bool().Draw(t, "free") {
				i := rapid.IntRange(0, len(order)-1).Draw(t, "which")
				a.Free(order[i])
				live -= out[order[i]]
				delete(out, order[i])
				order = append(order[:i], order[i+1:]...)
			} else {
				n := rapid.Int64Range(1, 3*mib).Draw(t, "bytes")
				b := a.Alloc(n)
				require.NotContains(t, out, b, "a block is out once")
				out[b] = n
				order = append(order, b)
				live += n
				most = max(most, live)
			}
			require.LessOrEqual(t, most, a.Written())
			require.LessOrEqual(t, a.Written(), a.Held())
		}
		for _, b := range order {
			a.Free(b)
		}
		held := a.Held()
		a.Alloc(mib)
		require.Equal(t, max(held, mib), a.Held(), "what came back is joined: an extent is at least 1 MiB")
	})
}
