// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"fmt"
)

// ErrUnreachable means that no conch answered at the admin address.
var ErrUnreachable = errors.New("no conch answers at the admin address")

func unreachable(address string, err error) error {
	return fmt.Errorf("%w %s: %w; is conch running, and is --admin (or CONCH_ADMIN) its listen.admin?", ErrUnreachable, address, err)
}
