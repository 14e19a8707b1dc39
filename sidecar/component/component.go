// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package component

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Component is a part of conch that New has made, and opened.
type Component interface {
	// Run works until ctx ends. Then it finishes what is under way and closes what
	// New opened, in a time that it bounds itself. If ctx has ended before, it only
	// closes. An error before ctx ends is the end of all components; nil before ctx
	// ends says that there was nothing to do.
	Run(ctx context.Context) error
}

// Func is a Component that is one function.
type Func func(context.Context) error

// Run implements Component.
func (f Func) Run(ctx context.Context) error { return f(ctx) }

// Closing is a Component that only has to be closed.
func Closing(close func() error) Component {
	return Func(func(ctx context.Context) error {
		<-ctx.Done()
		return close()
	})
}

// After is a component that runs once begin is closed, and only closes where it has to end before; nil: from the beginning.
func After(begin <-chan struct{}, c Component) Component {
	if begin == nil {
		return c
	}
	return Func(func(ctx context.Context) error {
		select {
		case <-begin:
		case <-ctx.Done():
		}
		return c.Run(ctx)
	})
}

// Entry is one line of a List.
type Entry struct {
	// Name is what errors name the component by.
	Name string
	// New makes the component and opens what it needs (files, addresses), so that
	// what is wrong is known before anything runs. Nothing comes to it before every
	// component is made. The component is nil if there is nothing to run or to
	// close. An error leaves nothing open. Ctx ends when conch is asked to stop.
	New func(ctx context.Context) (Component, error)
}

// List is the components in their order.
type List []Entry

// Opened are the components of a List, made and not yet running.
type Opened struct{ all []named }

type named struct {
	name string
	Component
}

// run adds the component's name to its error.
func (n named) run(ctx context.Context) error {
	if err := n.Run(ctx); err != nil {
		return fmt.Errorf("%s: %w", n.name, err)
	}
	return nil
}

// Open makes every component. If one cannot be made, those before it are closed,
// the last one first.
func (l List) Open(ctx context.Context) (*Opened, error) {
	o := &Opened{}
	for _, e := range l {
		c, err := e.New(ctx)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", e.Name, err), o.Close())
		}
		if c != nil {
			o.all = append(o.all, named{e.Name, c})
		}
	}
	return o, nil
}

// Close closes components that never ran.
func (o *Opened) Close() error {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	var errs []error
	for _, c := range slices.Backward(o.all) {
		errs = append(errs, c.run(ended))
	}
	return errors.Join(errs...)
}

// Run runs every component until ctx ends or one of them fails. Then each is ended,
// the last one first, when those after it have ended. The first failure is the first
// error.
func (o *Opened) Run(ctx context.Context) error {
	type running struct {
		end   context.CancelFunc
		ended chan error
	}
	all := make([]running, len(o.all))
	failed := make(chan int, len(o.all))
	for i, c := range o.all {
		own, end := context.WithCancel(context.WithoutCancel(ctx))
		all[i] = running{end, make(chan error, 1)}
		go func() {
			err := c.run(own)
			if err != nil && own.Err() == nil {
				failed <- i
			}
			all[i].ended <- err
		}()
	}
	var errs []error
	first := -1
	select {
	case <-ctx.Done():
	case first = <-failed:
		errs = append(errs, <-all[first].ended)
	}
	for i, r := range slices.Backward(all) {
		r.end()
		if i != first {
			errs = append(errs, <-r.ended)
		}
	}
	return errors.Join(errs...)
}
