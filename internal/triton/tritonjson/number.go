// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package tritonjson

import (
	"bytes"
	"math"
	"strconv"
)

// number is the text of a number that has been checked.
type number []byte

// numberAt is the number at a position of a checked text.
func numberAt(text []byte, pos int) number { return number(text[pos:endOfWord(text, pos)]) }

// endOfWord is the offset behind a number or a literal of a checked text.
func endOfWord(text []byte, pos int) int {
	for pos < len(text) && !isSpace(text[pos]) && text[pos] != ',' && text[pos] != ']' && text[pos] != '}' && text[pos] != 0 {
		pos++
	}
	return pos
}

// startsNumber distinguishes numbers from the other values of a checked text.
func startsNumber(c byte) bool { return isDigit(c) || c == '-' || c == 'N' || c == 'I' }

// whole reports whether there is neither fraction nor exponent.
func (n number) whole() bool {
	for _, c := range bytes.TrimPrefix(n, []byte("-")) {
		if !isDigit(c) {
			return false
		}
	}
	return true
}

// kind is Integer for what fits in 64 bits, with or without a sign.
func (n number) kind() Kind {
	if _, err := n.int64(); err == nil {
		return Integer
	}
	if _, err := n.uint64(); err == nil {
		return Integer
	}
	return Double
}

func (n number) int64() (int64, error) {
	if n.whole() {
		if i, err := strconv.ParseInt(view(n), 10, 64); err == nil {
			return i, nil
		}
	}
	return 0, &TypeError{notSigned}
}

func (n number) uint64() (uint64, error) {
	if n[0] == '-' {
		if i, err := n.int64(); err == nil && i == 0 {
			return 0, nil
		}
	} else if n.whole() {
		if u, err := strconv.ParseUint(view(n), 10, 64); err == nil {
			return u, nil
		}
	}
	return 0, &TypeError{notUnsigned}
}

// float64 is the nearest double. What follows NaN or Infinity has no effect, as in Triton, and "-0" is the integer zero.
func (n number) float64() float64 {
	word := bytes.TrimPrefix(n, []byte("-"))
	switch {
	case bytes.HasPrefix(word, []byte("NaN")):
		return math.NaN()
	case !isDigit(word[0]) && len(word) < len(n):
		return math.Inf(-1)
	case !isDigit(word[0]):
		return math.Inf(1)
	case len(word) == 1 && word[0] == '0':
		return 0
	}
	f, _ := strconv.ParseFloat(view(n), 64)
	return f
}
