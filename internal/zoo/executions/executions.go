// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package executions is what single executions on emulated GPUs take, as a table that was worked out apart from any code. The simulator, minitriton and the
// emulating model behind a real tritonserver are tested against it: l(b, share) and the interference of partitions (policy.Interference.Slowdown) mean the
// same in all three.
package executions

import (
	"bytes"
	_ "embed"
	"encoding/csv"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The model of every case: l(b) = Beta + Alpha*b at the whole GPU. The case's execution starts After the others.
const (
	Alpha = time.Millisecond
	Beta  = 4 * time.Millisecond
	After = time.Millisecond
)

// Case is one execution, and what runs beside it.
type Case struct {
	// Share and Knee are percentages; Rows is the size of the batch.
	Share, Knee, Rows int
	// L2 and Bandwidth are the model's utilisations at the whole GPU, as fractions.
	L2, Bandwidth float64
	Others        []Other
	// Latency is how long the execution takes.
	Latency time.Duration
}

// Other is an execution on another partition of the GPU, which starts at 0 and takes Takes.
type Other struct {
	Share         int
	L2, Bandwidth float64
	Takes         time.Duration
}

//go:embed executions.csv
var table []byte

// Cases reads the table.
func Cases() ([]Case, error) {
	r := csv.NewReader(bytes.NewReader(table))
	r.Comment = '#'
	lines, err := r.ReadAll()
	if err != nil {
		return nil, fmt.Errorf("executions.csv: %w", err)
	}
	var all []Case
	for _, line := range lines[1:] {
		c := Case{}
		var latency float64
		if _, err := fmt.Sscan(strings.Join([]string{line[0], line[1], line[2], line[3], line[4], line[6]}, " "), &c.Share, &c.Knee, &c.Rows, &c.L2, &c.Bandwidth, &latency); err != nil {
			return nil, fmt.Errorf("executions.csv: %q: %w", line, err)
		}
		c.Latency = micros(latency)
		for text := range strings.FieldsSeq(line[5]) {
			o, err := other(text)
			if err != nil {
				return nil, fmt.Errorf("executions.csv: %q: %w", text, err)
			}
			c.Others = append(c.Others, o)
		}
		all = append(all, c)
	}
	return all, nil
}

// other reads L2/BANDWIDTH@SHARE:MICROSECONDS.
func other(text string) (o Other, err error) {
	load, rest, _ := strings.Cut(text, "@")
	l2, bandwidth, _ := strings.Cut(load, "/")
	share, takes, _ := strings.Cut(rest, ":")
	if o.L2, err = strconv.ParseFloat(l2, 64); err != nil {
		return o, err
	}
	if o.Bandwidth, err = strconv.ParseFloat(bandwidth, 64); err != nil {
		return o, err
	}
	if o.Share, err = strconv.Atoi(share); err != nil {
		return o, err
	}
	us, err := strconv.ParseFloat(takes, 64)
	o.Takes = micros(us)
	return o, err
}

func micros(us float64) time.Duration { return time.Duration(us * float64(time.Microsecond)) }
