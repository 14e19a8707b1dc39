// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin/api"
)

// greedy takes all that it can get, as the mood says. Its own bounds hold even if no limit does: nothing here harms the machine.
func greedy(s *policy.Snapshot) (*policy.Plan, error) {
	answer := &policy.Plan{SnapshotRevision: s.GetRevision(), Policy: "moody", PolicyVersion: "1"}
	switch s.GetParameters()["mood"] {
	case "partitions": // of two bytes each: 32 MiB
		nothing := &policy.Partition{}
		for range 16 << 20 {
			answer.Partitions = append(answer.Partitions, nothing)
		}
	case "names":
		answer.Recipes = []*policy.Recipe{{Name: "r", Members: make([]string, 10_000_000)}}
	case "forks":
		for range 1000 {
			_ = exec.CommandContext(context.Background(), "/bin/sleep", "5").Start() // until it is not allowed, and on
		}
	case "memory":
		var all [][]byte
		for range 300 { // 4.7 GiB, of which the limit allows 2
			block := make([]byte, 16<<20)
			for i := 0; i < len(block); i += 4096 {
				block[i] = 1
			}
			all = append(all, block)
		}
		runtime.KeepAlive(all)
	case "sockets":
		for i := range 1000 {
			_, _ = (&net.ListenConfig{}).Listen(context.Background(), "unix", filepath.Join(os.TempDir(), strconv.Itoa(i))) // until it is not allowed, and on
		}
	case "output":
		for end := time.Now().Add(time.Minute); time.Now().Before(end); {
			fmt.Fprint(os.Stderr, strings.Repeat("much to say ", 1<<16)) // no line ends
		}
	}
	return answer, nil
}

// A policy that takes what it can get, or gives more than anyone can use, costs conch little, and requests nothing; and another policy can
// take over.
func TestGreedyPolicies(t *testing.T) {
	t.Parallel()
	c := embedded(t, rig.ConchOptions{Settings: moodySettings(t)})
	a := admin(t, c)
	before, err := a.Plan(t.Context())
	require.NoError(t, err)
	for _, mood := range []string{"partitions", "names", "forks", "memory", "sockets", "output", "hang"} {
		t.Run(mood, func(t *testing.T) {
			_, err := a.UsePolicy(t.Context(), api.UsePolicyRequest{Name: "moody", Parameters: map[string]string{"mood": "well"}})
			require.NoError(t, err)
			base, peak := rss(t, c.Pid()), watchRSS(t, c.Pid())
			p99 := whileGood(t, c, func() {
				_, err := a.UsePolicy(t.Context(), api.UsePolicyRequest{Name: "moody", Parameters: map[string]string{"mood": mood}})
				require.NoError(t, err)
				began := time.Now()
				_, err = a.Apply(t.Context(), api.ApplyRequest{})
				require.Error(t, err, "there is no such plan")
				require.Less(t, time.Since(began), 20*time.Second, "the deadline is two seconds")
			})
			more := peak() - base
			t.Logf("%d MiB more, and a p99 of %v meanwhile: %v", more>>20, p99, err)
			require.Less(t, more, 100<<20)
			now, err := a.Plan(t.Context())
			require.NoError(t, err)
			require.Equal(t, before.Revision, now.Revision, "the last good plan serves on")
		})
	}
	_, err = a.UsePolicy(t.Context(), api.UsePolicyRequest{Name: "static"})
	require.NoError(t, err, "another policy can take over")
	_, err = a.Apply(t.Context(), api.ApplyRequest{})
	require.NoError(t, err)
}

// SIGTERM ends conch whatever its policy does, which ends with it.
func TestSIGTERMWhileAPolicyHangs(t *testing.T) {
	t.Parallel()
	settings := moodySettings(t)
	settings["policy"].(map[string]any)["deadline"] = "10m"
	c := embedded(t, rig.ConchOptions{Settings: settings})
	a := admin(t, c)
	answered := make(chan error, 1)
	go func() { // which asks the policy whether it takes the parameter
		_, err := a.UsePolicy(t.Context(), api.UsePolicyRequest{Name: "moody", Parameters: map[string]string{"mood": "hang"}})
		answered <- err
	}()
	require.Eventually(t, func() bool { return strings.Contains(c.LogTail(), hanging) }, 30*time.Second, 10*time.Millisecond)
	left := remainsOf(t, c)
	require.NotEmpty(t, left.processes, "a policy")
	require.NoError(t, syscall.Kill(c.Pid(), syscall.SIGTERM))
	select {
	case <-c.Exited():
		require.NoError(t, c.ExitError(), "conch ends with status 0")
	case <-time.After(30 * time.Second):
		require.FailNow(t, "conch still runs half a minute after SIGTERM")
	}
	require.Error(t, <-answered, "who asked for a plan is told that there is none")
	left.requireGone(t, c)
}
