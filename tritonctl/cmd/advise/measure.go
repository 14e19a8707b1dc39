// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package advise

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/sidecar/sim/advise"
	"github.com/conch-serving/conch/tritonctl/factory"
)

// errNotMeasured ends a command whose question was answered with no.
var errNotMeasured = errors.New("nothing was sent")

// confirm asks whether batches may be sent, unless --yes says so.
func (o *Options) confirm() error {
	if o.yes {
		return nil
	}
	fmt.Fprintf(o.Err, "Send %d generated batches of 1, 2, 4, ... rows of zeros of every model to your servers? They take at most %g%% of each server's time, for at most %v; clients' requests may wait for one of them. [y/N] ", o.repeats, 100*o.share, o.within)
	answer, err := bufio.NewReader(o.In).ReadString('\n')
	if err != nil || !strings.EqualFold(strings.TrimSpace(answer), "y") && !strings.EqualFold(strings.TrimSpace(answer), "yes") {
		return fmt.Errorf("%w: answer y, or give --yes", errNotMeasured)
	}
	return nil
}

// timed has conch time generated batches and adds what it found to the input, where a model has no grid yet. It returns what a person should
// keep.
func (o *Options) timed(ctx context.Context, conch *client.Client, in *advise.Input) (notes []string, err error) {
	all, err := conch.Measure(ctx, api.MeasureRequest{Share: o.share, Repeats: o.repeats, WithinSeconds: o.within.Seconds()})
	if err != nil {
		return nil, err
	}
	types, mixed := map[string]string{}, map[string]bool{}
	for _, m := range all {
		if other, known := types[m.Model]; known && other != m.GPUType {
			mixed[m.Model] = true
		}
		types[m.Model] = m.GPUType
	}
	for _, name := range slices.Sorted(maps.Keys(mixed)) {
		notes = append(notes, fmt.Sprintf("Not used: what was measured of %s, which is on GPUs of several types: their times are not told apart", name))
	}
	for _, m := range all {
		switch {
		case m.Skipped == "":
		case len(m.Batches) > 0:
			notes = append(notes, fmt.Sprintf("Not all measured: %s on %s: %s", m.Model, m.GPUType, m.Skipped))
		default:
			notes = append(notes, fmt.Sprintf("Not measured: %s on %s: %s", m.Model, m.GPUType, m.Skipped))
		}
		if len(m.Batches) == 0 || in.Grids[m.Model] != nil || mixed[m.Model] {
			continue
		}
		timed := advise.Grid{}
		for _, b := range m.Batches {
			timed[b.Rows] = seconds(b.Seconds)
		}
		if len(m.Executions) > 1 {
			if in.Counted == nil {
				in.Counted, in.Timed = map[string][]advise.Executions{}, map[string]advise.Grid{}
			}
			for _, e := range m.Executions {
				in.Counted[m.Model] = append(in.Counted[m.Model], advise.Executions{Rows: e.Rows, Count: e.Repeats, Mean: seconds(e.Seconds)})
			}
			in.Timed[m.Model] = timed
		} else {
			in.Grids[m.Model] = timed
		}
		if n := len(m.Batches); n > 1 {
			first, last := m.Batches[0], m.Batches[n-1]
			alpha := (last.Seconds - first.Seconds) / float64(last.Rows-first.Rows)
			notes = append(notes, fmt.Sprintf("Measured: %s on %s: 1 row takes %.2f ms, %d rows take %.2f ms. To keep it, put this under models in conch.yaml: %s: {profile: {alpha: %.0fus, beta: %.0fus}}",
				m.Model, m.GPUType, 1e3*first.Seconds, last.Rows, 1e3*last.Seconds, m.Model, 1e6*max(0, alpha), 1e6*max(0, first.Seconds-alpha)))
		}
	}
	return notes, nil
}

// readGrids reads a file of the form MODEL: {ROWS: DURATION, ...}.
func readGrids(path string) (map[string]advise.Grid, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: --grid: %w", factory.ErrUsage, err)
	}
	var text map[string]map[int]string
	if err := yaml.UnmarshalWithOptions(data, &text, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", factory.ErrUsage, path, err)
	}
	grids := map[string]advise.Grid{}
	for model, sizes := range text {
		grid := advise.Grid{}
		for rows, duration := range sizes {
			d, err := time.ParseDuration(duration)
			if err != nil || d <= 0 || rows < 1 {
				return nil, fmt.Errorf("%w: %s: %s: %d: %q: write the time of a batch of 1 or more rows, such as 12.5ms", factory.ErrUsage, path, model, rows, duration)
			}
			grid[rows] = d
		}
		if len(grid) < 2 {
			return nil, fmt.Errorf("%w: %s: %s: the times of two batch sizes are the least", factory.ErrUsage, path, model)
		}
		grids[model] = grid
	}
	return grids, nil
}
