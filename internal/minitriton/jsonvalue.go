// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

func indexByte(s string, c byte) int { return strings.IndexByte(s, c) }

// get finds a member of an object. A value that is no object has none.
func (v jsonValue) get(name string) jsonValue {
	for i, n := range v.names {
		if n == name {
			return v.items[i]
		}
	}
	return jsonValue{}
}

// member is get with Triton's complaint when there is none.
func (v jsonValue) member(name string) (jsonValue, error) {
	m := v.get(name)
	if !m.present {
		return m, fmt.Errorf("attempt to access non-existing object member '%s'", name)
	}
	return m, nil
}

func (v jsonValue) asString() (string, error) {
	if v.kind != jsonString {
		return "", errors.New("attempt to access JSON non-string as string")
	}
	return v.str, nil
}

func (v jsonValue) asBool() (bool, error) {
	if v.kind != jsonBool {
		return false, errors.New("attempt to access JSON non-boolean as boolean")
	}
	return v.bits != 0, nil
}

func (v jsonValue) asArray() ([]jsonValue, error) {
	if v.kind != jsonArray {
		return nil, errors.New("attempt to access JSON non-array as array")
	}
	return v.items, nil
}

func (v jsonValue) asInt() (int64, error) {
	if v.kind != jsonInt {
		return 0, errors.New("attempt to access JSON non-signed-integer as signed-integer")
	}
	return int64(v.bits), nil
}

func (v jsonValue) asUint() (uint64, error) {
	if v.kind == jsonUint || v.kind == jsonInt && int64(v.bits) >= 0 {
		return v.bits, nil
	}
	return 0, errors.New("attempt to access JSON non-unsigned-integer as unsigned-integer")
}

func (v jsonValue) asDouble() (float64, error) {
	switch v.kind {
	case jsonInt:
		return float64(int64(v.bits)), nil
	case jsonUint:
		return float64(v.bits), nil
	case jsonDouble:
		return math.Float64frombits(v.bits), nil
	default:
		return 0, errors.New("attempt to access JSON non-number as double")
	}
}

// appendString writes a JSON string as RapidJSON does: what must be escaped is, everything else goes through as it is.
func appendString(b []byte, s string) []byte {
	const hex = "0123456789ABCDEF"
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c >= 0x20:
			b = append(b, c)
		case indexByte("\b\f\n\r\t", c) >= 0:
			b = append(b, '\\', "bfnrt"[indexByte("\b\f\n\r\t", c)])
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(b, '"')
}

// appendDouble writes the shortest digits that read back as f, laid out as RapidJSON lays them out.
func appendDouble(b []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, "NaN"...)
	case math.IsInf(f, 1):
		return append(b, "Infinity"...)
	case math.IsInf(f, -1):
		return append(b, "-Infinity"...)
	case f == 0:
		if math.Signbit(f) {
			b = append(b, '-')
		}
		return append(b, "0.0"...)
	}
	if f < 0 {
		b, f = append(b, '-'), -f
	}
	var buf [32]byte
	text := strconv.AppendFloat(buf[:0], f, 'e', -1, 64) // d.ddde±xx
	e := indexByte(string(text), 'e')
	exp, _ := strconv.Atoi(string(text[e+1:])) // strconv wrote it
	digits := append([]byte{text[0]}, text[min(2, e):e]...)
	point := exp + 1 // the digits before the decimal point
	switch n := len(digits); {
	case n <= point && point <= 21:
		b = append(b, digits...)
		for range point - n {
			b = append(b, '0')
		}
		return append(b, ".0"...)
	case point > 0 && point <= 21:
		b = append(append(b, digits[:point]...), '.')
		return append(b, digits[point:]...)
	case point > -6 && point <= 0:
		b = append(b, "0."...)
		for range -point {
			b = append(b, '0')
		}
		return append(b, digits...)
	default:
		b = append(b, digits[0])
		if n > 1 {
			b = append(append(b, '.'), digits[1:]...)
		}
		return strconv.AppendInt(append(b, 'e'), int64(exp), 10)
	}
}
