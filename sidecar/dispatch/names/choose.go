// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package names

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// App is a name that clients ask for by accuracy and latency (INFaaS, section 3).
type App struct {
	// Wish of a request that gives none.
	Wish Wish
	// Variants that can serve it: those that run first, cheapest first.
	Variants []Variant
}

// Variant is a model that can serve an app.
type Variant struct {
	Model    string
	Accuracy float64
	// Latency that it promises, queueing included; 0: it promises none.
	Latency time.Duration
	// Weight is the rows per second that the plan assigns to the variant, or a
	// share in proportion to those of the others; 0: it serves only where no other
	// can.
	Weight float64
	State  State
	// Wait is the time to load an inactive one and run it once.
	Wait time.Duration
}

// State of a variant (INFaaS, figure 4; overloaded and interfered ones are active
// here, with the weight that the policy gave them).
type State uint8

const (
	// Inactive variants have no place.
	Inactive State = iota
	// Starting variants have places, none of which is ready.
	Starting
	// Active variants are ready somewhere.
	Active
)

// String is the paper's name.
func (s State) String() string { return [...]string{"inactive", "starting", "active"}[s] }

// Wish is what a request asks for besides its name. Zero fields ask for nothing.
type Wish struct {
	// Accuracy is the least.
	Accuracy float64
	// Latency is the most, queueing included.
	Latency time.Duration
}

// String describes the wish for error texts.
func (w Wish) String() string {
	switch {
	case w.Accuracy > 0 && w.Latency > 0:
		return fmt.Sprintf("an accuracy of at least %.4g within %v", w.Accuracy, w.Latency)
	case w.Accuracy > 0:
		return fmt.Sprintf("an accuracy of at least %.4g", w.Accuracy)
	case w.Latency > 0:
		return fmt.Sprintf("an answer within %v", w.Latency)
	}
	return "no wish"
}

// meets reports whether a variant meets a wish.
func (v *Variant) meets(w Wish) bool {
	return v.Accuracy >= w.Accuracy-1e-9 && (w.Latency <= 0 || v.Latency > 0 && v.Latency <= w.Latency)
}

// burst is how much of its weight a variant may take ahead of time: arrivals are
// uneven, and the cheapest variant is to be used.
const burst = 250 * time.Millisecond

// Chooser distributes the requests for an app over its variants. A request goes to
// the cheapest active variant that meets its wish and has taken no more than its
// weight. Where all have taken more, requests are distributed in proportion to the
// weights. It is safe for concurrent use, and its choices depend on the calls
// alone.
type Chooser struct {
	app *App

	mu sync.Mutex
	// taken are the rows that each variant took, less those processed since at the
	// rate of its weight.
	taken []float64
	last  time.Duration
}

// NewChooser makes a chooser that has chosen nothing yet.
func NewChooser(a *App) *Chooser { return &Chooser{app: a, taken: make([]float64, len(a.Variants))} }

// resume takes over the state of a chooser of the same app.
func (c *Chooser) resume(before *Chooser) {
	before.mu.Lock()
	defer before.mu.Unlock()
	c.last = before.last
	for i, v := range c.app.Variants {
		for j, old := range before.app.Variants {
			if v.Model == old.Model {
				c.taken[i] = before.taken[j]
			}
		}
	}
}

// Choose returns the index in App.Variants of the variant that serves rows with a
// wish (algorithm 1): an active one, or else one that starts, or else the inactive
// one that could answer soonest, which the caller has to have started. The error
// is a gRPC status error that lists the variants.
func (c *Chooser) Choose(name string, w Wish, rows int, at time.Duration) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.work(at)
	roomy, least, first := -1, -1, -1
	excess := math.Inf(1)
	for i := range c.app.Variants {
		v := &c.app.Variants[i]
		if v.State != Active || !v.meets(w) {
			continue
		}
		if first < 0 {
			first = i
		}
		if v.Weight <= 0 {
			continue
		}
		room := math.Max(float64(rows), v.Weight*burst.Seconds())
		if roomy < 0 && c.taken[i]+float64(rows) <= room {
			roomy = i
		}
		if e := (c.taken[i] + float64(rows) - room) / v.Weight; e < excess {
			least, excess = i, e
		}
	}
	switch {
	case roomy >= 0:
		c.taken[roomy] += float64(rows)
		return roomy, nil
	case least >= 0:
		c.taken[least] += float64(rows)
		c.forgive(w, rows)
		return least, nil
	case first >= 0:
		return first, nil
	}
	return c.idle(name, w)
}

// work subtracts the rows processed since the last choice.
func (c *Chooser) work(at time.Duration) {
	if at <= c.last {
		return
	}
	for i, v := range c.app.Variants {
		c.taken[i] = math.Max(0, c.taken[i]-v.Weight*(at-c.last).Seconds())
	}
	c.last = at
}

// forgive subtracts the excess that all active variants that meet a wish have in
// common: overload that is over is no reason to avoid the cheapest.
func (c *Chooser) forgive(w Wish, rows int) {
	common := math.Inf(1)
	each := func(visit func(i int, v *Variant)) {
		for i := range c.app.Variants {
			if v := &c.app.Variants[i]; v.State == Active && v.Weight > 0 && v.meets(w) {
				visit(i, v)
			}
		}
	}
	each(func(i int, v *Variant) {
		room := math.Max(float64(rows), v.Weight*burst.Seconds())
		common = math.Min(common, (c.taken[i]-room)/v.Weight)
	})
	if common <= 0 {
		return
	}
	each(func(i int, v *Variant) { c.taken[i] -= common * v.Weight })
}

// idle finds a variant for a wish that no active one meets.
func (c *Chooser) idle(name string, w Wish) (int, error) {
	best := -1
	for i := range c.app.Variants {
		v := &c.app.Variants[i]
		if !v.meets(w) {
			continue
		}
		if v.State == Starting {
			return i, nil
		}
		if best < 0 || v.Wait < c.app.Variants[best].Wait {
			best = i
		}
	}
	if best < 0 {
		return -1, c.impossible(name, w)
	}
	return best, nil
}

// impossible returns the error for a wish that no variant meets, which lists the
// variants (suggestVariant of algorithm 1).
func (c *Chooser) impossible(name string, w Wish) error {
	if len(c.app.Variants) == 0 {
		return &unmetError{status.Newf(codes.Unavailable, "'%s' has no variant that could be served", name)}
	}
	all := make([]string, len(c.app.Variants))
	for i, v := range c.app.Variants {
		all[i] = fmt.Sprintf("'%s' with accuracy %.4g", v.Model, v.Accuracy)
		if v.Latency > 0 {
			all[i] += fmt.Sprintf(" within %v", v.Latency)
		}
		if v.State != Active {
			all[i] += " (" + v.State.String() + ")"
		}
	}
	return &unmetError{status.Newf(codes.InvalidArgument, "no variant of '%s' has %v; there is %s", name, w, strings.Join(all, ", "))}
}

// unmetError: an app has no variant that meets a wish, running or not.
type unmetError struct{ s *status.Status }

// Error is that of the status.
func (e *unmetError) Error() string { return e.s.Err().Error() }

// GRPCStatus makes it a gRPC status error.
func (e *unmetError) GRPCStatus() *status.Status { return e.s }

// Unmet reports whether an error of a Resolver means that no variant of the app
// meets the wish, running or not.
func Unmet(err error) bool {
	var unmet *unmetError
	return errors.As(err, &unmet)
}
