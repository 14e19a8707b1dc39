// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"sort"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds of a file. Depth counts aliases too, so that a file that refers to
// itself ends there instead of in the stack; values counts what aliases repeat,
// so that a few of them cannot multiply into a day's work.
const (
	maxBytes  = 4 << 20
	maxDepth  = 32
	maxValues = 200_000
)

// Parse decodes the text of a conch.yaml called name. It is strict: unknown
// keys, keys set twice and values of the wrong kind are problems of one
// *InvalidError, all of them at once. Nothing is filled in.
func Parse(name string, data []byte) (*Config, error) {
	if len(data) > maxBytes {
		return nil, &InvalidError{File: name, Problems: []Problem{{Text: fmt.Sprintf("%d bytes; a conch.yaml has at most %d", len(data), maxBytes)}}}
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		var syntax yaml.Error
		if errors.As(err, &syntax) {
			return nil, &InvalidError{File: name, Problems: []Problem{{Line: lineOf(syntax.GetToken()), Text: syntax.GetMessage()}}}
		}
		return nil, &InvalidError{File: name, Problems: []Problem{{Text: err.Error()}}}
	}
	c := &Config{lines: map[string]int{}}
	d := &decoder{lines: c.lines, anchors: map[string]ast.Node{}}
	documents := 0
	for _, document := range file.Docs {
		if document.Body == nil {
			continue
		}
		if documents++; documents > 1 {
			d.problem("", document.Body, "a second document begins here; conch.yaml holds one")
			break
		}
		d.decode(document.Body, reflect.ValueOf(c).Elem(), "", 0)
	}
	if len(d.problems) > 0 {
		return nil, &InvalidError{File: name, Problems: d.problems}
	}
	return c, nil
}

// decoder walks the syntax tree and the Go value side by side. The library's
// own decoder stops at the first fault; an operator wants all of them.
type decoder struct {
	lines    map[string]int
	anchors  map[string]ast.Node
	problems []Problem
	values   int
}

// deep reports, as a problem, that the file is past its bounds.
func (d *decoder) deep(n ast.Node, path string, depth int) bool {
	if d.values++; d.values == maxValues {
		d.problem(path, n, "the file holds more than %d values once its aliases are followed", maxValues)
	}
	if depth > maxDepth && d.values < maxValues {
		d.problem(path, n, "nested deeper than %d levels", maxDepth)
	}
	return depth > maxDepth || d.values >= maxValues
}

func (d *decoder) problem(path string, n ast.Node, format string, args ...any) {
	d.problems = append(d.problems, Problem{Path: path, Line: lineOf(n.GetToken()), Text: fmt.Sprintf(format, args...)})
}

func lineOf(t *token.Token) int {
	if t == nil || t.Position == nil {
		return 0
	}
	return t.Position.Line
}

// resolve strips anchors, tags and aliases from n.
func (d *decoder) resolve(n ast.Node, path string) ast.Node {
	for range maxDepth {
		switch v := n.(type) {
		case *ast.AnchorNode:
			d.anchors[v.Name.GetToken().Value] = v.Value
			n = v.Value
		case *ast.TagNode:
			n = v.Value
		case *ast.AliasNode:
			name := v.Value.GetToken().Value
			target, ok := d.anchors[name]
			if !ok {
				d.problem(path, v, "alias *%s has no anchor before it", name)
				return nil
			}
			n = target
		default:
			return n
		}
	}
	return nil
}

func (d *decoder) decode(n ast.Node, into reflect.Value, path string, depth int) {
	if d.deep(n, path, depth) {
		return
	}
	if n = d.resolve(n, path); n == nil {
		return
	}
	if _, null := n.(*ast.NullNode); null {
		return
	}
	if path != "" {
		d.lines[path] = lineOf(n.GetToken())
	}
	switch {
	case into.Type() == reflect.TypeFor[GPUs]():
		d.autoOr(n, into, path, depth, "[{type: A100-80GB, count: 4, emulated: true}]")
		return
	case into.Type() == reflect.TypeFor[Merge]():
		d.autoOr(n, into, path, depth, "[{members: [a, b], mode: backbone}]")
		return
	case into.Type() == reflect.TypeFor[JSON]():
		into.SetString(d.text(n, path, depth))
		return
	case into.Kind() == reflect.Pointer:
		into.Set(reflect.New(into.Type().Elem()))
		d.decode(n, into.Elem(), path, depth+1)
		return
	}
	if text, ok := into.Addr().Interface().(encoding.TextUnmarshaler); ok {
		if s, ok := d.scalar(n, path); ok {
			if err := text.UnmarshalText([]byte(s)); err != nil {
				d.problem(path, n, "%v", err)
			}
		}
		return
	}
	switch into.Kind() {
	case reflect.Struct:
		d.mapping(n, path, depth, func(key string, at, value ast.Node, path string) {
			field, ok := fieldOf(into, key)
			if !ok {
				d.problem(path, at, "unknown key %q%s", key, suggest(key, keysOf(into.Type())))
				return
			}
			d.decode(value, field, path, depth+1)
		})
	case reflect.Map:
		if into.IsNil() {
			into.Set(reflect.MakeMap(into.Type()))
		}
		d.mapping(n, path, depth, func(key string, _, value ast.Node, path string) {
			element := reflect.New(into.Type().Elem()).Elem()
			if element.Kind() == reflect.String {
				element.SetString(d.text(value, path, depth+1))
			} else {
				d.decode(value, element, path, depth+1)
			}
			into.SetMapIndex(reflect.ValueOf(key), element)
		})
	case reflect.Slice:
		sequence, ok := n.(*ast.SequenceNode)
		if !ok {
			d.problem(path, n, "want a list")
			return
		}
		list := reflect.MakeSlice(into.Type(), len(sequence.Values), len(sequence.Values))
		for i, value := range sequence.Values {
			d.decode(value, list.Index(i), fmt.Sprintf("%s[%d]", path, i), depth+1)
		}
		into.Set(list)
	default:
		if s, ok := d.scalar(n, path); ok {
			d.set(n, into, s, path)
		}
	}
}

// autoOr reads a key that is either the word auto or a list.
func (d *decoder) autoOr(n ast.Node, into reflect.Value, path string, depth int, example string) {
	if _, ok := n.(*ast.SequenceNode); ok {
		d.decode(n, into.FieldByName("List"), path, depth+1)
		return
	}
	if s, ok := n.(*ast.StringNode); ok && s.Value == "auto" {
		into.FieldByName("Auto").SetBool(true)
		return
	}
	d.problem(path, n, "want auto or a list such as %s", example)
}

// mapping calls each for every key of n, those of merged mappings first.
func (d *decoder) mapping(n ast.Node, path string, depth int, each func(key string, at, value ast.Node, path string)) {
	if d.deep(n, path, depth) {
		return
	}
	var values []*ast.MappingValueNode
	switch v := n.(type) {
	case *ast.MappingNode:
		values = v.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{v}
	default:
		d.problem(path, n, "want a mapping of keys to values")
		return
	}
	firstLine := map[string]int{}
	for _, value := range values {
		if _, merge := value.Key.(*ast.MergeKeyNode); merge {
			if merged := d.resolve(value.Value, path); merged != nil {
				d.mapping(merged, path, depth+1, each)
			}
			continue
		}
		key := value.Key.GetToken().Value
		if line, twice := firstLine[key]; twice {
			d.problem(join(path, key), value.Key, "set twice; first on line %d", line)
			continue
		}
		firstLine[key] = lineOf(value.Key.GetToken())
		each(key, value.Key, value.Value, join(path, key))
	}
}

// scalar is the text of a value that has no parts.
func (d *decoder) scalar(n ast.Node, path string) (string, bool) {
	switch v := n.(type) {
	case *ast.StringNode:
		return v.Value, true
	case *ast.LiteralNode:
		return v.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	default:
		d.problem(path, n, "want a single value")
		return "", false
	}
}

// text is a value as a policy's parameters carry it: scalars as written, lists
// and mappings as JSON.
func (d *decoder) text(n ast.Node, path string, depth int) string {
	resolved := d.resolve(n, path)
	switch resolved.(type) {
	case nil, *ast.NullNode:
		return ""
	case *ast.SequenceNode, *ast.MappingNode, *ast.MappingValueNode:
		encoded, err := json.Marshal(d.plain(resolved, path, depth))
		if err != nil {
			d.problem(path, n, "cannot be written as JSON: %v", err)
		}
		return string(encoded)
	default:
		s, _ := d.scalar(resolved, path)
		return s
	}
}

func (d *decoder) plain(n ast.Node, path string, depth int) any {
	if d.deep(n, path, depth) {
		return nil
	}
	switch v := d.resolve(n, path).(type) {
	case nil, *ast.NullNode:
		return nil
	case *ast.SequenceNode:
		list := make([]any, len(v.Values))
		for i, value := range v.Values {
			list[i] = d.plain(value, fmt.Sprintf("%s[%d]", path, i), depth+1)
		}
		return list
	case *ast.MappingNode, *ast.MappingValueNode:
		object := map[string]any{}
		d.mapping(v, path, depth, func(key string, _, value ast.Node, path string) {
			object[key] = d.plain(value, path, depth+1)
		})
		return object
	case *ast.IntegerNode:
		return v.Value
	case *ast.FloatNode:
		return v.Value
	case *ast.BoolNode:
		return v.Value
	default:
		s, _ := d.scalar(v, path)
		return s
	}
}

func (d *decoder) set(n ast.Node, into reflect.Value, s, path string) {
	clean := strings.ReplaceAll(s, "_", "")
	switch into.Kind() {
	case reflect.String:
		into.SetString(s)
	case reflect.Bool:
		b, ok := n.(*ast.BoolNode)
		if !ok {
			d.problem(path, n, "want true or false, not %q", s)
			return
		}
		into.SetBool(b.Value)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v, err := strconv.ParseInt(clean, 10, into.Type().Bits())
		if err != nil {
			d.problem(path, n, "want a whole number, not %q", s)
			return
		}
		into.SetInt(v)
	case reflect.Uint32, reflect.Uint64:
		v, err := strconv.ParseUint(clean, 10, into.Type().Bits())
		if err != nil {
			d.problem(path, n, "want a whole number from 0, not %q", s)
			return
		}
		into.SetUint(v)
	case reflect.Float64:
		v, err := strconv.ParseFloat(clean, 64)
		if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
			d.problem(path, n, "want a number, not %q", s)
			return
		}
		into.SetFloat(v)
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func yamlKey(f reflect.StructField) string { return f.Tag.Get("yaml") }

func fieldOf(v reflect.Value, key string) (reflect.Value, bool) {
	for i := range v.NumField() {
		if yamlKey(v.Type().Field(i)) == key && key != "" {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

func keysOf(t reflect.Type) []string {
	var keys []string
	for i := range t.NumField() {
		if key := yamlKey(t.Field(i)); key != "" {
			keys = append(keys, key)
		}
	}
	sort.Strings(keys)
	return keys
}
