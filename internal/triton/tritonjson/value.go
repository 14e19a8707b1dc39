// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package tritonjson

import (
	"bytes"
	"fmt"
	"iter"
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
		return numberAt(v.doc.text, v.pos).kind()
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
		return endOfWord(text, v.pos)
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

// Elements are the elements of an array; nothing for any other value.
func (v Value) Elements() iter.Seq[Value] {
	return func(yield func(Value) bool) {
		if v.Kind() != Array {
			return
		}
		text := v.doc.text
		pos := space(text, v.pos+1)
		if text[pos] == ']' {
			return
		}
		for {
			el := Value{v.doc, pos}
			if !yield(el) {
				return
			}
			pos = space(text, el.end())
			if text[pos] == ']' {
				return
			}
			pos = space(text, pos+1)
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
		pos := space(text, v.pos+1)
		if text[pos] == '}' {
			return
		}
		for {
			name := Value{v.doc, pos}
			pos = space(text, name.end())
			member := Value{v.doc, space(text, pos+1)}
			if !yield(view(name.bytes()), member) {
				return
			}
			pos = space(text, member.end())
			if text[pos] == '}' {
				return
			}
			pos = space(text, pos+1)
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

// Member is Find, with Triton's error where there is no such member.
func (v Value) Member(name string) (Value, error) {
	member, ok := v.Find(name)
	if !ok {
		return member, &TypeError{fmt.Sprintf("attempt to access non-existing object member '%s'", name)}
	}
	return member, nil
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
	if n, ok := v.number(); ok {
		return n.uint64()
	}
	return 0, &TypeError{notUnsigned}
}

// AsInt is an integer in the range of int64.
func (v Value) AsInt() (int64, error) {
	if n, ok := v.number(); ok {
		return n.int64()
	}
	return 0, &TypeError{notSigned}
}

// AsDouble is any number.
func (v Value) AsDouble() (float64, error) {
	if n, ok := v.number(); ok {
		return n.float64(), nil
	}
	return 0, &TypeError{notDouble}
}

// CheckArray fails unless the value is an array.
func (v Value) CheckArray() error {
	if v.Kind() != Array {
		return &TypeError{notArray}
	}
	return nil
}

func (v Value) number() (number, bool) {
	if v.doc == nil || !startsNumber(v.doc.text[v.pos]) {
		return nil, false
	}
	return numberAt(v.doc.text, v.pos), true
}
