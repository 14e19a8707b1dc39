// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"os"
	"path/filepath"
	"time"
)

// pass goes through the gate in a directory. If the gate is closed, it leaves a file there and returns once the file is removed, or the server
// closes. Without a directory there is no gate.
func (p *place) pass(dir string) error {
	if dir == "" || !exists(filepath.Join(dir, "closed")) {
		return nil
	}
	begun, err := os.CreateTemp(dir, "begun-")
	if err != nil {
		return err
	}
	if err := begun.Close(); err != nil {
		return err
	}
	for exists(begun.Name()) {
		select {
		case <-p.closing:
			return nil
		default:
			p.clock.Sleep(time.Millisecond)
		}
	}
	return nil
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}
