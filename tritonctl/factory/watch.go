// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package factory

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/output"
)

// watchEvery is how often --watch asks though no event says that anything changed.
const watchEvery = time.Second

// Ask is a question to conch.
type Ask[T any] func(*client.Client, context.Context) (T, error)

// Watchable makes a command that shows the answer to one question, and with --watch
// shows it again whenever it changes.
func Watchable[T any](f *Factory, c *cobra.Command, ask func(args []string) Ask[T], draw func(*output.Table, T)) *cobra.Command {
	var watch bool
	c.Flags().BoolVarP(&watch, "watch", "w", false, "go on and show every change, until interrupted or --timeout")
	c.RunE = func(c *cobra.Command, args []string) error {
		if watch {
			return Watch(c.Context(), f, ask(args), draw)
		}
		return Show(c.Context(), f, ask(args), draw)
	}
	return c
}

// Watch shows the answer to a question whenever it is another, until ctx ends.
func Watch[T any](ctx context.Context, f *Factory, ask Ask[T], draw func(*output.Table, T)) error {
	conch, err := f.Client()
	if err != nil {
		return err
	}
	happened := make(chan struct{}, 1)
	following, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan struct{})
	defer func() { stop(); <-ended }()
	go func() {
		defer close(ended)
		// Without events it is asked every second nevertheless.
		_ = conch.Follow(following, 0, func(api.Event) error {
			select {
			case happened <- struct{}{}:
			default:
			}
			return nil
		})
	}()
	var last []byte
	for {
		answer, err := ask(conch, ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		var now bytes.Buffer
		if err := output.Print(&now, f.Format, answer, func(t *output.Table) { draw(t, answer) }); err != nil {
			return err
		}
		if !bytes.Equal(last, now.Bytes()) {
			if last != nil {
				fmt.Fprintln(f.Out)
			}
			last = now.Bytes()
			if _, err := f.Out.Write(last); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-happened:
		case <-time.After(watchEvery):
		}
	}
}

// Events shows on stderr what happens from now on, until stop is called or ctx
// ends.
func (f *Factory) Events(ctx context.Context) (stop func()) {
	following, cancel := context.WithCancel(ctx)
	ended, task := make(chan struct{}), f.task
	go func() {
		defer close(ended)
		conch, err := f.Client()
		if err != nil {
			return
		}
		before, err := conch.Events(following, 0)
		if err != nil {
			return
		}
		since := uint64(0)
		if len(before) > 0 {
			since = before[len(before)-1].ID
		}
		_ = conch.Follow(following, since, func(e api.Event) error {
			return task.Aside(func() error {
				_, err := fmt.Fprintf(f.Err, "%s %s: %s\n", e.Time.Format(time.TimeOnly), e.Kind, e.Message)
				return err
			})
		})
	}()
	return func() { cancel(); <-ended }
}
