// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import "math/bits"

// bitset is a set of small integers that finds its smallest member in one step
// per level of 64: two levels hold 4,096 executors.
type bitset struct {
	levels [][]uint64 // levels[0] holds the members, each further level which words below are not zero
}

func newBitset(n int) bitset {
	var b bitset
	for {
		n = (n + 63) / 64
		b.levels = append(b.levels, make([]uint64, max(n, 1)))
		if n <= 1 {
			return b
		}
	}
}

func (b *bitset) add(i int) {
	for _, words := range b.levels {
		words[i/64] |= 1 << (i % 64)
		i /= 64
	}
}

func (b *bitset) remove(i int) {
	for _, words := range b.levels {
		words[i/64] &^= 1 << (i % 64)
		if words[i/64] != 0 {
			return
		}
		i /= 64
	}
}

// first returns the smallest member, -1 if there is none.
func (b *bitset) first() int {
	i := 0
	for k := len(b.levels) - 1; k >= 0; k-- {
		word := b.levels[k][i]
		if word == 0 {
			return -1
		}
		i = i*64 + bits.TrailingZeros64(word)
	}
	return i
}
