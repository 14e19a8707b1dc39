// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/charmbracelet/x/ansi"
)

const (
	// every is how often the line is drawn again, so that time goes on in it while a step takes long.
	every = time.Second
	// soonest is the least time between two drawings: a terminal at the end of a slow connection keeps up.
	soonest = 100 * time.Millisecond
	// wipe goes to the start of the line and clears it.
	wipe = "\r\x1b[K"
	// bar is the width of the bar; fewest columns leave room for it.
	bar, fewest = 20, 60
)

// Task is something that takes long. Its methods may be called by several goroutines, and do nothing on a nil *Task.
type Task struct {
	out     io.Writer
	columns func() int
	what    string
	begun   time.Time
	stop    chan struct{}
	stopped sync.WaitGroup

	mu     sync.Mutex
	detail string
	// first and last are the first and the last state of the work of which it was known how much there is.
	first, last state
	// lasts is set for what ends by itself after that time.
	lasts time.Duration
	drawn time.Time
	ended bool
}

// state of the work at a time: the fraction that is done.
type state struct {
	at   time.Time
	done float64
}

// Begin shows what a command begins to do. The columns of the terminal are asked for at every drawing; below 1 they are not known.
func Begin(out io.Writer, columns func() int, what string) *Task {
	t := &Task{out: out, columns: columns, what: what, begun: time.Now(), stop: make(chan struct{})}
	t.draw()
	t.stopped.Go(func() {
		ticks := time.NewTicker(every)
		defer ticks.Stop()
		for {
			select {
			case <-t.stop:
				return
			case <-ticks.C:
				t.mu.Lock()
				t.draw()
				t.mu.Unlock()
			}
		}
	})
	return t
}

// At says how far the task is: so much is done of all, in any unit, and the detail is what is being done now. With all of 0 it is not
// known how much there is. The time that is left is estimated by how fast the work went since the first call with another all than 0:
// work may go on where an earlier command ended.
func (t *Task) At(done, all float64, detail string) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.detail = detail
	if all > 0 {
		t.last = state{time.Now(), math.Min(1, math.Max(0, done/all))}
		if t.first.at.IsZero() {
			t.first = t.last
		}
	}
	if time.Since(t.drawn) >= soonest {
		t.draw()
	}
}

// Lasts says that the task ends by itself so long after it has begun.
func (t *Task) Lasts(d time.Duration) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lasts = d
	t.draw()
}

// Aside writes something else to the terminal: the line is cleared before and drawn again afterwards.
func (t *Task) Aside(write func() error) error {
	if t == nil {
		return write()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_, _ = io.WriteString(t.out, wipe)
	err := write()
	t.draw()
	return err
}

// End clears the line. A task may end twice.
func (t *Task) End() {
	if t == nil {
		return
	}
	t.mu.Lock()
	ended := t.ended
	t.ended = true
	if !ended {
		_, _ = io.WriteString(t.out, wipe)
	}
	t.mu.Unlock()
	if !ended {
		close(t.stop)
		t.stopped.Wait()
	}
}

// draw writes the line; the caller holds mu, or is the only one to know t. What cannot be written is not seen by anybody.
func (t *Task) draw() {
	if t.ended {
		return
	}
	now := time.Now()
	t.drawn = now
	if t.lasts > 0 {
		t.first, t.last = state{at: t.begun}, state{now, min(1, now.Sub(t.begun).Seconds()/t.lasts.Seconds())}
	}
	_, _ = io.WriteString(t.out, wipe+t.line(now))
}

// line is the text at a time. It is cut where the terminal would break it: a broken line could not be cleared.
func (t *Task) line(now time.Time) string {
	columns := math.MaxInt
	if t.columns != nil {
		if n := t.columns(); n > 0 {
			columns = n - 1
		}
	}
	what := t.what
	if t.detail != "" {
		what += ": " + t.detail
	}
	end := ""
	switch {
	case t.last.at.IsZero():
		if so := now.Sub(t.begun); so >= time.Second {
			end = ", " + rough(so) + " so far"
		}
	default:
		end = fmt.Sprintf(" %3.0f%%", math.Floor(100*t.last.done))
		if columns >= fewest {
			full := int(bar * t.last.done)
			end = " [" + strings.Repeat("=", full) + strings.Repeat(" ", bar-full) + "]" + end
		}
		if left, ok := t.left(now); ok {
			end += ", about " + rough(left) + " left"
		}
	}
	what = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1 // a name cannot steer the terminal
		}
		return r
	}, what)
	return ansi.Truncate(what, max(0, columns-ansi.StringWidth(end)), "...") + end
}

// left is how long the rest takes if it goes on as it went.
func (t *Task) left(now time.Time) (time.Duration, bool) {
	took, done := t.last.at.Sub(t.first.at), t.last.done-t.first.done
	if done <= 0 || took < time.Second || t.last.done >= 1 {
		return 0, false
	}
	left := time.Duration(float64(took)*(1-t.last.done)/done) - now.Sub(t.last.at)
	return max(time.Second, left), true
}

// rough is a time as exactly as an estimate deserves.
func rough(d time.Duration) string {
	switch {
	case d < 100*time.Second:
		return fmt.Sprintf("%d s", int(d.Round(time.Second).Seconds()))
	case d < 100*time.Minute:
		return fmt.Sprintf("%d min", int(d.Round(time.Minute).Minutes()))
	}
	return fmt.Sprintf("%.1f h", d.Hours())
}
