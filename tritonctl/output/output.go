// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package output prints one value as a table for a person or as JSON or YAML
// for a program. JSON and YAML use the names of the admin API.
package output

import (
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

// Formats lists what -o takes.
func Formats() []string { return []string{"table", "json", "yaml"} }

// Check rejects a format before anything was asked of conch.
func Check(format string) error {
	for _, known := range Formats() {
		if format == known {
			return nil
		}
	}
	return fmt.Errorf("%w %q; -o takes %s", ErrFormat, format, strings.Join(Formats(), ", "))
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
	default:
		t := &Table{w: tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)}
		table(t)
		return t.w.Flush()
	}
}

// Table is a set of aligned columns.
type Table struct{ w *tabwriter.Writer }

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
		fmt.Fprint(t.w, strings.ReplaceAll(s, "\t", " "))
	}
	fmt.Fprintln(t.w)
}

// Line adds text that belongs to no column.
func (t *Table) Line(text string) {
	_ = t.w.Flush() // a failed write comes up again in Print's own Flush
	fmt.Fprintln(t.w, text)
	_ = t.w.Flush()
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
