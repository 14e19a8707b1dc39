// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package output prints one value as a table for a person, or as JSON, YAML, names
// or a part of it for a program. JSON, YAML and paths use the names of the admin API.
package output

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/goccy/go-yaml"
)

// ErrFormat is returned for an -o that Print does not know.
var ErrFormat = errors.New("unknown output format")

// byPath begins the format that prints what a path selects, such as
// jsonpath={[*].name}.
const byPath = "jsonpath="

// Formats lists what -o takes.
func Formats() []string { return []string{"table", "wide", "json", "yaml", "name", byPath + "PATH"} }

// Check rejects a format before anything was asked of conch.
func Check(format string) error {
	if text, isPath := strings.CutPrefix(format, byPath); isPath {
		_, err := path(text)
		return err
	}
	for _, known := range Formats() {
		if format == known {
			return nil
		}
	}
	return fmt.Errorf("%w %q; -o takes %s", ErrFormat, format, strings.Join(Formats(), ", "))
}

// path reads a path with or without kubectl's braces and without the root.
func path(text string) (*yaml.Path, error) {
	inner := strings.TrimSpace(text)
	if braced, ok := strings.CutPrefix(inner, "{"); ok {
		if inner, ok = strings.CutSuffix(braced, "}"); !ok {
			return nil, fmt.Errorf("%w: %q has no closing brace", ErrFormat, text)
		}
	}
	if !strings.HasPrefix(inner, "$") {
		if inner != "" && inner[0] != '.' && inner[0] != '[' {
			inner = "." + inner
		}
		inner = "$" + inner
	}
	p, err := yaml.PathString(inner)
	if err != nil {
		return nil, fmt.Errorf("%w: path %q: %w; write it like {.models[0]} or {[*].name}", ErrFormat, text, err)
	}
	return p, nil
}

// Print writes value to w.
func Print(w io.Writer, format string, value any, table func(*Table)) error {
	if err := Check(format); err != nil {
		return err
	}
	switch format {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(value)
	case "yaml":
		encoded, err := json.Marshal(value)
		if err != nil {
			return err
		}
		out, err := yaml.JSONToYAML(encoded)
		if err != nil {
			return err
		}
		_, err = w.Write(out)
		return err
	case "name":
		return names(w, value)
	case "table", "wide":
		t := &Table{Wide: format == "wide", w: tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)}
		table(t)
		return t.w.Flush()
	default:
		return selected(w, strings.TrimPrefix(format, byPath), value)
	}
}

// selected prints what a path selects: a scalar as it is, each of a list on a line
// of its own, anything else as JSON.
func selected(w io.Writer, text string, value any) error {
	p, err := path(text)
	if err != nil {
		return err
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return err
	}
	var found any
	if err := p.Read(bytes.NewReader(encoded), &found); err != nil {
		return fmt.Errorf("nothing is at path %q: %w", text, err)
	}
	list, isList := found.([]any)
	if !isList {
		list = []any{found}
	}
	for _, element := range list {
		if err := line(w, element); err != nil {
			return err
		}
	}
	return nil
}

func line(w io.Writer, v any) error {
	switch v.(type) {
	case map[string]any, []any:
		encoded, err := json.Marshal(v)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(w, string(encoded))
		return err
	case nil:
		_, err := fmt.Fprintln(w)
		return err
	}
	_, err := fmt.Fprintln(w, v)
	return err
}

// names prints what each thing is called, one a line.
func names(w io.Writer, value any) error {
	encoded, err := json.Marshal(value)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	decoder.UseNumber() // a revision is no floating-point number
	var all any
	if err := decoder.Decode(&all); err != nil {
		return err
	}
	list, isList := all.([]any)
	if !isList {
		list = []any{all}
	}
	for _, element := range list {
		name, ok := nameOf(element)
		if !ok {
			return fmt.Errorf("%w: what this command shows has no names; use -o json", ErrFormat)
		}
		if err := line(w, name); err != nil {
			return err
		}
	}
	return nil
}

func nameOf(element any) (any, bool) {
	members, isObject := element.(map[string]any)
	if !isObject {
		return nil, false
	}
	for _, key := range []string{"name", "id", "revision", "model"} {
		if name, has := members[key]; has {
			return name, true
		}
	}
	return nil, false
}

// Table is a set of aligned columns.
type Table struct {
	// Wide: there is room for columns that a person seldom needs.
	Wide bool
	w    *tabwriter.Writer
}

// Row adds a line; empty cells show as "-".
func (t *Table) Row(cells ...any) {
	for i, c := range cells {
		s := fmt.Sprint(c)
		if s == "" {
			s = "-"
		}
		if i > 0 {
			fmt.Fprint(t.w, "\t")
		}
		fmt.Fprint(t.w, Clean(s))
	}
	fmt.Fprintln(t.w)
}

// WideRow adds a line whose last cells, from the narrow-th on, show in a wide table
// only.
func (t *Table) WideRow(narrow int, cells ...any) {
	if !t.Wide {
		cells = cells[:narrow]
	}
	t.Row(cells...)
}

// Line adds text that belongs to no column.
func (t *Table) Line(text string) {
	_ = t.w.Flush() // a failed write comes up again in Print's own Flush
	fmt.Fprintln(t.w, CleanLines(text))
	_ = t.w.Flush()
}

// Clean makes one line of a text without what a terminal takes for a command: some texts come from servers, and from what clients had them load.
func Clean(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, text)
}

// CleanLines is Clean of a text that may have several lines.
func CleanLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = Clean(lines[i])
	}
	return strings.Join(lines, "\n")
}

// Milliseconds renders seconds for a cell; zero is unknown.
func Milliseconds(seconds float64) string {
	if seconds == 0 {
		return ""
	}
	return fmt.Sprintf("%.4gms", seconds*1e3)
}

// Percent renders a fraction.
func Percent(fraction float64) string { return fmt.Sprintf("%.1f%%", fraction*100) }

// Number renders a rate.
func Number(v float64) string { return fmt.Sprintf("%.1f", v) }

// Mean renders a mean that is above zero once there was something to count.
func Mean(v float64) string {
	if v == 0 {
		return ""
	}
	return Number(v)
}

// Bytes renders a memory size; zero is unknown or unlimited.
func Bytes(n uint64) string {
	switch {
	case n == 0:
		return ""
	case n >= 1<<30:
		return fmt.Sprintf("%.1fGiB", float64(n)/(1<<30))
	default:
		return fmt.Sprintf("%.1fMiB", float64(n)/(1<<20))
	}
}
