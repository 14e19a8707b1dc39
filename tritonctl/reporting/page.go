// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package reporting

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/conch-serving/conch/sidecar/sim/report"
	"github.com/conch-serving/conch/tritonctl/factory"
	"github.com/conch-serving/conch/tritonctl/output"
)

// Destination is where an HTML page is written, and whether a browser shows it.
type Destination struct {
	// File is the page's file; empty: no page, or with Browse a temporary file.
	File string
	// Browse opens the page in the browser.
	Browse bool
}

// Flags adds --html and --open to a command.
func (d *Destination) Flags(c *cobra.Command) {
	c.Flags().StringVar(&d.File, "html", "", "write the report as one HTML page to this file too")
	c.Flags().BoolVar(&d.Browse, "open", false, "open the HTML page in the browser (without --html, from a temporary file)")
}

// Wanted reports whether a flag asked for a page.
func (d *Destination) Wanted() bool { return d.File != "" || d.Browse }

// Check finds out whether the file can be written: before the work, not after it.
func (d *Destination) Check() error {
	if d.File == "" {
		return nil
	}
	file, err := os.OpenFile(d.File, os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // a report is for everybody to read
	if err != nil {
		return fmt.Errorf("--html: %w", err)
	}
	if err := file.Close(); err != nil {
		return fmt.Errorf("--html: %w", err)
	}
	return nil
}

// Write makes the page and puts it where the flags say.
func (d *Destination) Write(f *factory.Factory, page func(io.Writer) error) error {
	if !d.Wanted() {
		return nil
	}
	var text bytes.Buffer
	if err := page(&text); err != nil {
		return err
	}
	path := d.File
	if path == "" {
		dir, err := os.MkdirTemp("", "tritonctl")
		if err != nil {
			return err
		}
		path = filepath.Join(dir, "report.html")
	}
	if err := os.WriteFile(path, text.Bytes(), 0o644); err != nil { //nolint:gosec // a report is for everybody to read
		return fmt.Errorf("report: %w", err)
	}
	if !d.Browse {
		return nil
	}
	full, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	if err := f.Open(full); err != nil {
		return fmt.Errorf("no browser could be started (%w); the page is %s", err, full)
	}
	return nil
}

// elsewhere are flags that say where a report goes and to whom the command speaks, not what is in it.
var elsewhere = map[string]bool{"html": true, "open": true, "output": true, "admin": true, "token-file": true, "ca-file": true, "timeout": true, "yes": true}

// CommandLine is a command as it was given, without where its output goes.
func CommandLine(c *cobra.Command, args []string) string {
	words := append([]string{c.CommandPath()}, args...)
	c.Flags().Visit(func(f *pflag.Flag) {
		if !elsewhere[f.Name] {
			value := f.Value.String()
			if s, isSlice := f.Value.(pflag.SliceValue); isSlice {
				value = strings.Join(s.GetSlice(), ",")
			}
			words = append(words, "--"+f.Name+"="+strings.Trim(value, "[]"))
		}
	})
	for i, w := range words[1:] {
		if strings.ContainsAny(w, " \t\n'\"$`\\&|;<>()*?") {
			words[i+1] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// Show writes the report where the flags say.
func (o *Options) Show(r *report.Report) error {
	for _, run := range r.Runs {
		if n := run.Result.PlansFailed; n > 0 {
			r.Notes = append(r.Notes, fmt.Sprintf("%s: %d of %d plans failed and changed nothing; the first %s", run.Name, n, n+run.Result.Plans, run.Result.PlanFailure))
		}
	}
	r.Command = o.command
	if err := o.Write(o.Factory, r.HTML); err != nil {
		return err
	}
	if o.Format == "table" {
		o.Quiet()
		return r.Table(o.Out)
	}
	return o.Print(r, func(*output.Table) {})
}
