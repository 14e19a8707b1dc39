// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package curve

import (
	"math"
	"slices"
	"time"
)

const (
	// perSecond is how many executions of a size are kept of each second, memory of how
	// many seconds.
	perSecond = 8
	memory    = 24
	// exactRows is the largest batch size that has a cell of its own; above it
	// sixteenths of an octave have one.
	exactRows, octave = 64, 16
	// maxRows is the largest batch size at all.
	maxRows = 4096
)

// Curve holds what was measured of one model on one GPU type at one share. The zero
// value has measured nothing. It is not safe for concurrent use.
type Curve struct {
	observed, calibrated, served map[int]*size
	// serving is true while a server batches by itself: its own statistics are then
	// the curve, and round trips are not.
	serving    bool
	calibrates uint32 // when the calibration was, Unix seconds
	drift      drift
	changes    uint64
}

// Clone returns a curve of the same measurements, to learn from while this one goes on.
func (c *Curve) Clone() *Curve {
	clone := *c
	for _, in := range []*map[int]*size{&clone.observed, &clone.calibrated, &clone.served} {
		sizes := make(map[int]*size, len(*in))
		for rows, s := range *in {
			copied := *s
			copied.ring = slices.Clone(s.ring)
			sizes[rows] = &copied
		}
		*in = sizes
	}
	return &clone
}

// Changes counts what was measured, so that a caller does not learn twice from the same.
func (c *Curve) Changes() uint64 { return c.changes }

// size holds the recent executions of one batch size.
type size struct {
	ring  []cell
	next  int // the oldest cell, once the ring is full
	last  int // the newest
	total uint64
}

// cell holds executions of one size in one second.
type cell struct {
	second uint32 // Unix
	n      uint32
	us     [perSecond]float32
	log    float64 // of their mean in microseconds, once the second is over
	// shift is by how much, as a logarithm, a better known size was slower in that second
	// than it was later: kept here because that size forgets the second sooner.
	shift float64
}

// Sample is one timed execution.
type Sample struct {
	Rows int
	Took time.Duration
}

// bucket is the batch size that an execution counts for.
func bucket(rows int) int {
	if rows <= exactRows {
		return rows
	}
	return min(maxRows, int(math.Round(math.Exp2(math.Round(octave*math.Log2(float64(rows)))/octave))))
}

func find(in *map[int]*size, rows int) *size {
	if rows > exactRows {
		rows = bucket(rows)
	}
	s := (*in)[rows]
	if s == nil {
		if *in == nil {
			*in = map[int]*size{}
		}
		s = &size{}
		(*in)[rows] = s
	}
	return s
}

func unix(at time.Time) uint32 { return uint32(max(0, at.Unix())) }

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// add keeps an execution, unless enough are kept of its second.
func (s *size) add(us float64, second uint32) {
	s.total++
	if len(s.ring) > 0 {
		c := &s.ring[s.last]
		if c.second == second {
			if c.n < perSecond {
				c.us[c.n] = float32(us)
				c.n++
			}
			return
		}
		c.close()
	}
	if len(s.ring) < memory {
		s.last = len(s.ring)
		s.ring = append(s.ring, cell{})
	} else {
		s.last, s.next = s.next, (s.next+1)%memory
	}
	s.ring[s.last] = cell{second: second, n: 1, us: [perSecond]float32{float32(us)}}
}

// close computes what all executions of the second are together.
func (c *cell) close() {
	var values [perSecond]float64
	for i, us := range c.us[:c.n] {
		values[i] = float64(us)
	}
	mean, _ := moments(values[:c.n])
	c.log = math.Log(mean)
}

// Observe takes an execution that ended at a moment.
func (c *Curve) Observe(rows int, took time.Duration, at time.Time) {
	if c.serving {
		return
	}
	c.changes++
	us := max(leastMicroseconds, microseconds(took))
	find(&c.observed, rows).add(us, unix(at))
	c.drift.judge(c.drift.expected(rows), us, at)
}

// Calibrate takes what a warm-up measured at a moment, in place of what an earlier one did.
func (c *Curve) Calibrate(all []Sample, at time.Time) {
	c.changes++
	c.calibrated = nil
	c.calibrates = unix(at)
	for _, s := range all {
		if s.Rows > 0 && s.Took > 0 {
			find(&c.calibrated, s.Rows).add(microseconds(s.Took), c.calibrates)
		}
	}
	c.drift.restart()
}

// Serve takes executions that a server counted of its own batches, with their mean: how
// much they vary is not known. They are the curve until Unserve.
func (c *Curve) Serve(rows int, count uint64, mean time.Duration, at time.Time) {
	c.serving = true
	c.changes++
	if rows < 1 || mean <= 0 || count == 0 {
		return
	}
	s := find(&c.served, rows)
	for range min(count, perSecond) {
		s.add(microseconds(mean), unix(at))
	}
	s.total += count - min(count, perSecond)
}

// Unserve is called when the server no longer batches by itself: its statistics then
// count like a calibration, and the round trips measured meanwhile are dropped.
func (c *Curve) Unserve() {
	if !c.serving {
		return
	}
	c.serving = false
	c.changes++
	c.observed = nil
	c.drift.restart()
}

// Follow takes over what was learnt from a clone: which seconds were disturbed, and the
// baseline that executions are held against from here on.
func (c *Curve) Follow(l *Learnt) {
	for _, s := range c.observed {
		for i := range s.ring {
			if v := l.shifts[s.ring[i].second]; v != nil && v.sure && s.ring[i].second+past <= l.second {
				s.ring[i].shift = v.shift()
			}
		}
	}
	c.drift.follow(l)
}

// Interfered reports whether executions have taken half as long again as was known, for a while.
func (c *Curve) Interfered() bool { return c.drift.interfered }

// newest is the last second in which anything was measured.
func (c *Curve) newest() (second uint32) {
	for _, in := range []map[int]*size{c.observed, c.calibrated, c.served} {
		for _, s := range in {
			second = max(second, s.ring[s.last].second)
		}
	}
	return second
}

// moments are the mean and the standard deviation after pulling the outermost twentieth
// on each side, one value at least, in to the next value (Winsor): one page fault or one
// garbage collection must not move a deadline. Of three values the median remains. The
// values are sorted in place.
func moments(sorted []float64) (mean, deviation float64) {
	slices.Sort(sorted)
	if n := len(sorted); n >= 3 {
		cut := (n + 19) / 20
		for i := range cut {
			sorted[i], sorted[n-1-i] = sorted[cut], sorted[n-1-cut]
		}
	}
	for _, v := range sorted {
		mean += v
	}
	mean /= float64(len(sorted))
	if len(sorted) < 2 {
		return mean, 0
	}
	for _, v := range sorted {
		deviation += (v - mean) * (v - mean)
	}
	return mean, math.Sqrt(deviation / float64(len(sorted)-1))
}
