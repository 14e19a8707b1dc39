// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package confine

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Limits are what a policy's process may use.
type Limits struct {
	// Data is the most private writable memory in bytes, Processes how many processes
	// and threads its user may have, Files how many open files. 0: no limit.
	Data, Processes, Files uint64
	// Hidden are files and directories that it cannot open.
	Hidden []string
	// Writable is the one directory that it may write.
	Writable string
	// User, if it is not 0, is the user of the process, where the launcher is root.
	User int
}

// Nobody is the user of policies where conch is root.
const Nobody = 65534

// Default limits are far above what policies need: the built-in ones take some 100 MiB
// and 20 threads for a thousand GPUs.
func Default() Limits { return Limits{Data: 2 << 30, Processes: 256, Files: 256} }

// programFile is the descriptor of the program in the launcher.
const programFile = 3

// spec is the launcher's order.
type spec struct {
	Limits Limits
	// Path is the program's, and its argument 0. Script: it is run by this path, for an
	// interpreter looks for other files beside it; anything else is run from the
	// descriptor that was verified.
	Path   string
	Script bool
	// Parent is the process that the policy must not outlive.
	Parent int
}

// Command is how the launcher, a program with its first arguments, runs another
// program. The program itself has to be passed as descriptor 3. The process that calls Command has to start it itself: the policy
// ends with that process.
func Command(launcher []string, path string, script bool, args []string, l Limits) ([]string, error) {
	text, err := json.Marshal(spec{Limits: l, Path: path, Script: script, Parent: os.Getpid()})
	if err != nil {
		return nil, err
	}
	return slices.Concat(launcher, []string{string(text)}, args), nil
}

// visible are directories and files that together hold everything but what is hidden.
func visible(hidden []string) (all []string) {
	inside := func(path string) bool { // something hidden is below it
		return slices.ContainsFunc(hidden, func(h string) bool { return strings.HasPrefix(h, strings.TrimSuffix(path, "/")+"/") })
	}
	var walk func(dir string)
	walk = func(dir string) {
		entries, _ := os.ReadDir(dir) // what cannot be read cannot be shown either
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			switch {
			case slices.Contains(hidden, path):
			case inside(path):
				walk(path)
			default:
				all = append(all, path)
			}
		}
	}
	walk("/")
	return all
}

// resolved are paths without links, so that none leads around.
func resolved(paths []string) (all []string) {
	for _, path := range paths {
		if abs, err := filepath.Abs(path); err == nil {
			path = abs
		}
		if target, err := filepath.EvalSymlinks(path); err == nil {
			path = target
		}
		all = append(all, path)
	}
	return all
}
