// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"io/fs"
	"os"
	"strconv"
	"syscall"
)

// ownedByUs reports that a file is this user's.
func ownedByUs(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

func pids() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var all []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			all = append(all, pid)
		}
	}
	return all
}
