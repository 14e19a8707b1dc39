// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/conch-serving/conch/sidecar/sim"
)

// mostGPUs are shown by name; of more, the busiest.
const mostGPUs = 32

// gpuTable says how busy each GPU was under each side.
type gpuTable struct {
	Sides []string
	Rows  []gpuRow
	More  int
}

type gpuRow struct {
	Name string
	Busy []gpuBusy
}

// gpuBusy is the part of the time that counts in which a GPU executed, from 0 to 1; partitions count by their share of the GPU.
type gpuBusy struct {
	Side  int
	Known bool
	Share float64
}

// Width is that of the bar, in its drawing's units.
func (b gpuBusy) Width() string { return fmt.Sprintf("%.1f", 100*min(1, b.Share)) }

// Text is the number beside it.
func (b gpuBusy) Text() string { return fmt.Sprintf("%.0f%%", 100*b.Share) }

// gpus is nil where no side says anything of partitions.
func gpus(sides []Side) *gpuTable {
	t := &gpuTable{}
	at := map[string]int{}
	for i, s := range sides {
		t.Sides = append(t.Sides, s.Name)
		if s.Result == nil {
			continue
		}
		for _, p := range s.Result.Partitions {
			k, known := at[p.GPU]
			if !known {
				k = len(t.Rows)
				at[p.GPU] = k
				t.Rows = append(t.Rows, gpuRow{Name: cmp.Or(p.GPU, "CPU"), Busy: make([]gpuBusy, len(sides))})
				for n := range sides {
					t.Rows[k].Busy[n] = gpuBusy{Side: n}
				}
			}
			b := &t.Rows[k].Busy[i]
			b.Known = true
			b.Share += p.BusyShare * inForce(s.Result, p) * float64(p.ThreadPercentage) / 100
		}
	}
	if len(t.Rows) == 0 {
		return nil
	}
	if len(t.Rows) > mostGPUs {
		busiest := func(r gpuRow) (most float64) {
			for _, b := range r.Busy {
				most = max(most, b.Share)
			}
			return most
		}
		slices.SortStableFunc(t.Rows, func(a, b gpuRow) int { return cmp.Compare(busiest(b), busiest(a)) })
		t.More = len(t.Rows) - mostGPUs
		t.Rows = t.Rows[:mostGPUs]
	}
	return t
}

// inForce is for which part of the counted time a partition was in force.
func inForce(r *sim.Result, p sim.PartitionResult) float64 {
	from, until := max(p.FromSeconds, r.WarmupSeconds), min(p.UntilSeconds, r.WarmupSeconds+r.Seconds)
	if r.Seconds <= 0 {
		return 0
	}
	return max(0, until-from) / r.Seconds
}
