// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package figure

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

// Machine is where figures were measured.
type Machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Memory string `json:"memory"`
	OS     string `json:"os"`
	Kernel string `json:"kernel"`
}

// ThisMachine describes the machine as Linux does; what it does not say stays empty.
func ThisMachine() Machine {
	return Machine{
		CPU:    procValue("/proc/cpuinfo", "model name", ":"),
		Cores:  runtime.NumCPU(),
		Memory: procValue("/proc/meminfo", "MemTotal", ":"),
		OS:     strings.Trim(procValue("/etc/os-release", "PRETTY_NAME", "="), `"`),
		Kernel: firstLine("/proc/sys/kernel/osrelease"),
	}
}

// Commit is the commit of the working tree in a directory, with "-dirty" if files under version control differ from it; "unknown" where
// git does not say.
func Commit(ctx context.Context, directory string) string {
	out, err := exec.CommandContext(ctx, "git", "-C", directory, "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// procValue is the value of the first line that starts with the key.
func procValue(path, key, separator string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // only read
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if k, v, ok := strings.Cut(lines.Text(), separator); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

func firstLine(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(data), "\n")
	return line
}
