// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

// thriftLoss is how much longer per row than at the window drop's size a batch
// may run before it is worth giving up requests: a tenth.
const thriftLoss = .1

// thrift is Conch's own: the window drop (see window) with regard to what a larger
// batch saves. The last rows of a large batch save little time per row, but
// they cost the requests that must be given up to make room for them. So it
// holds on only to the smallest b that runs nearly as efficiently as the largest
// b* within reach: l(b)/b <= 1.1 l(b*)/b*.
//
// For a profile without much of a fixed cost that is a batch of a few rows, and
// thrift comes close to prefix; with a large fixed cost it comes close to
// window. README.md has it beside the others.
type thrift struct{}

func (thrift) Name() string  { return "thrift" }
func (thrift) bounded() bool { return true }

func (thrift) hold(l *Load, _ float64) (int, Time) {
	return l.Model.Table.Nearly(l.Model.Reach, thriftLoss), 0
}
