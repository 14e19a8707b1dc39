// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package observe

import (
	"math"
	"slices"
	"time"

	"gonum.org/v1/gonum/stat"
)

// Line is l(b) = Beta + Alpha*b, as an operator declares it.
type Line struct{ Alpha, Beta time.Duration }

// class is where a profile holds: executions on one GPU type at one share take
// the same time, wherever they are.
type class struct {
	gpuType string
	share   uint32
}

const (
	// memory is the number of recent executions of a batch size that its latency
	// is made of: enough for a deviation, few enough to follow a change.
	memory = 64
	// enough executions of a batch size outweigh what was calibrated or declared.
	enough = 5
	// maxRows bounds the batch sizes that are told apart.
	maxRows = 4096
)

// curve learns l(b) of one model in one class.
type curve struct {
	observed   map[int]*samples
	calibrated map[int]*samples
	// served is what a server counted of its own batches; while serving, nothing is
	// observed.
	served  map[int]*samples
	serving bool
	// ratio is the decaying mean of measured over baseline latency, judged
	// the number of executions in it.
	ratio      float64
	judged     int
	baseline   []point
	interfered bool
}

// samples holds the recent latencies of one batch size, in microseconds.
type samples struct {
	ring  []float32
	next  int
	total uint64
}

func newCurve() *curve {
	return &curve{observed: map[int]*samples{}, calibrated: map[int]*samples{}, served: map[int]*samples{}}
}

func (s *samples) add(us float64) {
	s.total++
	if len(s.ring) < memory {
		s.ring = append(s.ring, float32(us))
		return
	}
	s.ring[s.next] = float32(us)
	s.next = (s.next + 1) % memory
}

// mean and standard deviation after pulling the outermost twentieth on each
// side in to the next value (Winsor): one page fault or one garbage collection
// must not move a deadline. Of three values, which is what a warm-up has of a
// batch size, the median remains: a size that looks slow is not used, so that
// nothing would ever correct it.
func (s *samples) moments() (mean, deviation float64) {
	sorted := make([]float64, len(s.ring))
	for i, v := range s.ring {
		sorted[i] = float64(v)
	}
	slices.Sort(sorted)
	if n := len(sorted); n >= 3 {
		cut := (n + 19) / 20
		for i := range cut {
			sorted[i], sorted[n-1-i] = sorted[cut], sorted[n-1-cut]
		}
	}
	if len(sorted) < 2 {
		return sorted[0], 0
	}
	return stat.MeanStdDev(sorted, nil)
}

func bucketed(in map[int]*samples, rows int) *samples {
	rows = min(rows, maxRows)
	s := in[rows]
	if s == nil {
		s = &samples{}
		in[rows] = s
	}
	return s
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

func (c *curve) observe(rows int, took time.Duration) {
	if c.serving {
		return
	}
	us := microseconds(took)
	bucketed(c.observed, rows).add(us)
	c.judge(rows, us)
}

// calibrate replaces what an earlier warm-up measured.
func (c *curve) calibrate(all []Sample) {
	c.calibrated = map[int]*samples{}
	for _, s := range all {
		if s.Rows > 0 && s.Duration > 0 {
			bucketed(c.calibrated, s.Rows).add(microseconds(s.Duration))
		}
	}
	c.baseline, c.judged, c.interfered = nil, 0, false
}

// INFaaS (section 4.3) calls a model interfered when it takes 1.5 times its
// profile, and no longer when it takes less than 1.25 times.
const (
	interferedAt  = 1.5
	interferedEnd = 1.25
	// judgedOver executions make one verdict.
	judgedOver = 16
)

// judge compares an execution with the baseline.
func (c *curve) judge(rows int, us float64) {
	expected := at(c.baseline, rows)
	if expected <= 0 {
		return
	}
	c.judged++
	c.ratio += (us/expected - c.ratio) / float64(min(c.judged, judgedOver))
	if c.judged < judgedOver {
		return
	}
	if c.interfered {
		c.interfered = c.ratio >= interferedEnd
	} else {
		c.interfered = c.ratio > interferedAt
	}
}

// point is l(b) at one batch size, in microseconds.
type point struct {
	rows            int
	mean, deviation float64
	// count of observed executions behind it, all of them, not only the recent.
	count uint64
	// weight of the mean when points disagree about the order.
	weight   float64
	observed bool
}

// learnt is a curve's present shape.
type learnt struct {
	points []point
	// alpha is the slope above the last point; alpha and beta are the least
	// squares fit of l(b) = alpha b + beta.
	alpha, beta float64
	source      source
	usable      bool
	// why it is not usable.
	why string
}

type source int

const (
	nothing source = iota
	declared
	calibrated
	observed
)

// learn makes the present shape: observed batch sizes as they are, the others
// as calibrated (or declared), scaled by how the observed ones differ from
// that; monotone in b, because a bigger batch cannot be faster, and any
// inversion is noise that would make the queue see cliffs.
func (c *curve) learn(line *Line, maxBatch int) learnt {
	base, from := c.base(line, maxBatch)
	var points []point
	scale, scales := 0.0, 0.0
	seenThere := c.observed
	if c.serving {
		seenThere = c.served
	}
	for rows, s := range seenThere {
		if len(s.ring) < enough && at(base, rows) > 0 {
			continue
		}
		mean, deviation := s.moments()
		p := point{rows: rows, mean: mean, deviation: deviation, count: s.total, weight: float64(len(s.ring)), observed: true}
		if len(s.ring) < enough {
			// Too few to know how much they vary: leave room.
			p.deviation = max(deviation, mean/4)
		}
		points = append(points, p)
		if b := at(base, rows); b > 0 {
			scale += p.weight * mean / b
			scales += p.weight
		}
	}
	if scales > 0 {
		scale /= scales
	} else {
		scale = 1
	}
	seen := len(points)
	for _, b := range base {
		if s := seenThere[b.rows]; s == nil || len(s.ring) < enough {
			points = append(points, point{rows: b.rows, mean: b.mean * scale, deviation: b.deviation * scale, weight: max(1, b.weight)})
		}
	}
	slices.SortFunc(points, func(a, b point) int { return a.rows - b.rows })
	monotone(points)
	l := learnt{points: points, source: from}
	if seen > 0 {
		l.source = observed
	}
	l.fit()
	l.usable, l.why = c.usable(from, points, maxBatch)
	return l
}

// base is what was known before anything was observed.
func (c *curve) base(line *Line, maxBatch int) ([]point, source) {
	// What a server counted while it batched itself is as good as a calibration once
	// Conch batches.
	known := c.calibrated
	if len(known) == 0 && !c.serving {
		known = c.served
	}
	if len(known) > 0 {
		base := make([]point, 0, len(known))
		for rows, s := range known {
			mean, deviation := s.moments()
			base = append(base, point{rows: rows, mean: mean, deviation: deviation, weight: float64(len(s.ring))})
		}
		slices.SortFunc(base, func(a, b point) int { return a.rows - b.rows })
		if len(c.calibrated) == 0 && !slices.ContainsFunc(base, func(p point) bool { return p.rows > 1 && p.weight >= enough }) {
			return base, nothing // nobody chose what was served: one row alone says nothing of batches
		}
		return base, calibrated
	}
	if line != nil {
		// Two points are a line.
		var base []point
		for _, rows := range slices.Compact([]int{1, max(1, maxBatch)}) {
			base = append(base, point{rows: rows, mean: microseconds(line.Beta) + microseconds(line.Alpha)*float64(rows), weight: 1})
		}
		return base, declared
	}
	return nil, nothing
}

// usable says whether deadlines may be planned with the curve: what was
// declared or calibrated is; what was only observed needs two batch sizes, seen
// often enough to know how much they vary, unless the model has only one.
func (c *curve) usable(from source, points []point, maxBatch int) (bool, string) {
	if from != nothing {
		return true, ""
	}
	sure := 0
	for _, p := range points {
		if p.weight >= enough {
			sure++
		}
	}
	switch {
	case sure >= 2, sure == 1 && maxBatch <= 1:
		return true, ""
	case len(points) == 0:
		return false, "nothing was observed yet"
	case sure == 1:
		return false, "only one batch size was observed often enough"
	default:
		return false, "no batch size was observed often enough"
	}
}

// monotone is isotonic regression by pooling adjacent violators: the nearest
// non-decreasing means, in weighted least squares.
func monotone(points []point) {
	type block struct {
		mean, weight float64
		count        int
	}
	var blocks []block
	for _, p := range points {
		blocks = append(blocks, block{p.mean, p.weight, 1})
		for n := len(blocks); n > 1 && blocks[n-2].mean > blocks[n-1].mean; n = len(blocks) {
			a, b := blocks[n-2], blocks[n-1]
			w := a.weight + b.weight
			blocks = append(blocks[:n-2], block{(a.mean*a.weight + b.mean*b.weight) / w, w, a.count + b.count})
		}
	}
	i := 0
	for _, b := range blocks {
		for range b.count {
			points[i].mean = b.mean
			i++
		}
	}
}

// fit computes alpha and beta by weighted least squares.
func (l *learnt) fit() {
	switch len(l.points) {
	case 0:
		return
	case 1:
		// Nothing says that larger batches are any cheaper a row.
		l.alpha = l.points[0].mean / float64(l.points[0].rows)
		return
	}
	var x, y, w []float64
	for _, p := range l.points {
		x, y, w = append(x, float64(p.rows)), append(y, p.mean), append(w, p.weight)
	}
	l.beta, l.alpha = stat.LinearRegression(x, y, w, false)
	if l.alpha < 0 || math.IsNaN(l.alpha) {
		l.beta, l.alpha = stat.Mean(y, w), 0
	}
}

// latency is the mean and deviation at any batch size: on the points as they
// are, between them along the straight line, below the first one down the
// fitted slope, above the last one up the larger of the fitted slope and the
// last step's.
func (l *learnt) latency(rows int) (mean, deviation float64) {
	p := l.points
	i, found := slices.BinarySearchFunc(p, rows, func(q point, rows int) int { return q.rows - rows })
	switch {
	case found:
		return p[i].mean, p[i].deviation
	case i == 0:
		first := p[0]
		mean = max(first.mean-l.alpha*float64(first.rows-rows), first.mean*float64(rows)/float64(first.rows))
		return mean, first.deviation
	case i == len(p):
		last := p[i-1]
		slope := l.alpha
		if i > 1 {
			slope = max(slope, (last.mean-p[i-2].mean)/float64(last.rows-p[i-2].rows))
		}
		mean = last.mean + slope*float64(rows-last.rows)
		return mean, last.deviation * mean / last.mean
	}
	a, b := p[i-1], p[i]
	f := float64(rows-a.rows) / float64(b.rows-a.rows)
	return a.mean + f*(b.mean-a.mean), max(a.deviation, b.deviation)
}

// at is the mean of a list of points at a batch size, along straight lines and
// flat outside; 0 for an empty list.
func at(points []point, rows int) float64 {
	if len(points) == 0 {
		return 0
	}
	i, found := slices.BinarySearchFunc(points, rows, func(q point, rows int) int { return q.rows - rows })
	if found {
		return points[i].mean
	}
	if i == 0 {
		return points[0].mean
	}
	if i == len(points) {
		return points[i-1].mean
	}
	a, b := points[i-1], points[i]
	return a.mean + (b.mean-a.mean)*float64(rows-a.rows)/float64(b.rows-a.rows)
}
