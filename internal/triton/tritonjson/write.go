// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package tritonjson

import (
	"math"
	"strconv"
)

func appendName(dst []byte, name string) []byte { return append(AppendString(dst, name), ':') }
func appendComma(dst []byte, i int) []byte {
	if i > 0 {
		return append(dst, ',')
	}
	return dst
}

// AppendDouble writes a double as RapidJSON does: few digits that read back the same, in positional notation
// between 1e-6 and 1e21 and always with a fraction there, otherwise with a bare exponent; NaN and infinities bare.
func AppendDouble(dst []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, "NaN"...)
	case math.IsInf(f, 1):
		return append(dst, "Infinity"...)
	case math.IsInf(f, -1):
		return append(dst, "-Infinity"...)
	}
	if i := int64(f); f == float64(i) && i > -1e15 && i < 1e15 && (i != 0 || !math.Signbit(f)) {
		return append(strconv.AppendInt(dst, i, 10), '.', '0')
	}
	if f < 0 || (f == 0 && math.Signbit(f)) {
		dst = append(dst, '-')
		f = -f
	}
	if f == 0 {
		return append(dst, '0', '.', '0')
	}
	var buf [32]byte
	digits, k := appendDigits(buf[:0], f)
	point := len(digits) + k // digits before the decimal point
	switch n := len(digits); {
	case n <= point && point <= 21:
		dst = append(dst, digits...)
		for range point - n {
			dst = append(dst, '0')
		}
		return append(dst, '.', '0')
	case 0 < point && point <= 21:
		dst = append(append(dst, digits[:point]...), '.')
		return append(dst, digits[point:]...)
	case -6 < point && point <= 0:
		dst = append(dst, '0', '.')
		for range -point {
			dst = append(dst, '0')
		}
		return append(dst, digits...)
	case n > 1:
		dst = append(append(dst, digits[0], '.'), digits[1:]...)
	default:
		dst = append(dst, digits[0])
	}
	return strconv.AppendInt(append(dst, 'e'), int64(point-1), 10)
}

const hexDigits = "0123456789ABCDEF"

// AppendString writes a string with its quotes. Only quotes, backslashes and control characters are escaped; bytes
// that are no UTF-8 pass as they are.
func AppendString[S string | []byte](dst []byte, s S) []byte {
	dst = append(dst, '"')
	start := 0
	for i := range len(s) {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[start:i]...)
		start = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\f':
			dst = append(dst, '\\', 'f')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	return append(append(dst, s[start:]...), '"')
}

// AppendShape writes a shape as an array of numbers.
func AppendShape(dst []byte, shape []int64) []byte {
	dst = append(dst, '[')
	for i, d := range shape {
		dst = strconv.AppendInt(appendComma(dst, i), d, 10)
	}
	return append(dst, ']')
}
