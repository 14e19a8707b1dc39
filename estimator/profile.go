// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
)

// columns of a profile's CSV form, after model, gpu_type and source.
var columns = []string{"batch", "thread_percentage", "latency_us", "error_bound_us", "creq", "mreq", "bandwidth_utilization", "l2_utilization"}

// WriteCSV writes the profile as rows with the names of its JSON form.
func (p *Profile) WriteCSV(w io.Writer) error {
	c := csv.NewWriter(w)
	rows := [][]string{append([]string{"model", "gpu_type", "source"}, columns...)}
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }
	for _, q := range p.Points {
		rows = append(rows, []string{
			p.Model, p.GPUType, p.Source, strconv.Itoa(q.Batch), strconv.Itoa(q.ThreadPercentage), number(q.LatencyUs), number(q.ErrorBoundUs),
			number(q.Creq), number(q.Mreq), number(q.BandwidthUtilization), number(q.L2Utilization),
		})
	}
	return c.WriteAll(rows)
}

// WriteFile writes the profile as JSON or CSV, as the file's name ends.
func (p *Profile) WriteFile(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	switch filepath.Ext(path) {
	case ".json":
		e := json.NewEncoder(f)
		e.SetIndent("", "  ")
		err = e.Encode(p)
	case ".csv":
		err = p.WriteCSV(f)
	default:
		err = fmt.Errorf("%s: a profile is written as .json or .csv", path)
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}
