// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package output prints one value as a table for a person, or as JSON, YAML, names
// or a part of it for a program. JSON, YAML and paths use the names of the admin API.
package output

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/charmbracelet/x/ansi"
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
		t := &Table{Wide: format == "wide", w: w}
		table(t)
		t.flush()
		return t.err
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
	w    io.Writer
	rows [][]string // that are not written yet
	err  error      // the first of writing
}

// Row adds a line; empty cells show as "-".
func (t *Table) Row(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = cmp.Or(Clean(fmt.Sprint(c)), "-")
	}
	t.rows = append(t.rows, row)
}

// flush writes the rows. A column is as wide as its widest cell, and the last cell of a row belongs to none. Some characters take two places of a terminal, and
// some none, which text/tabwriter does not know.
func (t *Table) flush() {
	const apart = 2
	var widths []int
	for _, row := range t.rows {
		for i, c := range row[:max(0, len(row)-1)] {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], ansi.StringWidth(c)+apart)
		}
	}
	var out strings.Builder
	for _, row := range t.rows {
		for i, c := range row {
			out.WriteString(c)
			if i < len(row)-1 {
				out.WriteString(strings.Repeat(" ", widths[i]-ansi.StringWidth(c)))
			}
		}
		out.WriteByte('\n')
	}
	t.rows = nil
	t.write(out.String())
}

func (t *Table) write(text string) {
	if _, err := io.WriteString(t.w, text); t.err == nil {
		t.err = err
	}
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
	t.flush()
	t.write(CleanLines(text) + "\n")
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
