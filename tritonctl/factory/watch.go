// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package factory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/output"
)

// Ask is a question to conch.
type Ask[T any] func(*client.Client, context.Context) (T, error)

// Live is how --watch keeps an answer up to date: by conch's stream of state, never by asking from time to time.
type Live[T any] struct {
	Topics []api.Topic
	// Answer takes the answer from the state; false: the state does not have it, and conch is asked. Nil: it never has.
	Answer func(client.State) (T, bool)
	// Basis is what an answer depends on that the state does not have. Conch is asked again when the basis is another than before.
	Basis func(client.State) any
}

// Watchable makes a command that shows the answer to one question, and with --watch
// shows it again whenever it changes.
func Watchable[T any](f *Factory, c *cobra.Command, ask func(args []string) Ask[T], live func(args []string) Live[T], draw func(*output.Table, T)) *cobra.Command {
	var watch bool
	WatchFlag(c, &watch)
	c.RunE = func(c *cobra.Command, args []string) error {
		if watch {
			return Watch(c.Context(), f, ask(args), live(args), draw)
		}
		return Show(c.Context(), f, ask(args), draw)
	}
	return c
}

// WatchFlag adds --watch.
func WatchFlag(c *cobra.Command, watch *bool) {
	c.Flags().BoolVarP(watch, "watch", "w", false, "go on and show every change, until interrupted or --timeout")
}

// Watch shows the answer to a question whenever it is another, until ctx ends. A connection that is lost after the first answer is made again.
func Watch[T any](ctx context.Context, f *Factory, ask Ask[T], live Live[T], draw func(*output.Table, T)) error {
	conch, err := f.Client()
	if err != nil {
		return err
	}
	var basis any
	var last []byte
	return f.follow(ctx, conch, live.Topics, func(state client.State) error {
		var answer T
		known := false
		if live.Answer != nil {
			answer, known = live.Answer(state)
		}
		if !known {
			var now any
			if live.Basis != nil {
				if now = live.Basis(state); last != nil && reflect.DeepEqual(now, basis) {
					return nil
				}
			}
			var err error
			if answer, err = ask(conch, ctx); last != nil && errors.Is(err, client.ErrUnreachable) {
				return nil // it is asked when the stream is back
			} else if err != nil {
				return err
			}
			basis = now
		}
		var now bytes.Buffer
		if err := output.Print(&now, f.Format, answer, func(t *output.Table) { draw(t, answer) }); err != nil {
			return err
		}
		if bytes.Equal(last, now.Bytes()) {
			return nil
		}
		if last != nil {
			fmt.Fprintln(f.Out)
		}
		last = now.Bytes()
		_, err := f.Out.Write(last)
		return err
	})
}

// LastEvent is the id of the last event of those that count, of what the state has.
func LastEvent(s client.State, counts func(api.Event) bool) uint64 {
	for _, e := range slices.Backward(s.Events) {
		if counts(e) {
			return e.ID
		}
	}
	return 0
}

// FollowEvents calls yield for every event after an id, as it happens, until ctx ends or yield fails.
func (f *Factory) FollowEvents(ctx context.Context, conch *client.Client, after uint64, yield func(api.Event) error) error {
	return f.follow(ctx, conch, []api.Topic{api.TopicEvents}, func(state client.State) error {
		all := state.Events
		if n := len(all); n > 0 && all[n-1].ID < after {
			after = 0 // another conch, which counts anew
		}
		if len(all) > 0 && all[0].ID > after+1 {
			var err error
			if all, err = conch.Events(ctx, after); err != nil { // the stream keeps the last ones only
				return err
			}
		}
		for _, e := range all {
			if e.ID <= after {
				continue
			}
			if err := yield(e); err != nil {
				return err
			}
			after = e.ID
		}
		return nil
	})
}

// follow calls yield with the state that came last, until ctx ends or yield fails. States that come while yield runs are passed over for the
// last of them, so that the stream is always read. What is lost before the first state is an error, later it is told to the person.
func (f *Factory) follow(ctx context.Context, conch *client.Client, topics []api.Topic, yield func(client.State) error) error {
	following, stop := context.WithCancel(ctx)
	defer stop()
	states, ended := make(chan client.State, 1), make(chan error, 1)
	go func() {
		seen, lost := false, false
		ended <- conch.Follow(following, topics, func(s client.State) error {
			if seen = true; lost {
				lost = false
				fmt.Fprintln(f.Err, "tritonctl: conch answers again")
			}
			select {
			case <-states:
			default:
			}
			states <- s // there is room: nobody else sends
			return nil
		}, func(err error) error {
			if !seen {
				return err
			}
			if !lost {
				lost = true
				fmt.Fprintf(f.Err, "tritonctl: %v; connecting again\n", err)
			}
			return nil
		})
	}()
	for {
		select {
		case s := <-states:
			if err := yield(s); err != nil {
				stop()
				<-ended
				if ctx.Err() != nil {
					return nil
				}
				return err
			}
		case err := <-ended:
			return err
		}
	}
}

// Events shows on stderr what happens from now on, until stop is called or ctx
// ends.
func (f *Factory) Events(ctx context.Context) (stop func()) {
	conch, err := f.Client()
	if err != nil {
		return func() {}
	}
	before, err := conch.Events(ctx, 0)
	if err != nil {
		return func() {}
	}
	after := uint64(0)
	if n := len(before); n > 0 {
		after = before[n-1].ID
	}
	task := f.task
	show := func(e api.Event) error {
		after = e.ID
		return task.Aside(func() error {
			_, err := fmt.Fprintf(f.Err, "%s %s: %s\n", e.Time.Format(time.TimeOnly), e.Kind, e.Message)
			return err
		})
	}
	following, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = f.FollowEvents(following, conch, after, show) // what is shown besides the answer
	}()
	return func() {
		cancel()
		<-ended
		late, _ := conch.Events(ctx, after) // what the stream had not sent yet
		for _, e := range late {
			_ = show(e)
		}
	}
}
