// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package factory

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/conch-serving/conch/sidecar/admin/client"
)

// ErrNotConfirmed is the failure of a command that disturbs what serves and was not
// confirmed.
var ErrNotConfirmed = errors.New("not confirmed; nothing was changed")

// ConfirmFound is Confirm of an order to something that conch is asked for first, so that nobody confirms what cannot be done.
func ConfirmFound[T any](ctx context.Context, f *Factory, what string, find func(*client.Client, context.Context) (T, error)) error {
	if !f.Yes {
		conch, err := f.Client()
		if err != nil {
			return err
		}
		if _, err := find(conch, ctx); err != nil {
			return err
		}
	}
	return f.Confirm(what)
}

// Confirm asks the person at the terminal whether to do what disturbs clients.
// --yes answers beforehand; without a terminal it is refused.
func (f *Factory) Confirm(what string) error {
	if f.Yes {
		return nil
	}
	if !f.InTerminal {
		return fmt.Errorf("%w: %s disturbs what serves and nobody is at a terminal to confirm it; say --yes", ErrUsage, what)
	}
	fmt.Fprintf(f.Err, "%s [y/N] ", strings.ToUpper(what[:1])+what[1:]+"?")
	answer, err := bufio.NewReader(f.In).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return ErrNotConfirmed
}
