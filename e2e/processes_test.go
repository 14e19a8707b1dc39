// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/rig"
)

// process is one of this machine.
type process struct {
	pid, parent          int
	command, environment string // words and lines end with a zero byte
}

// processes lists those of this machine. One that ends meanwhile is missing or empty.
func processes(t *testing.T) map[int]process {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	require.NoError(t, err)
	all := map[int]process{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		read := func(file string) string {
			data, _ := os.ReadFile(filepath.Join("/proc", e.Name(), file))
			return string(data)
		}
		p := process{pid: pid, command: read("cmdline"), environment: "\x00" + read("environ")}
		_, afterName, _ := strings.Cut(read("stat"), ") ")
		if fields := strings.Fields(afterName); len(fields) > 1 && fields[0] != "Z" {
			p.parent, _ = strconv.Atoi(fields[1])
			all[pid] = p
		}
	}
	return all
}

// processesOf lists what conch started, directly or not: tritonservers, the stubs of their python backend, policies.
func processesOf(t *testing.T, c *rig.Conch) []process {
	t.Helper()
	all := processes(t)
	var of []process
	for _, p := range all {
		ancestor := p
		for ancestor.parent > 1 && ancestor.parent != c.Pid() {
			ancestor = all[ancestor.parent]
		}
		// Servers and stubs find the emulated GPUs through their environment; a stub whose server was killed has no other mark. Shims, which
		// outlive conch, have a directory of its state.
		if ancestor.parent == c.Pid() || strings.Contains(p.environment, "="+c.State+"/") || strings.Contains(p.command, "\x00shim\x00"+c.State+"/") {
			of = append(of, p)
		}
	}
	return of
}

// serverOf finds the process of a partition's tritonserver, which a shim is the parent of.
func serverOf(t *testing.T, c *rig.Conch, partition string) int {
	t.Helper()
	all := processes(t)
	for _, p := range processesOf(t, c) {
		if strings.Contains(all[p.parent].command, "\x00shim\x00") && strings.Contains(p.environment, "\x00CONCH_PARTITION="+partition+"\x00") {
			return p.pid
		}
	}
	require.FailNow(t, "no tritonserver", "of partition %s under conch, process %d", partition, c.Pid())
	return 0
}

// shimOf finds the process of a shim by its server.
func shimOf(t *testing.T, server int) int {
	t.Helper()
	p := processes(t)[server]
	require.NotZero(t, p.parent, "server %d runs", server)
	return p.parent
}

// remains are what must not be left of conch once it has ended.
type remains struct {
	processes []process
	prefixes  map[string]bool // of the names of shared memory
}

// remainsOf looks what runs now. The prefix of shared memory is a flag of every server.
func remainsOf(t *testing.T, c *rig.Conch) remains {
	t.Helper()
	r := remains{processes: processesOf(t, c), prefixes: map[string]bool{}}
	for _, p := range r.processes {
		_, after, found := strings.Cut(p.command, "shm-region-prefix-name=")
		if prefix, _, _ := strings.Cut(after, "\x00"); found && prefix != "" {
			r.prefixes[prefix] = true
		}
	}
	return r
}

// requireGone is: nothing of it is left, and no other process of this conch either. Stubs of a server that was killed need up to two
// seconds to notice.
func (r remains) requireGone(t *testing.T, c *rig.Conch) {
	t.Helper()
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		now := processes(t)
		for _, p := range append(processesOf(t, c), r.processes...) {
			if q, runs := now[p.pid]; runs && q.command == p.command {
				assert.Fail(collect, "a process is left", "%d: %q", p.pid, p.command)
			}
		}
		for prefix := range r.prefixes {
			files, err := filepath.Glob("/dev/shm/" + prefix + "*")
			assert.NoError(collect, err)
			assert.Empty(collect, files, "shared memory is left")
		}
	}, 30*time.Second, 50*time.Millisecond)
}
