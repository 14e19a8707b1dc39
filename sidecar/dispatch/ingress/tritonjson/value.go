// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package tritonjson

import (
	"bytes"
	"fmt"
	"iter"
	"math"
	"strconv"
	"unicode/utf8"
)

// Value is one value of a checked document. The zero Value is the absence of one: it is of no kind, has no members,
// and every conversion of it fails as the same conversion of an object would.
type Value struct {
	doc *Doc
	pos int
}

// Kind is the kind of a value. Numbers without fraction and exponent that fit in 64 bits are integers, as in RapidJSON.
type Kind uint8

// Kinds of values.
const (
	Absent Kind = iota
	Null
	Bool
	Integer
	Double
	String
	Array
	Object
)

// Kind returns the kind of the value.
func (v Value) Kind() Kind {
	if v.doc == nil {
		return Absent
	}
	switch c := v.doc.text[v.pos]; c {
	case '{':
		return Object
	case '[':
		return Array
	case '"':
		return String
	case 't', 'f':
		return Bool
	case 'n':
		return Null
	default:
		n := scanNumber(v.doc.text, v.pos)
		if n.integer {
			return Integer
		}
		return Double
	}
}

// end is the offset behind the value; the text is known to be well-formed.
func (v Value) end() int {
	text := v.doc.text
	switch text[v.pos] {
	case '"':
		return skipString(text, v.pos)
	case '[', '{':
		if end, ok := v.doc.ends[v.pos]; ok {
			return end
		}
		depth := 0
		for pos := v.pos; ; {
			switch text[pos] {
			case '"':
				pos = skipString(text, pos)
				continue
			case '[', '{':
				depth++
			case ']', '}':
				depth--
				if depth == 0 {
					return pos + 1
				}
			}
			pos++
		}
	default:
		pos := v.pos
		for pos < len(text) && !isSpace(text[pos]) && text[pos] != ',' && text[pos] != ']' && text[pos] != '}' && text[pos] != 0 {
			pos++
		}
		return pos
	}
}

func skipString(text []byte, pos int) int {
	for pos++; ; {
		i := bytes.IndexByte(text[pos:], '"')
		pos += i
		escapes := 0
		for text[pos-1-escapes] == '\\' {
			escapes++
		}
		pos++
		if escapes%2 == 0 {
			return pos
		}
	}
}

// Raw is the value's own text.
func (v Value) Raw() []byte { return v.doc.text[v.pos:v.end()] }

func skipSpace(text []byte, pos int) int {
	for isSpace(text[pos]) {
		pos++
	}
	return pos
}

// Elements are the elements of an array; nothing for any other value.
func (v Value) Elements() iter.Seq[Value] {
	return func(yield func(Value) bool) {
		if v.Kind() != Array {
			return
		}
		text := v.doc.text
		pos := skipSpace(text, v.pos+1)
		if text[pos] == ']' {
			return
		}
		for {
			el := Value{v.doc, pos}
			if !yield(el) {
				return
			}
			pos = skipSpace(text, el.end())
			if text[pos] == ']' {
				return
			}
			pos = skipSpace(text, pos+1)
		}
	}
}

// Members are the names and values of an object, in order, with repetitions; nothing for any other value.
func (v Value) Members() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		if v.Kind() != Object {
			return
		}
		text := v.doc.text
		pos := skipSpace(text, v.pos+1)
		if text[pos] == '}' {
			return
		}
		for {
			name := Value{v.doc, pos}
			pos = skipSpace(text, name.end())
			member := Value{v.doc, skipSpace(text, pos+1)}
			if !yield(view(name.bytes()), member) {
				return
			}
			pos = skipSpace(text, member.end())
			if text[pos] == '}' {
				return
			}
			pos = skipSpace(text, pos+1)
		}
	}
}

// Find is the first member of that name.
func (v Value) Find(name string) (Value, bool) {
	for n, member := range v.Members() {
		if n == name {
			return member, true
		}
	}
	return Value{}, false
}

// bytes is the content of a string value, unescaped; it refers to the text where nothing is escaped.
func (v Value) bytes() []byte {
	raw := v.doc.text[v.pos+1 : v.end()-1]
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw
	}
	return appendUnescaped(make([]byte, 0, len(raw)), raw)
}

func appendUnescaped(dst, raw []byte) []byte {
	for i := 0; i < len(raw); {
		j := bytes.IndexByte(raw[i:], '\\')
		if j < 0 {
			return append(dst, raw[i:]...)
		}
		dst = append(dst, raw[i:i+j]...)
		i += j
		switch c := raw[i+1]; c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r, _ := hex4(raw, i+2)
			if r >= 0xD800 && r <= 0xDBFF {
				low, _ := hex4(raw, i+8)
				r = (r-0xD800)<<10 + (low - 0xDC00) + 0x10000
				i += 6
			}
			if r >= 0xDC00 && r <= 0xDFFF { // alone, and no character; Triton still encodes it
				dst = append(dst, 0xE0|byte(r>>12), 0x80|byte(r>>6)&0xBF, 0x80|byte(r)&0x3F)
			} else {
				dst = utf8.AppendRune(dst, r)
			}
			i += 4
		default:
			dst = append(dst, c)
		}
		i += 2
	}
	return dst
}

// Texts of Triton's errors for failed conversions.
const (
	notString   = "attempt to access JSON non-string as string"
	notBool     = "attempt to access JSON non-boolean as boolean"
	notUnsigned = "attempt to access JSON non-unsigned-integer as unsigned-integer"
	notSigned   = "attempt to access JSON non-signed-integer as signed-integer"
	notDouble   = "attempt to access JSON non-number as double"
	notArray    = "attempt to access JSON non-array as array"
)

// TypeError is a value that does not have the expected type, with Triton's text.
type TypeError struct{ Text string }

// Error is the text.
func (e *TypeError) Error() string { return e.Text }

// MissingError is the error of a member that an object lacks.
func MissingError(member string) error {
	return &TypeError{fmt.Sprintf("attempt to access non-existing object member '%s'", member)}
}

// AsString is a string's content. It stays valid as long as the document's text, and must be cloned to outlive it.
func (v Value) AsString() (string, error) {
	if v.Kind() != String {
		return "", &TypeError{notString}
	}
	return view(v.bytes()), nil
}

// AsBool is a boolean.
func (v Value) AsBool() (bool, error) {
	if v.Kind() != Bool {
		return false, &TypeError{notBool}
	}
	return v.doc.text[v.pos] == 't', nil
}

// AsUint is an integer in the range of uint64.
func (v Value) AsUint() (uint64, error) {
	if v.isNumber() {
		if n := scanNumber(v.doc.text, v.pos); n.integer && (!n.negative || n.mantissa == 0) {
			return n.mantissa, nil
		}
	}
	return 0, &TypeError{notUnsigned}
}

// AsInt is an integer in the range of int64.
func (v Value) AsInt() (int64, error) {
	if v.isNumber() {
		if n := scanNumber(v.doc.text, v.pos); n.integer {
			if i, ok := n.int64(); ok {
				return i, nil
			}
		}
	}
	return 0, &TypeError{notSigned}
}

// AsDouble is any number.
func (v Value) AsDouble() (float64, error) {
	if !v.isNumber() {
		return 0, &TypeError{notDouble}
	}
	return scanNumber(v.doc.text, v.pos).float64(), nil
}

// CheckArray fails unless the value is an array.
func (v Value) CheckArray() error {
	if v.Kind() != Array {
		return &TypeError{notArray}
	}
	return nil
}

func (v Value) isNumber() bool {
	k := v.Kind()
	return k == Integer || k == Double
}

// number is a scanned number: an integer of 64 bits, or the text of anything else.
type number struct {
	text     []byte
	mantissa uint64
	scale    int // decimal exponent of mantissa, when exact
	negative bool
	integer  bool
	exact    bool // mantissa and scale are the whole value
}

func (n number) int64() (int64, bool) {
	switch {
	case n.negative && n.mantissa <= 1<<63:
		return -int64(n.mantissa), true
	case !n.negative && n.mantissa <= math.MaxInt64:
		return int64(n.mantissa), true
	default:
		return 0, false
	}
}

var powersOfTen = [...]float64{1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
	1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22}

// float64 is the nearest double.
func (n number) float64() float64 {
	if n.integer && n.mantissa == 0 {
		return 0 // "-0" is the integer zero
	}
	if n.exact && n.mantissa < 1<<53 && n.scale >= -22 && n.scale <= 22 {
		f := float64(n.mantissa)
		if n.scale < 0 {
			f /= powersOfTen[-n.scale]
		} else {
			f *= powersOfTen[n.scale]
		}
		if n.negative {
			f = -f
		}
		return f
	}
	switch word := bytes.TrimPrefix(n.text, []byte("-")); {
	case bytes.HasPrefix(word, []byte("NaN")):
		return math.NaN()
	case word[0] == 'N' || word[0] == 'I':
		if n.negative {
			return math.Inf(-1)
		}
		return math.Inf(1)
	}
	f, _ := strconv.ParseFloat(view(n.text), 64)
	return f
}

// scanNumber reads the number at pos of a well-formed text.
func scanNumber(text []byte, start int) number {
	n := number{exact: true, integer: true}
	pos := start
	if text[pos] == '-' {
		n.negative = true
		pos++
	}
	for ; pos < len(text); pos++ {
		c := text[pos]
		if isDigit(c) {
			n.digit(c)
			if n.integer && !n.exact {
				n.integer = false
			} else if !n.integer {
				n.scale--
			}
			continue
		}
		if c == '.' {
			n.integer = false
			continue
		}
		break
	}
	if pos < len(text) {
		switch text[pos] {
		case 'e', 'E':
			n.integer = false
			pos = n.exponent(text, pos+1)
		case 'N', 'I':
			n.integer, n.exact = false, false
			for pos < len(text) && bytes.IndexByte([]byte(",]} \t\r\n\x00"), text[pos]) < 0 {
				pos++
			}
		}
	}
	if n.integer && n.negative && n.mantissa > 1<<63 {
		n.integer = false
	}
	n.text = text[start:pos]
	return n
}

func (n *number) digit(c byte) {
	if !n.exact {
		return
	}
	const limit = (math.MaxUint64 - 9) / 10
	d := uint64(c - '0')
	if n.mantissa > limit && (n.mantissa > math.MaxUint64/10 || n.mantissa*10 > math.MaxUint64-d) {
		n.exact = false
		return
	}
	n.mantissa = n.mantissa*10 + d
}

func (n *number) exponent(text []byte, pos int) int {
	negative := false
	if text[pos] == '+' || text[pos] == '-' {
		negative = text[pos] == '-'
		pos++
	}
	e := 0
	for ; pos < len(text) && isDigit(text[pos]); pos++ {
		if e < 10000 {
			e = e*10 + int(text[pos]-'0')
		}
	}
	if negative {
		e = -e
	}
	n.scale += e
	return pos
}
