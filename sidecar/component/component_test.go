// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package component_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/sidecar/component"
)

// diary notes what components do.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) note(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

// entry is a component that takes a second to end.
func (d *diary) entry(name string) component.Entry {
	return component.Entry{Name: name, New: func(context.Context) (component.Component, error) {
		d.note("new " + name)
		return component.Func(func(ctx context.Context) error {
			<-ctx.Done()
			d.note("ending " + name)
			time.Sleep(time.Second)
			d.note("ended " + name)
			return nil
		}), nil
	}}
}

// failing is a component whose Run fails after a while.
func (d *diary) failing(name string, after time.Duration, err error) component.Entry {
	return component.Entry{Name: name, New: func(context.Context) (component.Component, error) {
		d.note("new " + name)
		return component.Func(func(context.Context) error {
			time.Sleep(after)
			d.note("failed " + name)
			return err
		}), nil
	}}
}

var errBroken = errors.New("broken")

// Each component ends while everything before it still runs.
func TestComponentsEndInReverseOrder(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := &diary{}
		none := component.Entry{Name: "off", New: func(context.Context) (component.Component, error) { d.note("off"); return nil, nil }}
		o, err := component.List{d.entry("state"), none, d.entry("servers"), d.entry("fronts")}.Open(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"new state", "off", "new servers", "new fronts"}, d.lines)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- o.Run(ctx) }()
		time.Sleep(time.Hour)
		require.Len(t, d.lines, 4, "they run until they are asked to end")
		cancel()
		require.NoError(t, <-done)
		require.Equal(t, []string{"ending fronts", "ended fronts", "ending servers", "ended servers", "ending state", "ended state"}, d.lines[4:])
	})
}

// One that cannot be made ends those before it, and those after it are not made.
func TestAComponentThatCannotBeMadeEndsThoseBeforeIt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := &diary{}
		broken := component.Entry{Name: "fronts", New: func(context.Context) (component.Component, error) { return nil, errBroken }}
		o, err := component.List{d.entry("state"), d.entry("servers"), broken, d.entry("planning")}.Open(t.Context())
		require.ErrorIs(t, err, errBroken)
		require.EqualError(t, err, "fronts: broken", "the error says which component it was")
		require.Nil(t, o)
		require.Equal(t, []string{"new state", "new servers", "ending servers", "ended servers", "ending state", "ended state"}, d.lines)
	})
}

// One that fails ends all, those before it and those after it, in the same order.
func TestAComponentThatFailsEndsAll(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := &diary{}
		o, err := component.List{d.entry("state"), d.failing("servers", time.Minute, errBroken), d.entry("fronts")}.Open(t.Context())
		require.NoError(t, err)
		err = o.Run(t.Context())
		require.ErrorIs(t, err, errBroken)
		require.EqualError(t, err, "servers: broken")
		require.Equal(t, []string{"failed servers", "ending fronts", "ended fronts", "ending state", "ended state"}, d.lines[3:])
	})
}

// One that has nothing to do ends nobody; what goes wrong while components end is reported with its component, behind the cause.
func TestErrorsAreNamedByTheirComponents(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		d := &diary{}
		errLocked := errors.New("locked")
		closing := component.Entry{Name: "state", New: func(context.Context) (component.Component, error) {
			return component.Closing(func() error { return errLocked }), nil
		}}
		o, err := component.List{closing, d.failing("hint", 0, nil), d.failing("planning", time.Minute, errBroken)}.Open(t.Context())
		require.NoError(t, err)
		began := time.Now()
		err = o.Run(t.Context())
		require.Equal(t, time.Minute, time.Since(began))
		require.EqualError(t, err, "planning: broken\nstate: locked")
	})
}

// TestAfter: a component begins with what it waits for. One that has to end before only closes.
func TestAfter(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ran := make(chan bool, 1)
		c := component.Func(func(ctx context.Context) error {
			ran <- ctx.Err() == nil
			<-ctx.Done()
			return errBroken
		})
		begin := make(chan struct{})
		for _, begins := range []bool{false, true} {
			ctx, end := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- component.After(begin, c).Run(ctx) }()
			time.Sleep(time.Hour)
			require.Empty(t, ran)
			if begins {
				close(begin)
				require.True(t, <-ran)
			}
			end()
			require.ErrorIs(t, <-done, errBroken)
			if !begins {
				require.False(t, <-ran, "it is asked to close")
			}
		}
		ctx, end := context.WithCancel(t.Context())
		end()
		require.ErrorIs(t, component.After(nil, c).Run(ctx), errBroken)
		require.False(t, <-ran)
	})
}
