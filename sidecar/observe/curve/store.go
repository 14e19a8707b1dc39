// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package curve

import "math"

// Stored is a curve as it is kept across restarts.
type Stored struct {
	Observed   map[int]StoredSize `json:"observed,omitempty"`
	Calibrated map[int]StoredSize `json:"calibrated,omitempty"`
	Served     map[int]StoredSize `json:"served,omitempty"`
	// CalibratedAt is when the calibration was, Unix seconds.
	CalibratedAt uint32 `json:"calibrated_at,omitempty"`
}

// StoredSize is what was measured of one batch size: latencies, and the Unix second of each.
type StoredSize struct {
	Microseconds []float32 `json:"us"`
	Seconds      []uint32  `json:"at"`
	Total        uint64    `json:"total"`
}

// Store returns what was measured, without what is known to have disturbed it.
func (c *Curve) Store() Stored {
	return Stored{Observed: pack(c.observed), Calibrated: pack(c.calibrated), Served: pack(c.served), CalibratedAt: c.calibrates}
}

// Restore makes a curve of what Store returned. What makes no sense in it is left out.
func Restore(s Stored) *Curve {
	return &Curve{observed: unpack(s.Observed), calibrated: unpack(s.Calibrated), served: unpack(s.Served), calibrates: s.CalibratedAt}
}

func pack(in map[int]*size) map[int]StoredSize {
	out := map[int]StoredSize{}
	for rows, s := range in {
		stored := StoredSize{Total: s.total}
		for i := range s.ring {
			c := s.ring[(s.next+i)%len(s.ring)]
			undisturbed := float32(math.Exp(-c.shift))
			for _, us := range c.us[:c.n] {
				stored.Microseconds, stored.Seconds = append(stored.Microseconds, us*undisturbed), append(stored.Seconds, c.second)
			}
		}
		out[rows] = stored
	}
	return out
}

func unpack(in map[int]StoredSize) map[int]*size {
	out := map[int]*size{}
	for rows, stored := range in {
		if rows < 1 || rows > maxRows || len(stored.Seconds) != len(stored.Microseconds) {
			continue
		}
		s := &size{}
		for i, us := range stored.Microseconds {
			if us > 0 && !math.IsInf(float64(us), 0) {
				s.add(float64(us), stored.Seconds[i])
			}
		}
		s.total = stored.Total
		if len(s.ring) > 0 {
			out[rows] = s
		}
	}
	return out
}
