// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// policed is a model with a queue policy on one partition, which executes one request until release.
type policed struct {
	t    *testing.T
	d    *dispatch.Dispatcher
	p    *triton
	r    *recorder
	hold chan struct{}
	all  sync.WaitGroup
	mu   sync.Mutex
	errs map[string]error
}

func newPoliced(t *testing.T, batching *tritonpb.ModelDynamicBatching) *policed {
	p := &policed{t: t, p: newTriton(t), hold: make(chan struct{}), errs: map[string]error{}}
	started := make(chan string, 100)
	p.p.set(func() { p.p.hold, p.p.started = p.hold, started })
	p.d, p.r = newDispatcher(t, dispatch.Options{}, table(1, func(m *router.Model) {
		m.SLO = 0
		m.Config.MaxBatchSize = 2
		m.Written = proto.CloneOf(m.Config)
		m.Written.SchedulingChoice = &tritonpb.ModelConfig_DynamicBatching{DynamicBatching: batching}
	}, p.p))
	p.send("busy", 1, nil)
	<-started
	return p
}

// send sends a request of a priority, and waits until it is queued or answered.
func (p *policed) send(id string, priority int64, change func(*tritonpb.ModelInferRequest)) {
	before := p.r.arrivals()
	p.all.Go(func() {
		resp, err := p.d.Infer(p.t.Context(), request(p.t, id, 1, 1, func(m *tritonpb.ModelInferRequest) {
			m.Parameters = map[string]*tritonpb.InferParameter{"priority": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: priority}}}
			if change != nil {
				change(m)
			}
		}))
		if err == nil {
			resp.Free()
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.errs[id] = err
	})
	require.Eventually(p.t, func() bool {
		counts, _ := p.d.Counts("m")
		_, answered := p.answer(id)
		return p.r.arrivals() > before && (answered || id == "busy" || counts.Waiting+p.answers() == before)
	}, 30*time.Second, time.Millisecond, id)
}

func (p *policed) answer(id string) (error, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	err, ok := p.errs[id]
	return err, ok
}

func (p *policed) answers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.errs)
}

// refused waits for the answer to a request and wants it to be UNAVAILABLE with a text.
func (p *policed) refused(id, text string) {
	p.t.Helper()
	require.Eventually(p.t, func() bool { _, ok := p.answer(id); return ok }, 30*time.Second, time.Millisecond, id)
	err, _ := p.answer(id)
	require.Equal(p.t, codes.Unavailable, status.Code(err))
	require.Equal(p.t, text, status.Convert(err).Message())
}

// end lets everything execute and returns the ids in the order in which the server has seen them; those of a batch have none.
func (p *policed) end() []string {
	close(p.hold)
	p.all.Wait()
	p.p.mu.Lock()
	defer p.p.mu.Unlock()
	return slices.Clone(p.p.seen)
}

func wantsClasses(m *tritonpb.ModelInferRequest) {
	m.Outputs = []*tritonpb.ModelInferRequest_InferRequestedOutputTensor{{Name: "OUT", Parameters: map[string]*tritonpb.InferParameter{
		"classification": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: 1}},
	}}}
}

// TestQueuePolicyRefuses: what may not wait any longer is refused while the partition is busy, and a level that is full at once.
func TestQueuePolicyRefuses(t *testing.T) {
	p := newPoliced(t, &tritonpb.ModelDynamicBatching{
		PriorityLevels: 3, DefaultPriorityLevel: 2, DefaultQueuePolicy: &tritonpb.ModelQueuePolicy{DefaultTimeoutMicroseconds: 5000},
		PriorityQueuePolicy: map[uint64]*tritonpb.ModelQueuePolicy{1: {}, 3: {MaxQueueSize: 2}},
	})
	p.send("hasty", 0, nil)
	p.send("hasty too", 7, wantsClasses)
	p.send("low", 3, nil)
	p.send("low too", 3, wantsClasses)
	p.send("beyond", 3, nil)
	p.send("classes beyond", 3, wantsClasses)
	p.send("", 3, nil)
	p.refused("hasty", "Request timeout expired")
	p.refused("hasty too", "Request timeout expired")
	p.refused("beyond", "[request id: beyond] Exceeds maximum queue size")
	p.refused("classes beyond", "[request id: classes beyond] Exceeds maximum queue size")
	p.refused("", "[request id: <id_unknown>] Exceeds maximum queue size")
	require.Len(t, p.end(), 3)
	for _, id := range []string{"busy", "low", "low too"} {
		err, _ := p.answer(id)
		require.NoError(t, err, id)
	}
	require.Eventually(t, p.r.settled, 30*time.Second, time.Millisecond)
	require.Equal(t, map[dispatch.Result]int{dispatch.OK: 3, dispatch.Dropped: 2, dispatch.Refused: 3}, p.r.count(t))
	counts := p.d.VersionCounts("m")[0]
	require.EqualValues(t, 3, counts.Success)
	require.EqualValues(t, 2, counts.Failed, "Triton counts those whose time was over, and not those that it did not queue")
}

// TestQueuePolicyOrders: higher levels first, and what waited for too long last.
func TestQueuePolicyOrders(t *testing.T) {
	p := newPoliced(t, &tritonpb.ModelDynamicBatching{
		PriorityLevels: 4, DefaultPriorityLevel: 2,
		PriorityQueuePolicy: map[uint64]*tritonpb.ModelQueuePolicy{1: {TimeoutAction: tritonpb.ModelQueuePolicy_DELAY, DefaultTimeoutMicroseconds: 1}},
	})
	p.send("late", 1, wantsClasses)
	p.send("4", 4, wantsClasses)
	p.send("3", 3, wantsClasses)
	p.send("none", 0, wantsClasses)
	p.send("beyond", 9, wantsClasses)
	require.Equal(t, []string{"busy", "none", "beyond", "3", "4", "late"}, p.end())
}

// TestQueuePolicyLeftToTheServers: of a model whose servers have dynamic_batching, Conch keeps no policy.
func TestQueuePolicyLeftToTheServers(t *testing.T) {
	p := newTriton(t)
	d, _ := newDispatcher(t, dispatch.Options{}, table(1, func(m *router.Model) {
		m.Config.SchedulingChoice = &tritonpb.ModelConfig_DynamicBatching{DynamicBatching: &tritonpb.ModelDynamicBatching{
			DefaultQueuePolicy: &tritonpb.ModelQueuePolicy{MaxQueueSize: 1},
		}}
		m.Batchable = false
	}, p))
	hold := make(chan struct{})
	p.set(func() { p.hold = hold })
	errs := make(chan error, 4)
	for i := range 4 {
		go func() { errs <- infer(context.WithoutCancel(t.Context()), t, d, uint32(i), 1, nil) }()
	}
	require.Eventually(t, func() bool { return len(p.executions()) == 4 }, 30*time.Second, time.Millisecond, "all pass through")
	close(hold)
	for range 4 {
		require.NoError(t, <-errs)
	}
}
