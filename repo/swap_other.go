// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package repo

import (
	"errors"
	"io/fs"
	"os"
)

// swap puts directory from in the place of to.
func swap(from, to string) error {
	if _, err := os.Lstat(to); errors.Is(err, fs.ErrNotExist) {
		return os.Rename(from, to)
	}
	return swapInTwo(from, to)
}
