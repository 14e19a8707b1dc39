// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merger_test

import (
	"encoding/binary"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/graphs"
	"github.com/conch-serving/conch/internal/onnx"
	"github.com/conch-serving/conch/merger"
)

// A row that belongs to no member is refused with the value and the range, however the heads run and wherever in the batch the row is.
func TestARowOfNoMemberIsRefused(t *testing.T) {
	run := runtime(t)
	for name, model := range map[string]func(seed uint64) *graphs.Model{"together": backbones["classifier"].model, "one by one": backbones["chain"].model} {
		t.Run(name, func(t *testing.T) {
			r := write(t, map[string]*graphs.Model{"a": model(2), "b": model(3), "c": model(4)})
			dir := filepath.Join(t.TempDir(), "group")
			m, err := analyze(t, r, merger.Options{}).Emit(t.Context(), dir, "group", merger.Backbone)
			require.NoError(t, err)
			require.Equal(t, name == "together", m.HeadsTogether)
			require.NoError(t, run.Load(t.Context(), "group", filepath.Join(dir, "group")))
			defer func() { require.NoError(t, run.Unload(t.Context(), "group")) }()
			for _, c := range []struct {
				rows []int32
				bad  string
			}{
				{rows: []int32{2, 0, 1, 2}}, {rows: []int32{1}},
				{[]int32{3}, "{3,-1}"}, {[]int32{0, 1, 3, 2}, "{3,-1}"}, {[]int32{1 << 30}, "{1073741824,-1}"},
				{[]int32{-1}, "-1"}, {[]int32{0, -1, 2}, "-1"}, {[]int32{-3}, "-3"}, {[]int32{-1, 3}, "-1"},
			} {
				in := m.Parts[0].Inputs[0]
				require.Equal(t, onnx.Float, in.Type)
				x := onnx.Array{Name: in.Name, Type: in.Type, Dims: []int64{int64(len(c.rows)), in.Dims[0]}, Data: make([]byte, int64(len(c.rows))*in.Dims[0]*4)}
				whose := onnx.Array{Name: merger.MemberInput, Type: onnx.Int32, Dims: []int64{int64(len(c.rows)), 1}}
				for _, v := range c.rows {
					whose.Data = binary.LittleEndian.AppendUint32(whose.Data, uint32(v)) //nolint:gosec // two's complement
				}
				_, err := run.Run(t.Context(), "group", []onnx.Array{x, whose})
				if c.bad == "" {
					require.NoError(t, err)
					continue
				}
				require.ErrorContains(t, err, "conch_member must be from 0 to 2", fmt.Sprint(c.rows))
				require.ErrorContains(t, err, c.bad)
				t.Log(err)
			}
		})
	}
}
