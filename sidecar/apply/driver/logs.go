// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// logsKept is how many logs are kept of servers that are gone, the newest; mostLogs of
// them all, where each is the last one of its partition.
const logsKept, mostLogs = 20, 200

// logged notes that a log is one of a server that is there, or no longer is.
func (d *Processes) logged(path string, is bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if is {
		d.logs[path] = true
	} else {
		delete(d.logs, path)
	}
}

// prune removes the oldest logs of servers that are gone.
func (d *Processes) prune() error {
	files, err := filepath.Glob(filepath.Join(d.o.Dir, "logs", "*.log*"))
	if err != nil {
		return err
	}
	d.mu.Lock()
	running := slices.Collect(maps.Keys(d.logs))
	d.mu.Unlock()
	type log struct {
		path string
		time time.Time
	}
	var old []log
	for _, f := range files {
		if slices.ContainsFunc(running, func(path string) bool { return strings.HasPrefix(f, path) }) {
			continue
		}
		if info, err := os.Stat(f); err == nil {
			old = append(old, log{f, info.ModTime()})
		}
	}
	slices.SortFunc(old, func(a, b log) int { return b.time.Compare(a.time) })
	var errs []error
	last := map[string]bool{} // partitions whose newest log has come
	for i, l := range old {
		partition := l.path[:max(0, strings.LastIndexByte(l.path, '-'))]
		newest := !last[partition]
		if last[partition] = true; i < logsKept || newest && i < mostLogs {
			continue
		}
		if err := os.Remove(l.path); !errors.Is(err, fs.ErrNotExist) { // another start has just removed it
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
