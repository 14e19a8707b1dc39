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

// Commit is the commit of the working tree in a directory, with "-dirty" if files under version control differ from it that a figure could
// depend on: results and pages may, since one command after the other writes them. "unknown" where git does not say.
func Commit(ctx context.Context, directory string) string {
	commit, err := git(ctx, directory, "rev-parse", "--short=12", "HEAD")
	if err != nil {
		return "unknown"
	}
	if _, err := git(ctx, directory, "diff", "--quiet", "HEAD", "--", ".", ":(exclude)results", ":(exclude,glob)**/*.md"); err != nil {
		commit += "-dirty"
	}
	return commit
}

func git(ctx context.Context, directory string, arguments ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "git", append([]string{"-C", directory}, arguments...)...).Output()
	return strings.TrimSpace(string(out)), err
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
