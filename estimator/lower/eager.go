// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package lower

import (
	"strings"

	"github.com/conch-serving/conch/estimator/kernel"
	"github.com/conch-serving/conch/internal/onnx/shape"
)

// exportedFolded begins the names that torch.onnx.export gives weights into which it folded a batch normalisation: all others keep their module's.
const exportedFolded = "onnx::Conv_"

// besides is the kernel that PyTorch launches after that of step i and that the file does not show. A convolution's is the batch normalisation that the
// exporter folded into its weights, or else the addition of its bias, which cuDNN leaves to PyTorch; depthwise kernels add theirs themselves. A product of one
// row begins from a copy of its bias.
func (f *fusion) besides(i int, o Options) (Launch, bool) {
	s, w := &f.steps[i], &f.work[i]
	l := Launch{Node: s.Node.Name, Repeat: s.Repeat * w.Serial}
	y := f.output(i)
	switch {
	case w.Class == shape.Convolution:
		folded := len(s.Node.Inputs) > 1 && strings.HasPrefix(s.Node.Inputs[1], exportedFolded)
		biased := len(s.Node.Inputs) > 2 && s.Node.Inputs[2] != ""
		depthwise := w.Batch > 1 && w.N < 8
		if !folded && (!biased || depthwise) {
			return l, false
		}
		l.Op, l.Within = "Bias", !folded
		if folded {
			l.Op = "BatchNormalization"
		}
		m, n := rows(s)
		l.Kernel = kernel.Kernel{Family: kernel.Unary, Precision: precision(w.Element, o.Float), Batch: 1, M: m, N: n, FLOPs: 2 * y.Elements(), Read: y.Bytes(), Write: y.Bytes()}
		return l, true
	case s.Node.Op == "Gemm" && w.Batch*w.M == 1 && len(s.Node.Inputs) > 2 && s.Node.Inputs[2] != "":
		l.Op, l.Within = "Bias", true
		l.Kernel = kernel.Kernel{Family: kernel.Move, Batch: 1, M: y.Elements(), N: 1, Read: y.Bytes(), Write: y.Bytes()}
		return l, true
	}
	return l, false
}

// view takes the kernels of splits away: PyTorch's are views. A convolution copies the part that it reads.
func (f *fusion) view(i int) {
	if f.op(i) != "Split" || !f.own(i) {
		return
	}
	copied := 0.0
	for k, v := range f.steps[i].Out {
		for _, r := range f.of(v) {
			if r >= 0 && f.work[r].Class == shape.Convolution {
				copied += f.steps[i].Outputs[k].Bytes()
				break
			}
		}
	}
	if copied == 0 {
		f.into[i] = -1
	}
	f.work[i].Read, f.work[i].Write = copied, copied
}
