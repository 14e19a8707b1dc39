// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// Triton reads and writes JSON with RapidJSON: NaN and Infinity are numbers, strings need not be valid UTF-8, and every fault has
// RapidJSON's text and offset. encoding/json does none of that, hence this small reader and writer.

type jsonKind uint8

const (
	jsonNull jsonKind = iota
	jsonBool
	jsonInt  // fits int64
	jsonUint // fits uint64 but not int64
	jsonDouble
	jsonString
	jsonArray
	jsonObject
)

// jsonValue is one node of a document. bits holds a bool, an integer or a double.
type jsonValue struct {
	kind    jsonKind
	bits    uint64
	str     string
	items   []jsonValue // of an array, or the values of an object
	names   []string    // of an object
	present bool        // false for the member that an object does not have
}

// maxJSONDepth bounds the nesting: the reader recurses. Triton 2.51 has no bound and crashes on a document nested deep enough.
const maxJSONDepth = 1000

func jsonFault(text string, at int) error {
	return fmt.Errorf("failed to parse the request JSON buffer: %s at %d", text, at)
}

func parseJSON(data []byte) (jsonValue, error) {
	p := jsonParser{data: data}
	if bytes.HasPrefix(data, []byte("\xef\xbb\xbf")) { // a byte order mark
		p.pos = 3
	}
	p.space()
	if p.pos == len(data) || data[p.pos] == 0 {
		return jsonValue{}, jsonFault("The document is empty.", p.pos)
	}
	v, err := p.value(0)
	if err != nil {
		return jsonValue{}, err
	}
	p.space()
	if p.pos != len(data) && data[p.pos] != 0 { // a NUL ends the document, so that binary data behind it may go unannounced
		return jsonValue{}, jsonFault("The document root must not be followed by other values.", p.pos)
	}
	return v, nil
}

type jsonParser struct {
	data []byte
	pos  int
}

func (p *jsonParser) space() {
	for p.pos < len(p.data) {
		switch p.data[p.pos] {
		case ' ', '\t', '\n', '\r':
			p.pos++
		default:
			return
		}
	}
}

func (p *jsonParser) peek() byte {
	if p.pos < len(p.data) {
		return p.data[p.pos]
	}
	return 0
}

func (p *jsonParser) value(depth int) (jsonValue, error) {
	if depth > maxJSONDepth {
		return jsonValue{}, jsonFault("Terminate parsing due to nesting.", p.pos)
	}
	switch p.peek() {
	case '{':
		return p.object(depth)
	case '[':
		return p.array(depth)
	case '"':
		s, err := p.string()
		return jsonValue{kind: jsonString, str: s, present: true}, err
	case 't':
		return p.word("true", jsonValue{kind: jsonBool, bits: 1, present: true})
	case 'f':
		return p.word("false", jsonValue{kind: jsonBool, present: true})
	case 'n':
		return p.word("null", jsonValue{kind: jsonNull, present: true})
	default:
		return p.number()
	}
}

func (p *jsonParser) word(w string, v jsonValue) (jsonValue, error) {
	for i := range len(w) {
		if p.peek() != w[i] {
			return v, jsonFault("Invalid value.", p.pos)
		}
		p.pos++
	}
	return v, nil
}

func (p *jsonParser) object(depth int) (jsonValue, error) {
	v := jsonValue{kind: jsonObject, present: true}
	p.pos++
	p.space()
	if p.peek() == '}' {
		p.pos++
		return v, nil
	}
	for {
		if p.peek() != '"' {
			return v, jsonFault("Missing a name for object member.", p.pos)
		}
		name, err := p.string()
		if err != nil {
			return v, err
		}
		p.space()
		if p.peek() != ':' {
			return v, jsonFault("Missing a colon after a name of object member.", p.pos)
		}
		p.pos++
		p.space()
		item, err := p.value(depth + 1)
		if err != nil {
			return v, err
		}
		v.names, v.items = append(v.names, name), append(v.items, item)
		p.space()
		switch p.peek() {
		case ',':
			p.pos++
			p.space()
		case '}':
			p.pos++
			return v, nil
		default:
			return v, jsonFault("Missing a comma or '}' after an object member.", p.pos)
		}
	}
}

func (p *jsonParser) array(depth int) (jsonValue, error) {
	v := jsonValue{kind: jsonArray, present: true}
	p.pos++
	p.space()
	if p.peek() == ']' {
		p.pos++
		return v, nil
	}
	for {
		item, err := p.value(depth + 1)
		if err != nil {
			return v, err
		}
		v.items = append(v.items, item)
		p.space()
		switch p.peek() {
		case ',':
			p.pos++
			p.space()
		case ']':
			p.pos++
			return v, nil
		default:
			return v, jsonFault("Missing a comma or ']' after an array element.", p.pos)
		}
	}
}

func (p *jsonParser) string() (string, error) {
	start := p.pos
	p.pos++
	from := p.pos
	for p.pos < len(p.data) && p.data[p.pos] != '"' && p.data[p.pos] != '\\' && p.data[p.pos] >= 0x20 {
		p.pos++
	}
	if p.peek() == '"' && p.pos < len(p.data) {
		p.pos++
		return string(p.data[from : p.pos-1]), nil
	}
	out := append([]byte(nil), p.data[from:p.pos]...)
	for {
		if p.pos >= len(p.data) {
			return "", jsonFault("Missing a closing quotation mark in string.", start)
		}
		switch c := p.data[p.pos]; {
		case c == '"':
			p.pos++
			return string(out), nil
		case c == '\\':
			var err error
			if out, err = p.escape(out); err != nil {
				return "", err
			}
		case c < 0x20:
			if c == 0 {
				return "", jsonFault("Missing a closing quotation mark in string.", start)
			}
			return "", jsonFault("Invalid escape character in string.", p.pos)
		default:
			out = append(out, c)
			p.pos++
		}
	}
}

func (p *jsonParser) escape(out []byte) ([]byte, error) {
	at := p.pos
	p.pos++
	c := p.peek()
	if i := indexByte(`"\/bfnrt`, c); i >= 0 && c != 0 {
		p.pos++
		return append(out, "\"\\/\b\f\n\r\t"[i]), nil
	}
	if c != 'u' {
		return nil, jsonFault("Invalid escape character in string.", at)
	}
	p.pos++
	r, err := p.hex4(at)
	if err != nil {
		return nil, err
	}
	if utf16.IsSurrogate(r) {
		if r >= 0xDC00 || p.peek() != '\\' || p.pos+1 >= len(p.data) || p.data[p.pos+1] != 'u' {
			return nil, jsonFault("The surrogate pair in string is invalid.", at)
		}
		p.pos += 2
		low, err := p.hex4(at)
		if err != nil {
			return nil, err
		}
		if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
			return nil, jsonFault("The surrogate pair in string is invalid.", at)
		}
	}
	return utf8.AppendRune(out, r), nil
}

func (p *jsonParser) hex4(at int) (rune, error) {
	if p.pos+4 > len(p.data) {
		return 0, jsonFault("Incorrect hex digit after \\u escape in string.", at)
	}
	n, err := strconv.ParseUint(string(p.data[p.pos:p.pos+4]), 16, 16)
	if err != nil {
		return 0, jsonFault("Incorrect hex digit after \\u escape in string.", at)
	}
	p.pos += 4
	return rune(n), nil
}

func (p *jsonParser) digits() int {
	from := p.pos
	for p.pos < len(p.data) && p.data[p.pos] >= '0' && p.data[p.pos] <= '9' {
		p.pos++
	}
	return p.pos - from
}

func (p *jsonParser) number() (jsonValue, error) {
	from := p.pos
	negative := p.peek() == '-'
	if negative {
		p.pos++
	}
	switch c := p.peek(); {
	case c == '0':
		p.pos++
	case c >= '1' && c <= '9':
		p.digits()
	case c == 'N':
		v, err := p.word("NaN", jsonValue{kind: jsonDouble, bits: math.Float64bits(math.NaN()), present: true})
		return v, err
	case c == 'I':
		inf := math.Inf(1)
		if negative {
			inf = math.Inf(-1)
		}
		v, err := p.word("Inf", jsonValue{kind: jsonDouble, bits: math.Float64bits(inf), present: true})
		if err == nil && p.peek() == 'i' {
			v, err = p.word("inity", v)
		}
		return v, err
	default:
		return jsonValue{}, jsonFault("Invalid value.", p.pos)
	}
	integer := true
	if p.peek() == '.' {
		integer = false
		p.pos++
		if p.digits() == 0 {
			return jsonValue{}, jsonFault("Miss fraction part in number.", p.pos)
		}
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		integer = false
		p.pos++
		if c := p.peek(); c == '+' || c == '-' {
			p.pos++
		}
		if p.digits() == 0 {
			return jsonValue{}, jsonFault("Miss exponent in number.", p.pos)
		}
	}
	text := string(p.data[from:p.pos])
	if integer {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			return jsonValue{kind: jsonInt, bits: uint64(n), present: true}, nil
		}
		if n, err := strconv.ParseUint(text, 10, 64); err == nil {
			return jsonValue{kind: jsonUint, bits: n, present: true}, nil
		}
	}
	f, err := strconv.ParseFloat(text, 64)
	if errors.Is(err, strconv.ErrRange) && math.IsInf(f, 0) {
		return jsonValue{}, jsonFault("Number too big to be stored in double.", from)
	}
	return jsonValue{kind: jsonDouble, bits: math.Float64bits(f), present: true}, nil
}
