// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package zoo

import (
	"bytes"
	"cmp"
	"fmt"
	"time"
)

// Point is what an emulated model takes with one batch at one share of a GPU.
type Point struct {
	Batch, Share int
	Latency      time.Duration
	// Creq is the part of the GPU's compute that it uses, Mreq of its memory; L2 and Bandwidth are utilisations. All are fractions of the GPU.
	Creq, Mreq, L2, Bandwidth float64
}

// Grid is what the model emulates, at batches of 1 and powers of two up to the largest, and at every tenth of the GPU and the halves between: l(b) in
// inverse proportion to the share below the knee, compute up to the knee, utilisations in proportion to the share.
func (m Model) Grid() []Point {
	p := m.Profile.Stretched(cmp.Or(m.Stretch, 1))
	knee := cmp.Or(m.Knee, 100)
	var batches []int
	for b := 1; b < m.MaxBatchSize; b *= 2 {
		batches = append(batches, b)
	}
	batches = append(batches, m.MaxBatchSize)
	var all []Point
	for share := 5; share <= 100; share += 5 {
		part := float64(share) / 100
		for _, b := range batches {
			whole := float64(p.Latency(b))
			all = append(all, Point{
				Batch: b, Share: share, Latency: time.Duration(whole * float64(knee) / float64(min(share, knee))),
				Creq: float64(min(share, knee)) / 100, Mreq: m.Mreq, L2: cmp.Or(m.L2, .3) * part, Bandwidth: cmp.Or(m.Bandwidth, .3) * part,
			})
		}
	}
	return all
}

// profileCSV is the grid as the profile file that Conch reads beside config.pbtxt.
func (m Model) profileCSV() []byte {
	var b bytes.Buffer
	b.WriteString("model,batch,thread_percentage,latency_us,creq,mreq,bandwidth_utilization,l2_utilization\n")
	for _, q := range m.Grid() {
		fmt.Fprintf(&b, "%s,%d,%d,%s,%s,%s,%s,%s\n", m.name(), q.Batch, q.Share, number(float64(q.Latency)/float64(time.Microsecond)),
			number(q.Creq), number(q.Mreq), number(q.Bandwidth), number(q.L2))
	}
	return b.Bytes()
}
