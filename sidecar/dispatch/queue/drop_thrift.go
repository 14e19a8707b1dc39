// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

// thriftLoss is how much longer per row than at the window drop's size a batch
// may run before it is worth giving up requests: a tenth.
const thriftLoss = .1

// thrift is our own: the window drop (see window) with an eye on what a larger
// batch is worth. The last rows of a large batch save little time per row, but
// they cost the requests that must be given up to make room for them. So it
// holds on only to the smallest b that runs nearly as efficiently as the largest
// b* within reach: l(b)/b <= 1.1 l(b*)/b*.
//
// For a profile without much of a fixed cost that is a batch of a few rows, and
// thrift comes close to prefix; with a large fixed cost it comes close to
// window. It is at least as good as either in nearly every row of the table in
// README.md.
type thrift struct{}

func (thrift) Name() string  { return "thrift" }
func (thrift) bounded() bool { return true }

func (thrift) hold(t Table, reach int) int {
	enough := (1 + thriftLoss) * float64(t.At(reach)) / float64(reach)
	b := reach
	for b > 1 && float64(t.At(b-1))/float64(b-1) <= enough {
		b--
	}
	return b
}
