// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"google.golang.org/grpc/codes"

	"github.com/conch-serving/conch/internal/triton"
	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// classify replaces an output by the names of its k highest values, as Triton's classification extension does: BYTES elements
// "value:index", with ":label" where the model has a label for the index. With a batch dimension every row is classified on its own.
//
// Triton 2.51 crashes on a classification of BYTES, which is refused here, and of one without elements over HTTP; over gRPC that one has no
// elements either.
func classify(out *tensor, k int, batched bool, labels []string) *Error {
	read := classValue(out.dtype)
	if read == nil {
		return invalid("class result not available for output due to unsupported type '%s'", triton.DatatypeName(out.dtype))
	}
	rows := int64(1)
	if batched {
		rows = out.shape[0]
	}
	size := triton.ElementSize(out.dtype)
	width := 0
	if rows > 0 {
		width = int(int64(len(out.data)) / size / rows)
	}
	k = min(k, width)
	var data []byte
	for row := range int(rows) {
		values := make([]classOf, width)
		for i := range values {
			at := (row*width + i) * int(size)
			values[i] = read(out.data[at : at+int(size)])
			values[i].index = i
		}
		slices.SortStableFunc(values, func(a, b classOf) int {
			switch {
			case a.above(b):
				return -1
			case b.above(a):
				return 1
			default:
				return 0
			}
		})
		for _, v := range values[:k] {
			name := v.text + ":" + strconv.Itoa(v.index)
			if v.index < len(labels) {
				name += ":" + labels[v.index]
			}
			data = appendBytesElement(data, []byte(name))
		}
	}
	out.dtype, out.data, out.shape = pb.DataType_TYPE_STRING, data, []int64{int64(k)}
	if batched {
		out.shape = []int64{rows, int64(k)}
	}
	return nil
}

// classOf is one value with its index. Exactly one of the number fields holds it.
type classOf struct {
	signed   int64
	unsigned uint64
	real     float64
	text     string
	index    int
}

func (c classOf) above(o classOf) bool {
	return c.signed > o.signed || c.unsigned > o.unsigned || c.real > o.real
}

// classValue returns how to read a value of a type, or nil where Triton does not classify it.
func classValue(t pb.DataType) func([]byte) classOf {
	le := binary.LittleEndian
	signed := func(v int64) classOf { return classOf{signed: v, text: strconv.FormatInt(v, 10)} }
	unsigned := func(v uint64) classOf { return classOf{unsigned: v, text: strconv.FormatUint(v, 10)} }
	switch t {
	case pb.DataType_TYPE_INT8:
		return func(b []byte) classOf { return signed(int64(int8(b[0]))) }
	case pb.DataType_TYPE_INT16:
		return func(b []byte) classOf { return signed(int64(int16(le.Uint16(b)))) }
	case pb.DataType_TYPE_INT32:
		return func(b []byte) classOf { return signed(int64(int32(le.Uint32(b)))) }
	case pb.DataType_TYPE_INT64:
		return func(b []byte) classOf { return signed(int64(le.Uint64(b))) }
	case pb.DataType_TYPE_UINT8:
		return func(b []byte) classOf { return unsigned(uint64(b[0])) }
	case pb.DataType_TYPE_UINT16:
		return func(b []byte) classOf { return unsigned(uint64(le.Uint16(b))) }
	case pb.DataType_TYPE_UINT32:
		return func(b []byte) classOf { return unsigned(uint64(le.Uint32(b))) }
	case pb.DataType_TYPE_UINT64:
		return func(b []byte) classOf { return unsigned(le.Uint64(b)) }
	case pb.DataType_TYPE_FP32:
		return func(b []byte) classOf { return realClass(float64(math.Float32frombits(le.Uint32(b)))) }
	case pb.DataType_TYPE_FP64:
		return func(b []byte) classOf { return realClass(math.Float64frombits(le.Uint64(b))) }
	default:
		return nil
	}
}

// realClass writes a float as C++'s to_string does.
func realClass(f float64) classOf {
	c := classOf{real: f}
	switch {
	case math.IsNaN(f):
		c.text = "nan"
	case math.IsInf(f, 1):
		c.text = "inf"
	case math.IsInf(f, -1):
		c.text = "-inf"
	default:
		c.text = fmt.Sprintf("%f", f)
	}
	return c
}

// readLabels reads the label file of every output that names one: a label per line, in the order of the indices.
func readLabels(dir string, c *pb.ModelConfig) (map[string][]string, error) {
	labels := map[string][]string{}
	for _, out := range c.Output {
		if out.LabelFilename == "" {
			continue
		}
		path := filepath.Join(dir, out.LabelFilename)
		f, err := os.Open(path)
		if err != nil {
			return nil, refuse(codes.Internal, "failed to open text file for read %s: No such file or directory", path)
		}
		lines := []string{}
		for s := bufio.NewScanner(f); s.Scan(); {
			lines = append(lines, s.Text())
		}
		_ = f.Close() // only read
		labels[out.Name] = lines
	}
	return labels, nil
}
