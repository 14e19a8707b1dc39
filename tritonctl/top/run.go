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

// Source follows a conch: it yields the state at once and again whenever it changed, until ctx ends (nil) or it makes no sense to go on (an error).
// Where the connection is lost it makes another, and says lost at every attempt that fails.
type Source func(ctx context.Context, yield func(*State), lost func(error)) error

// Terminal is where the screen is.
type Terminal struct {
	In  io.Reader
	Out io.Writer
	// Environment as in os.Environ: TERM, COLORTERM and NO_COLOR say which colours there are.
	Environment []string
}

// Run shows the state until the person ends it, ctx does, or the source fails.
func Run(ctx context.Context, source Source, t Terminal) error {
	ctx, cancel := context.WithCancel(ctx)
	program := tea.NewProgram(NewScreen(time.Now), tea.WithInput(t.In), tea.WithOutput(t.Out), tea.WithEnvironment(t.Environment), tea.WithoutSignalHandler())
	var beside sync.WaitGroup
	var failed error
	beside.Go(func() {
		failed = source(ctx, func(s *State) { program.Send(Changed{s}) }, func(err error) { program.Send(Lost{err}) })
		cancel()
	})
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
	return errors.Join(failed, err)
}
