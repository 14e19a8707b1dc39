// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/clock"
	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// FuzzReadJSON reads any body with any header as an inference and must never fail but with a refusal; what it accepts fits the model.
func FuzzReadJSON(f *testing.F) {
	config, err := parseConfig("m", []byte(`name: "m" backend: "python" max_batch_size: 4
		input [ { name: "A" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "S" data_type: TYPE_STRING dims: [ 2 ] } ]
		output [ { name: "O" data_type: TYPE_FP32 dims: [ -1 ] } ]`))
	require.NoError(f, err)
	m := newModel(config, 1, identity{}, clock.Timers())
	f.Cleanup(m.stop)
	h := &httpFront{server: &Server{}}
	f.Add([]byte(`{"inputs":[{"name":"A","datatype":"FP32","shape":[1,2],"data":[1,2]},{"name":"S","datatype":"BYTES","shape":[1,2],"data":["a","b"]}]}`), "")
	f.Add([]byte(`{"inputs":[{"name":"A","datatype":"FP32","shape":[1,2],"parameters":{"binary_data_size":8}}]}12345678`), "93")
	f.Add([]byte(`{"inputs":[{"name":"A","datatype":"FP32","shape":[4611686018427387904,4],"data":[1]}]}`), "")
	f.Add([]byte(`{"inputs":[{"name":"A","datatype":"FP32","shape":[18446744073709551615],"data":[1]}]}`), "")
	f.Fuzz(func(t *testing.T, data []byte, length string) {
		header, tensors, raw, err := splitBody(data, length)
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(header)+len(tensors), len(data))
		r := &request{ctx: t.Context()}
		if raw {
			r.raw, r.inputs = true, []tensor{{data: tensors}}
		} else if h.readJSON(header, tensors, m, r, &outputForm{}) != nil {
			return
		}
		if m.prepare(r) != nil {
			return
		}
		require.LessOrEqual(t, r.rows, 4)
		for _, in := range r.inputs {
			if in.dtype == pb.DataType_TYPE_FP32 {
				require.Equal(t, elements(in.shape)*4, int64(len(in.data)), "%v", in.shape)
				continue
			}
			n, whole := eachString(in.data, func([]byte) bool { return true })
			require.True(t, whole)
			require.Equal(t, elements(in.shape), int64(n))
		}
	})
}
