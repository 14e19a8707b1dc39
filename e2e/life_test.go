// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/rig"
)

// Every request that conch has accepted before SIGTERM is answered, and its servers end with it.
func TestDrainOnSIGTERM(t *testing.T) {
	t.Parallel()
	c := start(t, 2, nil, "emulated")
	a := admin(t, c)
	triton := triton(t, c)
	left := remainsOf(t, c)
	require.Len(t, left.prefixes, 2, "every server names its shared memory")
	require.GreaterOrEqual(t, len(left.processes), 5, "two servers, two stubs, a policy")
	const callers = 100
	rows := scrape(t, c).sum("conch_request_rows_total", "model=emulated")
	release := holdEmulation(t, c, 2)
	answers := make(chan error, callers)
	for i := range callers {
		go func() {
			r, err := triton.ModelInfer(t.Context(), tensor("emulated", float32(i)))
			if err == nil && firstOutput(r) != 2*float32(i)+1 {
				err = assert.AnError
			}
			answers <- err
		}()
	}
	require.Eventually(t, func() bool {
		return scrape(t, c).sum("conch_request_rows_total", "model=emulated") == rows+callers
	}, 30*time.Second, 10*time.Millisecond, "all are accepted")
	m, err := a.Model(t.Context(), "emulated")
	require.NoError(t, err)
	require.Greater(t, m.Queued, callers/2, "requests queue up")
	require.NoError(t, syscall.Kill(c.Pid(), syscall.SIGTERM))
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		status, body, err := get(t, "http://"+c.Metrics+"/readyz")
		assert.NoError(collect, err)
		assert.Equal(collect, http.StatusServiceUnavailable, status)
		assert.Contains(collect, body, "draining")
	}, 30*time.Second, 10*time.Millisecond, "who balances load is told to go elsewhere")
	_, err = triton.ModelInfer(t.Context(), tensor("emulated", 1))
	require.Equal(t, codes.Unavailable, status.Code(err), "new requests are refused: %v", err)
	release()
	for range callers {
		require.NoError(t, <-answers)
	}
	select {
	case <-c.Exited():
		require.NoError(t, c.ExitError(), "conch ends with status 0")
	case <-time.After(time.Minute):
		require.FailNow(t, "conch still runs a minute after its last answer")
	}
	left.requireGone(t, c)
}

// holdEmulation takes the turn of every partition on emulated GPUs: executions begin, and end after the release.
func holdEmulation(t *testing.T, c *rig.Conch, partitions int) (release func()) {
	t.Helper()
	locks := map[string]*os.File{}
	for _, p := range processesOf(t, c) {
		_, after, found := strings.Cut(p.environment, "\x00CONCH_EMULATION_DIR=")
		if !found {
			continue
		}
		dir, _, _ := strings.Cut(after, "\x00")
		files, err := filepath.Glob(filepath.Join(dir, "partition-*.lock"))
		require.NoError(t, err)
		for _, name := range files {
			if locks[name] == nil {
				locks[name], err = os.Open(name)
				require.NoError(t, err)
				require.NoError(t, syscall.Flock(int(locks[name].Fd()), syscall.LOCK_EX))
			}
		}
	}
	require.Len(t, locks, partitions)
	release = sync.OnceFunc(func() {
		for _, lock := range locks {
			require.NoError(t, lock.Close())
		}
	})
	t.Cleanup(release)
	return release
}
