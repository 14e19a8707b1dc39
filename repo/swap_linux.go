// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// swap puts directory from in the place of to, so that there is no moment
// without one. What was there ends up at from.
func swap(from, to string) error {
	if _, err := os.Lstat(to); errors.Is(err, fs.ErrNotExist) {
		return os.Rename(from, to)
	}
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // file systems without it
		return swapInTwo(from, to)
	}
	return err
}
