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

// modelProcesses are the children of a server that run a model: the python
// backend gives every instance one, whose command line has the path of its file.
// Of one that has died and that the server has not collected nothing is known but
// that it was of this backend: it may be any model's.
func modelProcesses(server int, directory, model string) (living, dead map[int]bool) {
	living, dead = map[int]bool{}, map[int]bool{}
	mark := []byte(filepath.Join(directory, model) + "/")
	for _, pid := range pids() {
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
		if fields[0] == "Z" || fields[0] == "X" {
			if bytes.Contains(stat[:end], []byte("(triton_python_")) {
				dead[pid] = true
			}
			continue
		}
		if command, err := os.ReadFile(filepath.Join(proc, "cmdline")); err == nil && bytes.Contains(command, mark) {
			living[pid] = true
		}
	}
	return living, dead
}
