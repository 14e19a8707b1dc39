// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// Counts are a function's invocations per minute.
type Counts struct {
	Owner, App, Function, Trigger string
	PerMinute                     []int
}

// maxPerMinute bounds one count: more is a broken file.
const maxPerMinute = 1 << 40

// ReadAzure reads counts per minute in the format of the Azure Functions trace of 2019: a header HashOwner, HashApp, HashFunction,
// Trigger, 1, 2, ... and a line per function. (That of 2021 has single invocations: see NewList.) Fewer
// minutes than a day's 1440 are allowed. Errors name the line.
func ReadAzure(r io.Reader) ([]Counts, error) {
	lines := csv.NewReader(r)
	lines.ReuseRecord = true
	header, err := lines.Read()
	if err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("azure trace: the file is empty; its first line is HashOwner,HashApp,HashFunction,Trigger and the minutes from 1")
		}
		return nil, fmt.Errorf("azure trace: %w", err)
	}
	for i, want := range []string{"HashOwner", "HashApp", "HashFunction", "Trigger", "1"} {
		if i >= len(header) || strings.TrimPrefix(strings.TrimSpace(header[i]), "\ufeff") != want {
			return nil, fmt.Errorf("azure trace: line 1: column %d must be %s", i+1, want)
		}
	}
	minutes := len(header) - 4
	for i := range minutes {
		if strings.TrimSpace(header[4+i]) != strconv.Itoa(i+1) {
			return nil, fmt.Errorf("azure trace: line 1: column %d must be the minute %d, not %q", 5+i, i+1, header[4+i])
		}
	}
	var all []Counts
	for {
		fields, err := lines.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("azure trace: %w", err) // the csv package names the line
		}
		line, _ := lines.FieldPos(0)
		c := Counts{Owner: strings.Clone(fields[0]), App: strings.Clone(fields[1]), Function: strings.Clone(fields[2]), Trigger: strings.Clone(fields[3]), PerMinute: make([]int, minutes)}
		for i := range minutes {
			n, err := strconv.ParseInt(strings.TrimSpace(fields[4+i]), 10, 64)
			if err != nil || n < 0 || n > maxPerMinute {
				return nil, fmt.Errorf("azure trace: line %d: minute %d has %q, which is no count of invocations", line, i+1, fields[4+i])
			}
			c.PerMinute[i] = int(n)
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, errors.New("azure trace: no function after the header")
	}
	return all, nil
}

// Stream spreads each minute's invocations evenly at random over the minute, which is how a Poisson process of that count would lie. Scale
// multiplies the counts (a fraction of an invocation happens with that probability), speed is how many seconds of the trace pass in one.
func (c Counts) Stream(model int32, scale, speed float64, random *rand.Rand) (Stream, error) {
	if !(scale >= 0) || math.IsInf(scale, 0) || !(speed > 0) || math.IsInf(speed, 0) {
		return nil, fmt.Errorf("azure trace: scale %g and speed %g must be numbers, the speed above 0", scale, speed)
	}
	return &minuteStream{counts: c.PerMinute, model: model, scale: scale, minute: 60 / speed, rng: random}, nil
}

type minuteStream struct {
	counts []int
	model  int32
	scale  float64
	minute float64 // seconds
	rng    *rand.Rand
	i      int
	left   int     // of the current minute
	at     float64 // within the current minute, 0 to 1
}

func (s *minuteStream) Next(a *Arrival) bool {
	for s.left == 0 {
		if s.i == len(s.counts) {
			return false
		}
		n := float64(s.counts[s.i]) * s.scale
		s.left = int(n)
		if s.rng.Float64() < n-math.Floor(n) {
			s.left++
		}
		s.i++
		s.at = 0
	}
	// The smallest of k evenly random moments in what is left of the minute: no need to draw and sort them all.
	s.at += (1 - s.at) * (1 - math.Pow(1-s.rng.Float64(), 1/float64(s.left)))
	s.left--
	*a = Arrival{At: time.Duration((float64(s.i-1) + s.at) * s.minute * 1e9), Model: s.model, Rows: 1}
	return true
}
