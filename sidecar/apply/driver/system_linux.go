// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
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

// listensIn reports that the process, or another of its group, listens on the
// TCP port. Where that may not be seen it says yes.
func listensIn(group, port int) bool {
	sockets := map[string]bool{}
	for _, family := range []string{"tcp", "tcp6"} { // gRPC listens on ::ffff:127.0.0.1
		table, err := os.ReadFile("/proc/self/net/" + family)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(table)) {
			// sl local_address rem_address st tx:rx tr:when retrnsmt uid timeout inode
			f := strings.Fields(line)
			if len(f) > 9 && f[3] == "0A" && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
				sockets["socket:["+f[9]+"]"] = true
			}
		}
	}
	for _, pid := range pids() {
		if of, err := unix.Getpgid(pid); err != nil || of != group {
			continue
		}
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		fds, err := os.ReadDir(dir)
		if errors.Is(err, os.ErrPermission) {
			return true
		}
		for _, fd := range fds {
			if to, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && sockets[to] {
				return true
			}
		}
	}
	return false
}
