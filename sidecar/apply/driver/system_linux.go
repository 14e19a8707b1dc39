// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"io/fs"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownedByUs reports that a file is this user's.
func ownedByUs(info fs.FileInfo) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

// members are the processes of a group.
func members(group int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var all []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if of, err := unix.Getpgid(pid); err == nil && of == group {
			all = append(all, pid)
		}
	}
	return all
}
