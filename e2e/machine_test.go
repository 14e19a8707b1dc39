// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
)

// machine is what the machine says of a conch: not what conch says of itself.
type machine struct {
	servers map[string]running // by cut.process
	strays  []string           // what belongs to no server
}

// running is a tritonserver, and the python processes of its models: a model that is loaded again has another one.
type running struct {
	pid   int
	stubs map[string]int // by model
}

var (
	stubModel = regexp.MustCompile(`/repository/([^/]+)/`)
	shmPrefix = regexp.MustCompile(`shm-region-prefix-name=([^\x00]+)`)
)

// look looks at processes, shared memory, sockets and directories.
func look(t *testing.T, c *rig.Conch) machine {
	t.Helper()
	o := machine{servers: map[string]running{}}
	all := processes(t)
	shims, names, prefixes := map[int]bool{}, map[string]bool{}, map[string]bool{}
	of := processesOf(t, c)
	for _, p := range of {
		if strings.Contains(p.command, "\x00shim\x00"+c.State) {
			shims[p.pid] = true
		}
	}
	pids := map[int]string{}
	for _, p := range of {
		if !shims[p.parent] || !strings.Contains(p.command, "shm-region-prefix-name=") {
			continue
		}
		key := fmt.Sprintf("%s:%s:0", variable(p, "CONCH_PARTITION"), variable(p, "CONCH_SHARE"))
		if other, twice := o.servers[key]; twice {
			o.strays = append(o.strays, fmt.Sprintf("%s has two servers: %d and %d", key, other.pid, p.pid))
		}
		o.servers[key] = running{pid: p.pid, stubs: map[string]int{}}
		pids[p.pid] = key
		names[variable(p, "CONCH_SERVER")] = true
		if m := shmPrefix.FindStringSubmatch(p.command); m != nil {
			prefixes[m[1]] = true
		}
		delete(shims, p.parent)
	}
	for pid := range shims {
		o.strays = append(o.strays, fmt.Sprintf("shim %d has no server", pid))
	}
	for _, p := range of {
		if !strings.Contains(p.command, "triton_python_backend_stub") {
			continue
		}
		key, known := pids[p.parent]
		m := stubModel.FindStringSubmatch(p.command)
		switch {
		case !known || m == nil:
			o.strays = append(o.strays, fmt.Sprintf("python process %d of parent %d (%q) has no server", p.pid, p.parent, all[p.parent].command))
		case o.servers[key].stubs[m[1]] != 0:
			o.strays = append(o.strays, fmt.Sprintf("%s has two python processes of %s", key, m[1]))
		default:
			o.servers[key].stubs[m[1]] = p.pid
		}
	}
	for _, dir := range []string{filepath.Join(c.State, "servers", "run"), filepath.Join(c.State, "partitions")} {
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		if len(entries) != len(o.servers) {
			o.strays = append(o.strays, fmt.Sprintf("%s has %v for %d servers", dir, entries, len(o.servers)))
		}
	}
	for prefix := range prefixes {
		owner := prefix[:strings.LastIndex(strings.TrimSuffix(prefix, "-"), "-")+1]
		files, err := filepath.Glob("/dev/shm/" + owner + "*")
		require.NoError(t, err)
		for _, f := range files {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(prefixes)), func(p string) bool { return strings.HasPrefix(filepath.Base(f), p) }) {
				o.strays = append(o.strays, "shared memory of no server: "+f)
			}
		}
	}
	return o
}

// variable of a process's environment.
func variable(p process, name string) string {
	_, after, _ := strings.Cut(p.environment, "\x00"+name+"=")
	value, _, _ := strings.Cut(after, "\x00")
	return value
}

// requireLayout waits until there is what a layout says and nothing else, by the machine's word and by conch's.
func requireLayout(t *testing.T, c *rig.Conch, a *client.Client, l layout) machine {
	t.Helper()
	want := map[string][]string{}
	for _, cut := range l {
		want[fmt.Sprintf("%s:%d:0", cut.partition, cut.share)] = cut.models
	}
	var o machine
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		o = look(t, c)
		have := map[string][]string{}
		for key, s := range o.servers {
			have[key] = slices.Sorted(maps.Keys(s.stubs))
		}
		assert.Equal(collect, want, have)
		assert.Empty(collect, o.strays)
		gpus, err := a.GPUs(t.Context())
		assert.NoError(collect, err)
		reported := map[string][]string{}
		for _, g := range gpus {
			for _, p := range g.Partitions {
				ready, _ := api.ConditionOf(p.Conditions, api.ConditionReady)
				assert.True(collect, p.Up && ready.Holds, "%s: %s %s", p.ID, p.Reason, ready.Message)
				slices.Sort(p.Models)
				reported[fmt.Sprintf("%s:%d:0", p.ID, p.ThreadPercentage)] = p.Models
			}
		}
		assert.Equal(collect, want, reported)
	}, 2*time.Minute, 20*time.Millisecond)
	return o
}

// requireUntouched is: a server that all the layouts have is the same process, and so is what it has loaded of the models that all have there.
func requireUntouched(t *testing.T, before, after machine, layouts ...layout) {
	t.Helper()
	for key, was := range before.servers {
		for model, pid := range was.stubs {
			kept := true
			for _, l := range layouts {
				kept = kept && slices.ContainsFunc(l, func(c cut) bool {
					return fmt.Sprintf("%s:%d:0", c.partition, c.share) == key && slices.Contains(c.models, model)
				})
			}
			if kept {
				require.Equal(t, was.pid, after.servers[key].pid, "the server of %s was started again, in %v", key, layouts)
				require.Equal(t, pid, after.servers[key].stubs[model], "%s was loaded again on %s, in %v", model, key, layouts)
			}
		}
	}
}
