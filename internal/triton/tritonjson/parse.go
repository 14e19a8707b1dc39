// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package tritonjson

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"unsafe"
)

// MaxDepth is how deep arrays and objects may nest. A real server accepts thousands of levels and crashes with a
// stack overflow at a million; newer ones stop at 100, which no tensor needs. It is above both practice and the
// newer limit, and far below a depth that does harm.
const MaxDepth = 1000

// SyntaxError is text that is no JSON, with the reason and the byte offset of Triton's parser.
type SyntaxError struct {
	Reason string
	Offset int
}

// Error is the message that Triton answers with.
func (e *SyntaxError) Error() string {
	return fmt.Sprintf("failed to parse the request JSON buffer: %s at %d", e.Reason, e.Offset)
}

// DepthError is JSON that nests deeper than MaxDepth.
type DepthError struct{}

// Error has the limit.
func (e *DepthError) Error() string {
	return fmt.Sprintf("failed to parse the request JSON buffer: nesting is deeper than %d levels", MaxDepth)
}

// Texts of RapidJSON's parse errors.
const (
	errEmpty        = "The document is empty."
	errNotSingular  = "The document root must not be followed by other values."
	errValue        = "Invalid value."
	errName         = "Missing a name for object member."
	errColon        = "Missing a colon after a name of object member."
	errObjectComma  = "Missing a comma or '}' after an object member."
	errArrayComma   = "Missing a comma or ']' after an array element."
	errHex          = "Incorrect hex digit after \\u escape in string."
	errSurrogate    = "The surrogate pair in string is invalid."
	errEscape       = "Invalid escape character in string."
	errQuote        = "Missing a closing quotation mark in string."
	errTooBig       = "Number too big to be stored in double."
	errMissFraction = "Miss fraction part in number."
	errMissExponent = "Miss exponent in number."
)

// The recorded end of a long container lets a later look-up skip it; shorter ones are cheap to rescan, and below the
// tensors' level there may be very many.
const (
	rememberBytes = 512
	rememberDepth = 4
)

// Doc is a JSON text that has been checked. It refers to the text, which must not change while the Doc is in use.
type Doc struct {
	text []byte
	ends map[int]int
}

// Parse checks the text. An error is a *SyntaxError or a *DepthError.
func Parse(text []byte) (*Doc, error) {
	p := parser{doc: Doc{text: text}}
	pos := valueStart(text)
	if pos >= len(text) || text[pos] == 0 {
		return nil, &SyntaxError{errEmpty, pos}
	}
	pos, err := p.value(pos, 0)
	if err != nil {
		return nil, err
	}
	if pos = p.space(pos); pos < len(text) && text[pos] != 0 {
		return nil, &SyntaxError{errNotSingular, pos}
	}
	return &p.doc, nil
}

// Root is the document's value.
func (d *Doc) Root() Value { return Value{doc: d, pos: valueStart(d.text)} }

// byteOrderMark is what a text may begin with.
const byteOrderMark = "\xef\xbb\xbf"

// valueStart is where the value of a text begins.
func valueStart(text []byte) int {
	if bytes.HasPrefix(text, []byte(byteOrderMark)) {
		return space(text, len(byteOrderMark))
	}
	return space(text, 0)
}

type parser struct{ doc Doc }

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\r' || c == '\t' }

// space is where what follows white space begins.
func space(text []byte, pos int) int {
	for pos < len(text) && isSpace(text[pos]) {
		pos++
	}
	return pos
}

func (p *parser) space(pos int) int { return space(p.doc.text, pos) }

// peek is the byte at pos; like a C string's, the text ends in a zero.
func (p *parser) peek(pos int) byte {
	if pos < len(p.doc.text) {
		return p.doc.text[pos]
	}
	return 0
}

func (p *parser) value(pos, depth int) (int, error) {
	switch p.peek(pos) {
	case '{':
		return p.object(pos, depth+1)
	case '[':
		return p.array(pos, depth+1)
	case '"':
		return p.str(pos)
	case 'n':
		return p.literal(pos, "null")
	case 't':
		return p.literal(pos, "true")
	case 'f':
		return p.literal(pos, "false")
	default:
		return p.number(pos)
	}
}

func (p *parser) literal(pos int, word string) (int, error) {
	for i := 1; i < len(word); i++ {
		if p.peek(pos+i) != word[i] {
			return 0, &SyntaxError{errValue, pos + i}
		}
	}
	return pos + len(word), nil
}

func (p *parser) remember(start, end, depth int) {
	if depth > rememberDepth || end-start < rememberBytes {
		return
	}
	if p.doc.ends == nil {
		p.doc.ends = make(map[int]int)
	}
	p.doc.ends[start] = end
}

func (p *parser) object(start, depth int) (int, error) {
	if depth > MaxDepth {
		return 0, &DepthError{}
	}
	pos := p.space(start + 1)
	if p.peek(pos) == '}' {
		return pos + 1, nil
	}
	for {
		if p.peek(pos) != '"' {
			return 0, &SyntaxError{errName, pos}
		}
		var err error
		if pos, err = p.str(pos); err != nil {
			return 0, err
		}
		if pos = p.space(pos); p.peek(pos) != ':' {
			return 0, &SyntaxError{errColon, pos}
		}
		if pos, err = p.value(p.space(pos+1), depth); err != nil {
			return 0, err
		}
		switch pos = p.space(pos); p.peek(pos) {
		case ',':
			pos = p.space(pos + 1)
		case '}':
			p.remember(start, pos+1, depth)
			return pos + 1, nil
		default:
			return 0, &SyntaxError{errObjectComma, pos}
		}
	}
}

func (p *parser) array(start, depth int) (int, error) {
	if depth > MaxDepth {
		return 0, &DepthError{}
	}
	pos := p.space(start + 1)
	if p.peek(pos) == ']' {
		return pos + 1, nil
	}
	for {
		var err error
		if pos, err = p.value(pos, depth); err != nil {
			return 0, err
		}
		switch pos = p.space(pos); p.peek(pos) {
		case ',':
			pos = p.space(pos + 1)
		case ']':
			p.remember(start, pos+1, depth)
			return pos + 1, nil
		default:
			return 0, &SyntaxError{errArrayComma, pos}
		}
	}
}

func (p *parser) str(start int) (int, error) {
	text := p.doc.text
	pos := start + 1
	for pos < len(text) {
		switch c := text[pos]; {
		case c == '"':
			return pos + 1, nil
		case c == '\\':
			next, err := p.escape(pos)
			if err != nil {
				return 0, err
			}
			pos = next
		case c == 0:
			return 0, &SyntaxError{errQuote, pos}
		case c < 0x20:
			return 0, &SyntaxError{errEscape, pos}
		default:
			pos++
		}
	}
	return 0, &SyntaxError{errQuote, pos}
}

func (p *parser) escape(pos int) (int, error) {
	switch p.peek(pos + 1) {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return pos + 2, nil
	case 'u':
	default:
		return 0, &SyntaxError{errEscape, pos}
	}
	unit, ok := hex4(p.doc.text, pos+2)
	switch {
	case !ok:
		return 0, &SyntaxError{errHex, pos}
	case unit < 0xD800 || unit > 0xDBFF: // a low surrogate alone is let through
		return pos + 6, nil
	case p.peek(pos+6) != '\\' || p.peek(pos+7) != 'u':
		return 0, &SyntaxError{errSurrogate, pos}
	}
	low, ok := hex4(p.doc.text, pos+8)
	switch {
	case !ok:
		return 0, &SyntaxError{errHex, pos}
	case low < 0xDC00 || low > 0xDFFF:
		return 0, &SyntaxError{errSurrogate, pos}
	}
	return pos + 12, nil
}

func hex4(text []byte, pos int) (rune, bool) {
	if pos+4 > len(text) {
		return 0, false
	}
	var r rune
	for _, c := range text[pos : pos+4] {
		r <<= 4
		switch {
		case c >= '0' && c <= '9':
			r |= rune(c - '0')
		case c >= 'a' && c <= 'f':
			r |= rune(c-'a') + 10
		case c >= 'A' && c <= 'F':
			r |= rune(c-'A') + 10
		default:
			return 0, false
		}
	}
	return r, true
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func (p *parser) number(start int) (int, error) {
	pos := start
	if p.peek(pos) == '-' {
		pos++
	}
	switch c := p.peek(pos); {
	case c == '0':
		pos++
	case isDigit(c):
		pos = p.digits(pos)
	case c == 'N' || c == 'I': // the server accepts a fraction and an exponent after it; they have no effect
		var err error
		if pos, err = p.notFinite(pos); err != nil {
			return 0, err
		}
	default:
		return 0, &SyntaxError{errValue, pos}
	}
	whole := pos - start
	if p.peek(pos) == '.' {
		pos++
		if !isDigit(p.peek(pos)) {
			return 0, &SyntaxError{errMissFraction, pos}
		}
		pos = p.digits(pos)
	}
	c := p.peek(pos)
	exponent := c == 'e' || c == 'E'
	if exponent {
		pos++
		if c := p.peek(pos); c == '+' || c == '-' {
			pos++
		}
		if !isDigit(p.peek(pos)) {
			return 0, &SyntaxError{errMissExponent, pos}
		}
		pos = p.digits(pos)
	}
	// Only a long integer part or an exponent can leave the range of a double.
	if exponent || whole > 300 {
		if f, _ := strconv.ParseFloat(view(p.doc.text[start:pos]), 64); math.IsInf(f, 0) {
			return 0, &SyntaxError{errTooBig, start}
		}
	}
	return pos, nil
}

// digits is the offset behind digits.
func (p *parser) digits(pos int) int {
	for pos < len(p.doc.text) && isDigit(p.doc.text[pos]) {
		pos++
	}
	return pos
}

// notFinite reads NaN, Inf and Infinity as RapidJSON 1.1 does, which tries Inf where NaN stopped fitting: NaInf is
// infinite, too.
func (p *parser) notFinite(pos int) (int, error) {
	start := pos
	if pos = p.consume(pos, "NaN"); pos-start == len("NaN") {
		return pos, nil
	}
	rest := "Inf"
	end := p.consume(pos, rest)
	if end-pos < len(rest) {
		return 0, &SyntaxError{errValue, end}
	}
	if p.peek(end) != 'i' {
		return end, nil
	}
	rest, pos = "inity", end
	if end = p.consume(pos, rest); end-pos < len(rest) {
		return 0, &SyntaxError{errValue, end}
	}
	return end, nil
}

// consume steps over as much of word as there is.
func (p *parser) consume(pos int, word string) int {
	for i := range len(word) {
		if p.peek(pos) != word[i] {
			break
		}
		pos++
	}
	return pos
}

// view is b as a string, for look-ups and conversions that do not keep it.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
