// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimator

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/conch-serving/conch/plugins/policy/grid"
)

// WriteProfile writes a profile as JSON or CSV, as the file's name ends: a file that profiles: of conch.yaml reads.
func WriteProfile(path string, p grid.Profile) error {
	p.Points = slices.SortedFunc(slices.Values(p.Points), func(a, b grid.Point) int {
		return cmp.Or(cmp.Compare(a.ThreadPercentage, b.ThreadPercentage), cmp.Compare(a.Batch, b.Batch))
	})
	var text bytes.Buffer
	var err error
	switch filepath.Ext(path) {
	case ".json":
		err = grid.Write(&text, p)
	case ".csv":
		err = writeCSV(&text, p)
	default:
		err = fmt.Errorf("%s: a profile is written as .json or .csv", path)
	}
	if err != nil {
		return err
	}
	return os.WriteFile(path, text.Bytes(), 0o644)
}

func writeCSV(text *bytes.Buffer, p grid.Profile) error {
	rows := [][]string{{"model", "gpu_type", "source", "batch", "thread_percentage", "latency_us", "error_bound_us", "creq", "mreq", "bandwidth_utilization", "l2_utilization"}}
	whole := func(v uint32) string { return strconv.FormatUint(uint64(v), 10) }
	number := func(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }
	for _, q := range p.Points {
		rows = append(rows, []string{
			p.Model, p.GPUType, p.Source, whole(q.Batch), whole(q.ThreadPercentage), number(q.LatencyUS), number(q.ErrorBoundUS),
			number(q.Creq), number(q.Mreq), number(q.BandwidthUtilization), number(q.L2Utilization),
		})
	}
	return csv.NewWriter(text).WriteAll(rows)
}
