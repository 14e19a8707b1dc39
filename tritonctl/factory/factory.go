// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package factory carries what every tritonctl command needs from outside:
// streams, the admin client, the chosen output format. Commands take it by
// injection, so tests give them buffers and a client of a test server.
package factory

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/tritonctl/output"
	"github.com/conch-serving/conch/tritonctl/progress"
)

// AddressVariable names the environment variable that holds the admin address
// when --admin is not given.
const AddressVariable = "CONCH_ADMIN"

// TokenVariable and AuthorityVariable name files, for a conch that is reached over
// TCP: that of the token, and that of the authorities of its certificate.
const (
	TokenVariable     = "CONCH_ADMIN_TOKEN_FILE"
	AuthorityVariable = "CONCH_ADMIN_CA_FILE"
)

// ErrUsage marks errors of the command line itself.
var ErrUsage = errors.New("usage")

// Factory is made once in main; whether a stream is a terminal is decided
// there and nowhere else.
type Factory struct {
	In       io.Reader
	Out, Err io.Writer
	// OutTerminal and ErrTerminal say whether a person reads the stream, InTerminal
	// whether one can answer.
	OutTerminal, ErrTerminal, InTerminal bool
	// Getenv reads the environment.
	Getenv func(string) string
	// Open shows a file to the person, in their browser.
	Open func(path string) error
	// Now is the time.
	Now func() time.Time
	// Columns is the width of the terminal at Err; 0 where it is not known.
	Columns func() int
	// Author is the author of the changes that are ordered, for the event log.
	Author string

	// Address is --admin.
	Address string
	// TokenFile is --token-file, AuthorityFile --ca-file.
	TokenFile, AuthorityFile string
	// Format is -o.
	Format string
	// Timeout is --timeout; 0 waits for as long as it takes.
	Timeout time.Duration
	// Yes is --yes: what disturbs is confirmed beforehand.
	Yes bool

	task   *progress.Task // what is shown at present
	cancel context.CancelFunc
}

// New makes the factory of the running process.
func New() *Factory {
	author := os.Getenv("USER")
	if author == "" {
		author = fmt.Sprintf("uid %d", os.Getuid())
	}
	return &Factory{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
		OutTerminal: term.IsTerminal(int(os.Stdout.Fd())),
		ErrTerminal: term.IsTerminal(int(os.Stderr.Fd())),
		InTerminal:  term.IsTerminal(int(os.Stdin.Fd())),
		Getenv:      os.Getenv,
		Now:         time.Now,
		Columns: func() int {
			columns, _, _ := term.GetSize(int(os.Stderr.Fd())) // 0 without a terminal
			return columns
		},
		Open:   func(path string) error { return exec.Command("xdg-open", path).Run() },
		Author: author,
	}
}

// Client connects to the conch that --admin or CONCH_ADMIN names, else to the one
// on this machine: root's, or that of this user.
func (f *Factory) Client() (*client.Client, error) {
	address := cmp.Or(f.Address, f.Getenv(AddressVariable))
	if address == "" {
		address = f.own()
	}
	if !strings.HasPrefix(address, "https://") {
		conch, err := client.New(address)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrUsage, err)
		}
		return conch, nil
	}
	o := client.Options{TLS: &tls.Config{MinVersion: tls.VersionTLS12}}
	if file := cmp.Or(f.TokenFile, f.Getenv(TokenVariable)); file != "" {
		token, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("%w: --token-file: %w", ErrUsage, err)
		}
		o.Token = strings.TrimSpace(string(token))
	}
	if file := cmp.Or(f.AuthorityFile, f.Getenv(AuthorityVariable)); file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("%w: --ca-file: %w", ErrUsage, err)
		}
		o.TLS.RootCAs = x509.NewCertPool()
		if !o.TLS.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%w: --ca-file %s has no certificate in PEM", ErrUsage, file)
		}
	}
	return client.With(address, o)
}

// own is the default listen.admin of a conch that is not root's, if such a one is
// there and none of root's.
func (f *Factory) own() string {
	system, _ := strings.CutPrefix(client.DefaultAddress, "unix://")
	state := cmp.Or(f.Getenv("XDG_STATE_HOME"), filepath.Join(f.Getenv("HOME"), ".local", "state"))
	for _, socket := range []string{system, filepath.Join(cmp.Or(f.Getenv("XDG_RUNTIME_DIR"), state), "conch", "admin.sock")} {
		if _, err := os.Stat(socket); err == nil {
			return "unix://" + socket
		}
	}
	return client.DefaultAddress
}

// Print writes value in the chosen format; table draws it for a person. It ends what Begin shows.
func (f *Factory) Print(value any, table func(*output.Table)) error {
	f.task.End()
	return output.Print(f.Out, f.Format, value, table)
}

// Show asks the conch of f and prints the answer; most commands are this.
func Show[T any](ctx context.Context, f *Factory, ask Ask[T], draw func(*output.Table, T)) error {
	conch, err := f.Client()
	if err != nil {
		return err
	}
	answer, err := ask(conch, ctx)
	if err != nil {
		return err
	}
	return f.Print(answer, func(t *output.Table) { draw(t, answer) })
}

// Complete offers the names that conch knows as a command's only argument. A
// shell that asks gets no error: without conch there is nothing to offer.
func Complete[T any](f *Factory, ask func(*client.Client, context.Context) ([]T, error), name func(T) string) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		conch, err := f.Client()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		known, err := ask(conch, c.Context())
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names := make([]cobra.Completion, 0, len(known))
		for _, k := range known {
			names = append(names, name(k))
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// ModelNames completes the name of a model.
func ModelNames(f *Factory) cobra.CompletionFunc {
	return Complete(f, (*client.Client).Models, func(m api.Model) string { return m.Name })
}

// PartitionNames completes the name of a partition.
func PartitionNames(f *Factory) cobra.CompletionFunc {
	return Complete(f, (*client.Client).Partitions, func(p api.Partition) string { return p.ID })
}

// GPUNames completes the id of a GPU.
func GPUNames(f *Factory) cobra.CompletionFunc {
	return Complete(f, (*client.Client).GPUs, func(g api.GPU) string { return g.ID })
}

// PolicyNames completes the name of a policy.
func PolicyNames(f *Factory) cobra.CompletionFunc {
	return Complete(f, (*client.Client).KnownPolicies, func(p api.Policy) string { return p.Name })
}

// Begin shows a person at the terminal what a slow command begins to do, instead of what it did before, until it prints its answer. Where
// nobody looks, the task is nil and shows nothing.
func (f *Factory) Begin(format string, args ...any) *progress.Task {
	f.task.End()
	f.task = nil
	if f.ErrTerminal {
		f.task = progress.Begin(f.Err, f.Columns, fmt.Sprintf(format, args...))
	}
	return f.task
}

// Note tells a person at the terminal something that stays there.
func (f *Factory) Note(format string, args ...any) {
	if f.ErrTerminal {
		f.task.End()
		fmt.Fprintf(f.Err, format+"\n", args...)
	}
}

// Bound gives ctx the end that --timeout says; Done ends it.
func (f *Factory) Bound(ctx context.Context) context.Context {
	if f.Timeout > 0 {
		ctx, f.cancel = context.WithTimeout(ctx, f.Timeout)
	}
	return ctx
}

// Quiet ends what Begin shows.
func (f *Factory) Quiet() { f.task.End() }

// Done ends what Begin shows, and what Bound began.
func (f *Factory) Done() {
	if f.cancel != nil {
		defer f.cancel()
	}
	f.task.End()
}
