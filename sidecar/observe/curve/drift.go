// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package curve

import "time"

// INFaaS (section 4.3) calls a model interfered when it takes 1.5 times its profile, and
// no longer when it takes less than 1.25 times.
const (
	interferedAt  = 1.5
	interferedEnd = 1.25
	// judgedOver executions make one verdict.
	judgedOver = 16
	// A verdict must hold for heldFor before it counts, and for changesApart after the
	// last change: what comes and goes within seconds is no reason for another plan.
	heldFor      = 10 * time.Second
	changesApart = time.Minute
	// A curve that fell below this part of the baseline becomes the baseline: it had been
	// taken on a disturbed machine.
	betterBaseline = .8
)

// drift holds executions against a baseline.
type drift struct {
	baseline []point
	// ratio is the decaying mean of measured over baseline latency, judged the number
	// of executions in it.
	ratio      float64
	judged     int
	interfered bool
	// since is when the verdict began to differ from interfered, changed when
	// interfered last changed.
	since, changed time.Time
}

func (d *drift) restart() { *d = drift{interfered: d.interfered, changed: d.changed} }

// expected is what the baseline says of a batch size, in microseconds; 0: nothing.
func (d *drift) expected(rows int) float64 { return at(d.baseline, rows) }

// judge takes an execution of us microseconds of which expected were known; 0: nothing was.
func (d *drift) judge(expected, us float64, now time.Time) {
	if expected <= 0 {
		return
	}
	d.judged++
	d.ratio += (us/expected - d.ratio) / float64(min(d.judged, judgedOver))
	if d.judged < judgedOver {
		return
	}
	verdict := d.ratio > interferedAt
	if d.interfered {
		verdict = d.ratio >= interferedEnd
	}
	switch {
	case verdict == d.interfered:
		d.since = time.Time{}
	case d.since.IsZero():
		d.since = now
	case now.Sub(d.since) >= heldFor && (d.changed.IsZero() || now.Sub(d.changed) >= changesApart):
		d.interfered, d.changed, d.since = verdict, now, time.Time{}
	}
}

// follow takes a usable curve as the baseline if there is none, or if its sizes that are
// executed are surely faster than that.
func (d *drift) follow(l *Learnt) {
	if !l.Usable {
		return
	}
	if d.baseline != nil {
		fresh, faster := 0, 0
		for _, p := range l.points {
			if p.evidence >= sure {
				fresh++
				if p.mean < betterBaseline*at(d.baseline, p.rows) {
					faster++
				}
			}
		}
		if 2*faster <= fresh || fresh == 0 {
			return
		}
		d.ratio, d.judged = 0, 0
	}
	d.baseline = l.points
}

// Pace holds the executions of one instance against the baseline of a curve that
// others have executed for, too. The zero value has seen none. It is not safe for
// concurrent use.
type Pace struct{ drift drift }

// Judge takes an execution that ended at a moment, after the curve observed it.
func (p *Pace) Judge(c *Curve, rows int, took time.Duration, ended time.Time) {
	if !c.serving {
		p.drift.judge(c.drift.expected(rows), max(leastMicroseconds, microseconds(took)), ended)
	}
}

// Interfered reports whether this instance has taken half as long again as was known, for a while.
func (p *Pace) Interfered() bool { return p.drift.interfered }
