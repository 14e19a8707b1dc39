// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// line drives a batcher with policies by hand: one row per request, one request per batch, instances that wait when the test lets them.
type line struct {
	*batcher
	t       *testing.T
	expired []string
}

func newLine(t *testing.T, d *pb.ModelDynamicBatching) *line {
	l := &line{t: t, batcher: &batcher{dynamic: true, maxBatch: 1, preferred: []int{1}, instances: 1, policies: newPolicies(d), dropCanceled: func(*request) {}}}
	l.dropExpired = func(r *request) { l.expired = append(l.expired, r.id) }
	return l
}

// arrive is a request of a priority at a time in milliseconds; timeout is its own, in microseconds.
func (l *line) arrive(ms int, id string, priority uint64, timeout time.Duration) *Error {
	l.t.Helper()
	r := &request{ctx: l.t.Context(), id: id, rows: 1, priority: priority, timeout: timeout, enqueued: at(ms), inputs: []tensor{{name: "X", shape: []int64{1, 1}}}}
	err := l.add(r)
	l.form(at(ms))
	return err
}

// free has an instance take what is next.
func (l *line) free(ms int) string {
	l.idle = 1
	l.form(at(ms))
	p := l.take(at(ms))
	l.idle = 0
	if p == nil {
		return ""
	}
	return p.requests[0].id
}

func TestPriorities(t *testing.T) {
	l := newLine(t, &pb.ModelDynamicBatching{PriorityLevels: 3, DefaultPriorityLevel: 2})
	for i, c := range []struct {
		id       string
		priority uint64
	}{{"low", 3}, {"none", 0}, {"high", 1}, {"beyond", 9}, {"middle", 2}, {"high too", 1}} {
		require.Nil(t, l.arrive(i, c.id, c.priority, 0))
	}
	require.Equal(t, 6, l.pending())
	require.Empty(t, l.ready, "nothing is made ahead of a free instance")
	for _, want := range []string{"high", "high too", "none", "beyond", "middle", "low", ""} {
		require.Equal(t, want, l.free(10))
	}
}

func TestAFullLine(t *testing.T) {
	l := newLine(t, &pb.ModelDynamicBatching{PriorityLevels: 2, DefaultPriorityLevel: 2, DefaultQueuePolicy: &pb.ModelQueuePolicy{MaxQueueSize: 2},
		PriorityQueuePolicy: map[uint64]*pb.ModelQueuePolicy{1: {MaxQueueSize: 1}}})
	require.Nil(t, l.arrive(0, "a", 2, 0))
	require.Nil(t, l.arrive(0, "b", 2, 0))
	require.Nil(t, l.arrive(0, "c", 1, 0), "a line of its own")
	require.Equal(t, &Error{codes.Unavailable, "[request id: d] Exceeds maximum queue size"}, l.arrive(0, "d", 2, 0))
	require.Equal(t, &Error{codes.Unavailable, "[request id: <id_unknown>] Exceeds maximum queue size"}, l.arrive(0, "", 1, 0))
	require.Equal(t, "c", l.free(1))
	require.Equal(t, "a", l.free(1))
	require.Nil(t, l.arrive(1, "e", 2, 0))
	require.Equal(t, "b", l.free(1))
	require.Equal(t, "e", l.free(1))
}

func TestTimeouts(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	policy := func(action pb.ModelQueuePolicy_TimeoutAction, override bool) *pb.ModelDynamicBatching {
		return &pb.ModelDynamicBatching{DefaultQueuePolicy: &pb.ModelQueuePolicy{TimeoutAction: action, DefaultTimeoutMicroseconds: 100_000, AllowTimeoutOverride: override}}
	}
	t.Run("refused", func(t *testing.T) {
		l := newLine(t, policy(pb.ModelQueuePolicy_REJECT, true))
		require.Nil(t, l.arrive(0, "own", 0, ms(20)))
		require.Nil(t, l.arrive(0, "longer", 0, ms(9000)))
		require.Nil(t, l.arrive(50, "default", 0, 0))
		require.Equal(t, "longer", l.free(99))
		require.Equal(t, []string{"own"}, l.expired, "it is said when somebody looks")
		require.Empty(t, l.free(150))
		require.Equal(t, []string{"own", "default"}, l.expired)
	})
	t.Run("a longer one does not count", func(t *testing.T) {
		l := newLine(t, policy(pb.ModelQueuePolicy_REJECT, true))
		require.Nil(t, l.arrive(0, "longer", 0, ms(9000)))
		require.Empty(t, l.free(100))
		require.Equal(t, []string{"longer"}, l.expired)
	})
	t.Run("one's own does not count", func(t *testing.T) {
		l := newLine(t, policy(pb.ModelQueuePolicy_REJECT, false))
		require.Nil(t, l.arrive(0, "own", 0, ms(1)))
		require.Equal(t, "own", l.free(50))
	})
	t.Run("put off", func(t *testing.T) {
		l := newLine(t, policy(pb.ModelQueuePolicy_DELAY, false))
		require.Nil(t, l.arrive(0, "late", 0, 0))
		require.Nil(t, l.arrive(10, "late too", 0, 0))
		require.Nil(t, l.arrive(60, "fresh", 0, 0))
		for _, want := range []string{"fresh", "late", "late too", ""} {
			require.Equal(t, want, l.free(120))
		}
		require.Empty(t, l.expired)
	})
}

func TestOrdering(t *testing.T) {
	o := &ordering{}
	var sent []string
	requests := map[string]*request{}
	for _, name := range []string{"a", "b", "c"} {
		r := &request{respond: func(resp *response, final bool) {
			if final {
				name += "."
			}
			sent = append(sent, name)
		}}
		o.join(r)
		requests[name] = r
	}
	requests["c"].respond(nil, true)
	requests["b"].respond(&response{}, false)
	require.Empty(t, sent, "the first has not been answered")
	requests["a"].respond(nil, true)
	require.Equal(t, []string{"a.", "b"}, sent, "what b has said goes out, and c waits for the rest of b")
	requests["b"].respond(nil, true)
	require.Equal(t, []string{"a.", "b", "b.", "c."}, sent)
	require.Empty(t, o.line)
}
