// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// modelProcesses are the children of a server that run a model and live: the
// python backend gives every instance one, whose command line has the path of its
// file. They are in the process group of the server.
func modelProcesses(server int, directory, model string) map[int]bool {
	living := map[int]bool{}
	mark := []byte(filepath.Join(directory, model) + "/")
	for _, pid := range members(server) {
		proc := filepath.Join("/proc", strconv.Itoa(pid))
		stat, err := os.ReadFile(filepath.Join(proc, "stat"))
		if err != nil {
			continue
		}
		// The name, in parentheses, may hold anything; after it come state and parent.
		end := max(0, bytes.LastIndexByte(stat, ')'))
		fields := strings.Fields(string(stat[end+1:]))
		if len(fields) < 2 || fields[1] != strconv.Itoa(server) {
			continue
		}
		if fields[0] == "Z" || fields[0] == "X" { // it has ended, and the server has not collected it
			continue
		}
		if command, err := os.ReadFile(filepath.Join(proc, "cmdline")); err == nil && bytes.Contains(command, mark) {
			living[pid] = true
		}
	}
	return living
}
