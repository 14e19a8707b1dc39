// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
)

// stateFile is what a state directory of conch has in it.
const stateFile = "conch.db"

// privateState makes the state directory, mode 0700: a user that may write into it
// decides what conch starts, and its sockets lie there. A directory that other users
// may enter is closed to them if it is conch's own, and refused if it is not.
func privateState(dir string, log *slog.Logger) error {
	const help = "name another with state in conch.yaml or --state"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("state directory: %w; %s", err, help)
	}
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("state directory: %w; %s", err, help)
	}
	if info.Mode().Perm()&0o077 == 0 {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("state directory: %w; %s", err, help)
	}
	if _, absent := os.Stat(filepath.Join(dir, stateFile)); len(entries) > 0 && errors.Is(absent, fs.ErrNotExist) {
		return fmt.Errorf("state directory %s has other things in it and others may enter it (mode %04o); chmod 700 it, or %s", dir, info.Mode().Perm(), help)
	}
	err = os.Chmod(dir, 0o700)
	if errors.Is(err, fs.ErrPermission) {
		// A volume of another user; the files that conch puts into it are closed to others.
		log.Warn("others may enter the state directory, and conch may not close it", "directory", dir, "mode", info.Mode().Perm().String(), "error", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("state directory: %w; %s", err, help)
	}
	log.Info("the state directory was closed to others", "directory", dir, "mode", info.Mode().Perm().String())
	return nil
}
