// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

const cgroupRoot = "/sys/fs/cgroup"

// hierarchies are the places of control groups: one with cgroup v2, one for each controller with v1.
func hierarchies() ([]string, bool) {
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		return []string{cgroupRoot}, true
	}
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return nil, false
	}
	var all []string
	for _, e := range entries {
		if e.IsDir() { // links are other names of the same
			all = append(all, filepath.Join(cgroupRoot, e.Name()))
		}
	}
	return all, false
}

// makeCgroups makes the group below which a node's Pods get theirs.
func makeCgroups(node string) error {
	roots, unified := hierarchies()
	for _, root := range roots {
		for _, dir := range []string{filepath.Join(root, cgroup), filepath.Join(root, cgroup, node)} {
			if unified {
				// Children have the controllers that their parent hands down.
				controllers, err := os.ReadFile(filepath.Join(filepath.Dir(dir), "cgroup.controllers"))
				if err != nil {
					return err
				}
				for name := range strings.FieldsSeq(string(controllers)) {
					_ = os.WriteFile(filepath.Join(filepath.Dir(dir), "cgroup.subtree_control"), []byte("+"+name), 0o644) // the kubelet says which it misses
				}
			}
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
			for _, name := range []string{"cpuset.cpus", "cpuset.mems"} { // empty in a new group of v1, which takes no process then
				if text, err := os.ReadFile(filepath.Join(filepath.Dir(dir), name)); err == nil && !unified {
					if err := os.WriteFile(filepath.Join(dir, name), bytes.TrimSpace(text), 0o644); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// inCgroups are the processes of a node's Pods.
func inCgroups(node string) (all []int) {
	roots, _ := hierarchies()
	seen := map[int]bool{}
	for _, root := range roots {
		_ = filepath.WalkDir(filepath.Join(root, cgroup, node), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || d.Name() != "cgroup.procs" {
				return nil //nolint:nilerr // groups come and go meanwhile
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return nil //nolint:nilerr // as above
			}
			for field := range strings.FieldsSeq(string(text)) {
				if pid, err := strconv.Atoi(field); err == nil && pid > 0 && !seen[pid] {
					seen[pid] = true
					all = append(all, pid)
				}
			}
			return nil
		})
	}
	return all
}

// removeCgroups removes a node's groups, which have no process any more.
func removeCgroups(node string) {
	roots, _ := hierarchies()
	for _, root := range roots {
		var dirs []string
		_ = filepath.WalkDir(filepath.Join(root, cgroup, node), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for i := len(dirs) - 1; i >= 0; i-- {
			_ = syscall.Rmdir(dirs[i]) // what is left is found by the next cluster
		}
	}
}
