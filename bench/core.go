// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"

	"github.com/conch-serving/conch/internal/figure"
)

// core runs the queue's own benchmark, which is where its workload is defined, and reads its output; then what the queue does past its core's
// capacity. All of it is on the core's own time.
func (b *bench) core(ctx context.Context, r *figure.Report) error {
	rounds := b.roundsOr(5)
	b.say(fmt.Sprintf("sidecar/dispatch/queue: BenchmarkCore, one core, %d runs each", rounds))
	cases, err := ownBenchmark(ctx, "BenchmarkCore", "./sidecar/dispatch/queue", "-benchmem", "-cpu", "1", "-benchtime", "2s", "-count", strconv.Itoa(rounds))
	if err != nil {
		return err
	}
	for _, c := range cases {
		name := "core." + c.name
		r.AddRuns(name+".requests_per_second", c.values["requests/s"], "req/s", "one core, arrival to completion, models x partitions; per second of its own time")
		r.AddRuns(name+".allocs_per_request", c.values["allocs/op"], "allocs/req", "")
		r.AddRuns(name+".rows_per_batch", c.values["rows/batch"], "rows", "")
	}
	if err := b.pastThePeak(ctx, r); err != nil {
		return err
	}
	r.Emulated = queueAlone
	return nil
}

// queueAlone is what is emulated where the queue is measured without its surroundings.
const queueAlone = "all but the queue itself: arrivals and executions are events on virtual time, at 85% of what the partitions can do in batches of 64"

// benchmarkCase collects the measurements of one sub-benchmark by unit.
type benchmarkCase struct {
	name   string
	values map[string][]float64
}

// ownBenchmark runs a benchmark of a package of this project, and reads what it prints.
func ownBenchmark(ctx context.Context, name, in string, flags ...string) ([]*benchmarkCase, error) {
	command := exec.CommandContext(ctx, "go", append(append([]string{"test", "-run", "^$", "-bench", "^" + name + "$"}, flags...), in)...)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("go test -bench: %w\n%s%s", err, out, stderr.Bytes())
	}
	return parseBenchmark(out)
}

// parseBenchmark reads the lines that `go test -bench` prints: name, iterations, then value and unit in pairs. A sub-benchmark is a case of its name, a
// benchmark without one a case without a name.
func parseBenchmark(out []byte) ([]*benchmarkCase, error) {
	var cases []*benchmarkCase
	byName := map[string]*benchmarkCase{}
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		_, name, _ := strings.Cut(fields[0], "/")
		c := byName[name]
		if c == nil {
			c = &benchmarkCase{name: name, values: map[string][]float64{}}
			byName[name] = c
			cases = append(cases, c)
		}
		for i := 2; i+1 < len(fields); i += 2 {
			v, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("benchmark line %q: %w", lines.Text(), err)
			}
			c.values[fields[i+1]] = append(c.values[fields[i+1]], v)
		}
	}
	if len(cases) == 0 {
		return nil, errors.New("the queue's benchmark printed no results")
	}
	return cases, nil
}
