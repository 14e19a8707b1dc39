// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package policy

// Creq is the compute requirement of a batch at a share, as a fraction of the GPU
// (USHER, section 3.2), interpolated on the grid of the profile; false where no point
// knows it.
func (p *Profile) Creq(batch, share uint32) (float64, bool) {
	return p.known(batch, share, (*ProfilePoint).GetCreq)
}

// Mreq is the memory requirement of a batch: peak bytes over the GPU's memory. Rules
// as of [Profile.Creq].
func (p *Profile) Mreq(batch, share uint32) (float64, bool) {
	return p.known(batch, share, (*ProfilePoint).GetMreq)
}

// Bandwidth is the DRAM bandwidth utilisation of a batch as a fraction of the GPU's
// (gpulet, section 4.4). Rules as of [Profile.Creq].
func (p *Profile) Bandwidth(batch, share uint32) (float64, bool) {
	return p.known(batch, share, (*ProfilePoint).GetBandwidthUtilization)
}

// L2 is the L2 utilisation of a batch. Rules as of [Profile.Creq].
func (p *Profile) L2(batch, share uint32) (float64, bool) {
	return p.known(batch, share, (*ProfilePoint).GetL2Utilization)
}

// known interpolates a quantity over the points that know it: linear in the batch and
// in the share between neighbours, constant outside the grid.
func (p *Profile) known(batch, share uint32, of func(*ProfilePoint) *Estimate) (float64, bool) {
	if batch == 0 || share == 0 {
		return 0, false
	}
	var below, above []*ProfilePoint
	points := p.GetPoints()
	for start := 0; start < len(points); {
		s, end := points[start].GetThreadPercentage(), start+1
		for end < len(points) && points[end].GetThreadPercentage() == s {
			end++
		}
		var row []*ProfilePoint
		for _, q := range points[start:end] {
			if of(q).GetValue() > 0 {
				row = append(row, q)
			}
		}
		start = end
		switch {
		case len(row) == 0:
		case s <= share:
			below = row
		case above == nil:
			above = row
		}
	}
	switch {
	case below == nil && above == nil:
		return 0, false
	case below == nil:
		return alongRow(above, batch, of), true
	case above == nil || below[0].GetThreadPercentage() == share:
		return alongRow(below, batch, of), true
	}
	low, high := float64(below[0].GetThreadPercentage()), float64(above[0].GetThreadPercentage())
	weight := (float64(share) - low) / (high - low)
	a, b := alongRow(below, batch, of), alongRow(above, batch, of)
	return a + (b-a)*weight, true
}

func alongRow(row []*ProfilePoint, batch uint32, of func(*ProfilePoint) *Estimate) float64 {
	for i, q := range row {
		if batch > q.GetBatch() {
			continue
		}
		if i == 0 || batch == q.GetBatch() {
			return of(q).GetValue()
		}
		p := row[i-1]
		weight := float64(batch-p.GetBatch()) / float64(q.GetBatch()-p.GetBatch())
		return of(p).GetValue() + (of(q).GetValue()-of(p).GetValue())*weight
	}
	return of(row[len(row)-1]).GetValue()
}
