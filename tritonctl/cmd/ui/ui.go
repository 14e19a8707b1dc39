// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package ui is `tritonctl ui`.
package ui

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/sidecar/console/door"
	"github.com/conch-serving/conch/tritonctl/factory"
)

// Options are the command's inputs.
type Options struct {
	*factory.Factory
	port    int
	changes bool
	open    bool
	expires time.Duration
}

// New builds the command.
func New(f *factory.Factory) *cobra.Command {
	o := &Options{Factory: f}
	c := &cobra.Command{
		Use:   "ui",
		Short: "Show a running conch in a browser",
		Long: `ui opens a door on this machine's loopback address to the console of a running
conch, and prints a link that lets one browser in, once. At a terminal, Enter
prints another. Ctrl-C closes the door.

The console only looks unless --allow-changes is given; orders are then those of
the user who runs this command. From another machine, forward the port:
ssh -L 8003:127.0.0.1:8003 HOST tritonctl ui --port 8003`,
		Example: `  tritonctl ui
  tritonctl ui --open --allow-changes`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return o.run(c.Context()) },
	}
	c.Flags().IntVar(&o.port, "port", 0, "port on 127.0.0.1; 0 takes a free one")
	c.Flags().BoolVar(&o.changes, "allow-changes", false, "take orders from the console: apply, undo, pin, load, restart")
	c.Flags().BoolVar(&o.open, "open", false, "open the link in this machine's browser")
	c.Flags().DurationVar(&o.expires, "expires", 10*time.Minute, "how long a link that nobody has opened lets in")
	return c
}

func (o *Options) run(ctx context.Context) error {
	switch {
	case o.port < 0 || o.port > 65535:
		return fmt.Errorf("%w: --port %d is no port", factory.ErrUsage, o.port)
	case o.expires <= 0:
		return fmt.Errorf("%w: --expires %v is not above 0", factory.ErrUsage, o.expires)
	}
	conch, err := o.Client()
	if err != nil {
		return err
	}
	if _, err := conch.Version(ctx); err != nil {
		return err
	}
	inside, err := conch.Proxy()
	if err != nil {
		return err
	}
	var listen net.ListenConfig
	l, err := listen.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(o.port)))
	if err != nil {
		return fmt.Errorf("--port %d: %w", o.port, err)
	}
	address := l.Addr().String()
	_, port, _ := net.SplitHostPort(address) // it is one
	d := door.New(door.Options{
		Inside: inside, Home: "/console/", Hosts: door.Loopback(), AllowChanges: o.changes, Cookie: "conch-ui-" + port,
		Now: o.Now, Logger: slog.New(slog.DiscardHandler),
	})
	server := &http.Server{
		Handler: d, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }, ErrorLog: log.New(io.Discard, "", 0),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	link := func() string { return "http://" + address + d.Link(o.expires) }
	first := link()
	mode := "it only looks; --allow-changes lets it give orders"
	if o.changes {
		mode = "it may give orders, as " + o.Author
	}
	fmt.Fprintf(o.Err, "The console, for one browser, within %v (%s):\n", o.expires, mode)
	fmt.Fprintln(o.Out, first)
	if o.open {
		if err := o.Open(first); err != nil {
			fmt.Fprintf(o.Err, "no browser could be opened: %v\n", err)
		}
	}
	asked := make(chan struct{})
	if o.InTerminal {
		fmt.Fprintln(o.Err, "Enter prints another link, Ctrl-C ends.")
		go ask(o.In, asked)
	}
	for {
		select {
		case <-ctx.Done():
			_ = server.Close() // streams do not end by themselves
			<-failed
			return nil
		case err := <-failed:
			if errors.Is(err, http.ErrServerClosed) {
				return nil
			}
			return err
		case <-asked:
			fmt.Fprintln(o.Out, link())
		}
	}
}

// ask reports every line that a person enters. It ends with the process.
func ask(in io.Reader, asked chan<- struct{}) {
	for lines := bufio.NewScanner(in); lines.Scan(); {
		asked <- struct{}{}
	}
}
