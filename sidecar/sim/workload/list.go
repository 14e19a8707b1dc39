// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// List reads one arrival per line, as it goes:
//
//	time, model[, deadline[, rows]]
//
// in seconds since the start; an empty or missing deadline means the model's SLO, missing rows mean 1. Lines that begin with # and a first
// line "time,model,..." are skipped. Times may not go back.
type List struct {
	lines  *csv.Reader
	models map[string]int32
	first  bool
	last   time.Duration
	err    error
}

var _ Failing = (*List)(nil)

// NewList reads r; models gives the index of each name. A line about another model ends the stream with an error.
func NewList(r io.Reader, models map[string]int32) *List {
	lines := csv.NewReader(r)
	lines.Comment, lines.FieldsPerRecord, lines.ReuseRecord, lines.TrimLeadingSpace = '#', -1, true, true
	return &List{lines: lines, models: models, first: true}
}

// Next implements [Stream].
func (l *List) Next(a *Arrival) bool {
	if l.err != nil {
		return false
	}
	fields, err := l.lines.Read()
	if err == nil && l.first && len(fields) >= 2 && strings.EqualFold(strings.TrimSpace(fields[0]), "time") {
		fields, err = l.lines.Read()
	}
	l.first = false
	switch {
	case errors.Is(err, io.EOF):
		return false
	case err != nil:
		l.err = fmt.Errorf("arrivals: %w", err)
		return false
	}
	if err := l.parse(fields, a); err != nil {
		line, _ := l.lines.FieldPos(0)
		l.err = fmt.Errorf("arrivals: line %d: %w", line, err)
		return false
	}
	return true
}

// Err implements [Failing].
func (l *List) Err() error { return l.err }

func (l *List) parse(fields []string, a *Arrival) error {
	if len(fields) < 2 || len(fields) > 4 {
		return fmt.Errorf("%d fields; a line is time, model[, deadline[, rows]]", len(fields))
	}
	at, err := seconds("time", fields[0])
	if err != nil {
		return err
	}
	if at < l.last {
		return fmt.Errorf("time %s is before the line above; sort the file by time", strings.TrimSpace(fields[0]))
	}
	if l.last == 0 && at > unixTimes {
		return fmt.Errorf("time %s looks like the time of a calendar; times are seconds since the start: subtract the first line's from all", strings.TrimSpace(fields[0]))
	}
	name := strings.TrimSpace(fields[1])
	model, ok := l.models[name]
	if !ok {
		return fmt.Errorf("model %q is not one of the scenario's", name)
	}
	*a = Arrival{At: at, Model: model, Rows: 1}
	if len(fields) > 2 && strings.TrimSpace(fields[2]) != "" {
		if a.Deadline, err = seconds("deadline", fields[2]); err != nil {
			return err
		}
	}
	if len(fields) > 3 {
		rows, err := strconv.ParseInt(strings.TrimSpace(fields[3]), 10, 32)
		if err != nil || rows < 1 {
			return fmt.Errorf("%q is no number of rows", fields[3])
		}
		a.Rows = int32(rows)
	}
	l.last = at
	return nil
}

// unixTimes is where a first time is no time since the start, but one since 1970, or one in another unit.
const unixTimes = 10 * 365 * 24 * time.Hour

// longest is the largest time that a trace may hold; it leaves room for sums.
const longest = 100 * 365 * 24 * time.Hour

func seconds(what, text string) (time.Duration, error) {
	f, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || !(f >= 0) || f > longest.Seconds() {
		return 0, fmt.Errorf("%s %q is no number of seconds since the start, from 0 to %.0f", what, text, longest.Seconds())
	}
	return time.Duration(math.Round(f * 1e9)), nil
}
