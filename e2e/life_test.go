// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"encoding/json"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/sidecar/admin/client"
)

// Everything that conch has accepted when it is told to end is answered, and its servers end with it.
func TestDrainOnSIGTERM(t *testing.T) {
	c := start(t, 2, nil, "emulated")
	a := admin(t, c)
	triton := triton(t, c)
	left := remainsOf(t, c)
	require.Len(t, left.prefixes, 2, "every server names its shared memory")
	require.GreaterOrEqual(t, len(left.processes), 5, "two servers, two stubs, a policy")
	const callers = 100
	var done atomic.Int64
	answers := make(chan error, callers)
	for i := range callers {
		go func() {
			r, err := triton.ModelInfer(t.Context(), tensor("emulated", float32(i)))
			if err == nil && firstOutput(r) != 2*float32(i)+1 {
				err = assert.AnError
			}
			done.Add(1)
			answers <- err
		}()
	}
	require.Eventually(t, func() bool {
		m, err := a.Model(t.Context(), "emulated")
		return err == nil && m.Queued > 0 && m.Queued+int(done.Load()) > callers/2
	}, 30*time.Second, time.Millisecond, "requests queue up")
	require.NoError(t, syscall.Kill(c.Pid(), syscall.SIGTERM))
	require.EventuallyWithT(t, func(collect *assert.CollectT) {
		status, body, err := get(t, "http://"+c.Metrics+"/readyz")
		assert.NoError(collect, err)
		assert.Equal(collect, http.StatusServiceUnavailable, status)
		assert.Contains(collect, body, "draining")
	}, 30*time.Second, time.Millisecond, "who balances load is told to go elsewhere")
	_, err := triton.ModelInfer(t.Context(), tensor("emulated", 1))
	require.Equal(t, codes.Unavailable, status.Code(err), "new requests are refused: %v", err)
	for range callers {
		require.NoError(t, <-answers)
	}
	select {
	case <-c.Exited():
		require.NoError(t, c.ExitError(), "conch ends with status 0")
	case <-time.After(20 * time.Second):
		require.FailNow(t, "conch still runs 20 s after SIGTERM")
	}
	left.requireGone(t, c)
}

// A conch that starts again on its state serves what it served, and an unclean end is no exception.
func TestRestartOnTheSameState(t *testing.T) {
	c := start(t, 2, nil, "emulated")
	a := admin(t, c)
	before, err := a.Plan(t.Context())
	require.NoError(t, err)
	kill(t, c.Pid())
	<-c.Exited()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, c.Restart(ctx))
	after, err := a.Plan(t.Context())
	require.NoError(t, err)
	require.Equal(t, withoutRevision(t, before), withoutRevision(t, after))
	r, err := triton(t, c).ModelInfer(t.Context(), tensor("emulated", 2))
	require.NoError(t, err)
	require.InDelta(t, 5, firstOutput(r), 0)
}

// withoutRevision is a plan as data, without the revision of the snapshot that it answers.
func withoutRevision(t *testing.T, p client.Plan) map[string]any {
	t.Helper()
	var data map[string]any
	require.NoError(t, json.Unmarshal(p.Plan, &data))
	require.NotEmpty(t, data["partitions"])
	delete(data, "snapshot_revision")
	return data
}
