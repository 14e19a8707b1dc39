// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"

	"github.com/conch-serving/conch/estimator/gpu"
)

// operators of the measured kernels: family, tensors read, and whether the second factor of a product is shared.
var operators = map[string]Family{
	"bmm": Product, "linear": Product, "softmax": Softmax, "ln": Norm,
	"add": Binary, "mul": Binary, "div": Binary, "pow": Binary, "addu": Unary, "mulu": Unary, "divu": Unary, "powu": Power,
	"relu": Unary, "gelu": Unary, "tanh": Unary,
}

// ReadMeasurements reads a file of estimator/data/GPU/kernels.csv: op,b,m,n,k,latency_us, FP32. A product is of b times (m x n) by (n x k); others have b rows of m.
func ReadMeasurements(r io.Reader, g *gpu.Sheet) ([]Measurement, error) {
	rows, err := csv.NewReader(r).ReadAll()
	if err != nil {
		return nil, err
	}
	var all []Measurement
	for line, row := range rows[1:] {
		var v [6]float64
		for i := 1; i < 6; i++ {
			if v[i], err = strconv.ParseFloat(row[i], 64); err != nil {
				return nil, fmt.Errorf("line %d: %w", line+2, err)
			}
		}
		f, ok := operators[row[0]]
		if !ok {
			return nil, fmt.Errorf("line %d: unknown operator %q", line+2, row[0])
		}
		var k Kernel
		switch f {
		case Product:
			k = MatMul(v[1], v[2], v[4], v[3], 4, row[0] == "linear")
		case Binary:
			k = Rows(f, v[1], v[2], 2, 4)
		default:
			k = Rows(f, v[1], v[2], 1, 4)
		}
		all = append(all, Measurement{Kernel: k, GPU: g, Seconds: v[5] * 1e-6})
	}
	return all, nil
}
