// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	tea "charm.land/bubbletea/v2"
)

// Source follows a conch: it yields the state at once and again whenever it changed, until ctx ends, yield fails or the connection does.
type Source func(ctx context.Context, yield func(*State) error) error

// Terminal is where the screen is.
type Terminal struct {
	In  io.Reader
	Out io.Writer
	// Environment as in os.Environ: TERM, COLORTERM and NO_COLOR say which colours there are.
	Environment []string
}

// again is how long after a lost connection the next is tried, at first; it doubles up to longest.
const (
	again   = 500 * time.Millisecond
	longest = 5 * time.Second
)

// Run shows the state until the person ends it or ctx does.
func Run(ctx context.Context, source Source, t Terminal) error {
	ctx, cancel := context.WithCancel(ctx)
	program := tea.NewProgram(NewScreen(time.Now), tea.WithInput(t.In), tea.WithOutput(t.Out), tea.WithEnvironment(t.Environment), tea.WithoutSignalHandler())
	var beside sync.WaitGroup
	beside.Go(func() { Follow(ctx, source, func(msg any) { program.Send(msg) }) })
	beside.Go(func() {
		seconds := time.NewTicker(time.Second)
		defer seconds.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-seconds.C:
				program.Send(Tick{})
			}
		}
	})
	// Ended as by the person's q: the terminal is put back as it was, and nothing goes on reading keys.
	beside.Go(func() {
		<-ctx.Done()
		program.Quit()
	})
	_, err := program.Run()
	cancel()
	beside.Wait()
	return err
}

// Follow hands on what a source yields as [Changed]. It connects again where the source ends, and says [Lost] meanwhile, until ctx ends.
func Follow(ctx context.Context, source Source, send func(msg any)) {
	for wait := again; ctx.Err() == nil; {
		err := source(ctx, func(s *State) error {
			wait = again
			send(Changed{s})
			return nil
		})
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("conch ended the stream")
		}
		send(Lost{err})
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(longest, 2*wait)
	}
}
