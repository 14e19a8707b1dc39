// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package figure

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gonum.org/v1/gonum/stat"
)

// Figure is one measured number.
type Figure struct {
	// Name is dotted and unique in the project, for example proxy.grpc.1KB.c1.added_p50_us.
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	// Unit is short, for example us, req/s, ratio.
	Unit string `json:"unit"`
	// Low and High are the least and the greatest of Runs measurements of which Value is the median. Runs is 0 where there was one only.
	Low  float64 `json:"low,omitempty"`
	High float64 `json:"high,omitempty"`
	Runs int     `json:"runs,omitempty"`
	// Note says what a reader must know to read the number.
	Note string `json:"note,omitempty"`
}

// Report is what one command found, and where.
type Report struct {
	// Command is how to get these figures again, and File the name of the report's file without its ending.
	Command string    `json:"command"`
	File    string    `json:"file"`
	When    time.Time `json:"when"`
	Commit  string    `json:"commit"`
	// Code is the digest of what was measured; see [Code].
	Code    string  `json:"code"`
	Seed    uint64  `json:"seed"`
	Machine Machine `json:"machine"`
	// Versions of what was measured, by name.
	Versions map[string]string `json:"versions"`
	// Emulated says what was not real; empty if all was.
	Emulated string   `json:"emulated,omitempty"`
	Figures  []Figure `json:"figures"`
}

var (
	goodName = regexp.MustCompile(`^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)+$`)
	goodFile = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*$`)
)

// Add appends a figure measured once.
func (r *Report) Add(name string, value float64, unit, note string) {
	r.Figures = append(r.Figures, Figure{Name: name, Value: value, Unit: unit, Note: note})
}

// AddRuns appends the median of several measurements of one figure, with their spread.
func (r *Report) AddRuns(name string, runs []float64, unit, note string) {
	if len(runs) == 0 {
		return
	}
	sorted := slices.Sorted(slices.Values(runs))
	n := len(sorted)
	r.Figures = append(r.Figures, Figure{
		Name: name, Value: (sorted[(n-1)/2] + sorted[n/2]) / 2, Unit: unit, Low: sorted[0], High: sorted[n-1], Runs: n, Note: note,
	})
}

// AddMean appends the geometric mean of several measurements of one figure, with their spread: the quotient of two such figures is the mean of
// the quotients, pair by pair.
func (r *Report) AddMean(name string, runs []float64, unit, note string) {
	r.AddRuns(name, runs, unit, note)
	if len(runs) > 0 {
		f := &r.Figures[len(r.Figures)-1]
		f.Value = min(max(stat.GeometricMean(runs, nil), f.Low), f.High) // rounding must not put it outside
	}
}

// Print writes one line per figure.
func (r *Report) Print(w io.Writer) error {
	for _, f := range r.Figures {
		if _, err := fmt.Fprintf(w, "figure %s %s %s\n", f.Name, Number(f.Value), f.Unit); err != nil {
			return fmt.Errorf("figures: %w", err)
		}
	}
	return nil
}

// Number is a value with four significant digits, without an exponent.
func Number(v float64) string {
	if v >= 1000 || v <= -1000 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	short, err := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	if err != nil {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return strconv.FormatFloat(short, 'f', -1, 64)
}

// Validate says what is wrong with the report's names.
func (r *Report) Validate() error {
	var errs []error
	if !goodFile.MatchString(r.File) {
		errs = append(errs, fmt.Errorf("report file %q: use lower case letters, digits, dots and dashes", r.File))
	}
	seen := map[string]bool{}
	for _, f := range r.Figures {
		if !goodName.MatchString(f.Name) || f.Unit == "" || strings.ContainsAny(f.Unit, " \n|") {
			errs = append(errs, fmt.Errorf("figure %q with unit %q: a name is dotted, a unit one word", f.Name, f.Unit))
		}
		if seen[f.Name] {
			errs = append(errs, fmt.Errorf("figure %q is there twice", f.Name))
		}
		seen[f.Name] = true
	}
	return errors.Join(errs...)
}

// Write replaces directory/File.json with the report.
func (r *Report) Write(directory string) error {
	if err := r.Validate(); err != nil {
		return err
	}
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("report %s: %w", r.File, err)
	}
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return fmt.Errorf("report %s: %w", r.File, err)
	}
	path := filepath.Join(directory, r.File+".json")
	if err := os.WriteFile(path+".tmp", append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("report %s: %w", r.File, err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("report %s: %w", r.File, err)
	}
	return nil
}

// Read reads every report of a directory, ordered by file name.
func Read(directory string) ([]*Report, error) {
	paths, err := filepath.Glob(filepath.Join(directory, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("reports of %s: %w", directory, err)
	}
	slices.Sort(paths)
	var reports []*Report
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("report: %w", err)
		}
		r := &Report{}
		if err := json.Unmarshal(data, r); err != nil {
			return nil, fmt.Errorf("report %s: %w; write it again with the command that measures it", path, err)
		}
		if err := r.Validate(); err != nil {
			return nil, fmt.Errorf("report %s: %w", path, err)
		}
		reports = append(reports, r)
	}
	return reports, nil
}
