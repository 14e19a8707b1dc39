// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// TestTurmoilOfEnsembles: callers that leave in every state, steps that fail, servers that end, and tables that lose steps, ensembles and executions. Each
// request has one answer, which is its own, and nothing is held in the end.
func TestTurmoilOfEnsembles(t *testing.T) {
	servers, u := inTurmoil(t), &turmoil{}
	var log bytes.Buffer
	var logging sync.Mutex
	seen := &recorder{}
	d := dispatch.New(dispatch.Options{Observer: seen, Forward: forward.Options{Pool: &u.answers}, OutageWait: 300 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(locked{&logging, &log}, nil))})
	made := func(n uint64) *router.Table {
		parts := servers
		if n%3 == 0 {
			parts = servers[1:]
		}
		return ensembleTable(n, func(tb *router.Table) {
			tb.Models["split"] = ensembleOf("split", [3]string{"m", "IN", "OUT"}, [3]string{"e", "IN", "OTHER"}, [3]string{"n", "OTHER", "THIRD"})
			tb.Models["split"].Config.Output = append(tb.Models["split"].Config.Output, &tritonpb.ModelOutput{Name: "THIRD", DataType: tritonpb.DataType_TYPE_FP32, Dims: []int64{4}})
			tb.Models["split"].Places = tb.Models["m"].Places
			executions := int(1 + n%4)
			for _, p := range tb.Partitions {
				p.Executions = executions
			}
			for _, name := range []string{"m", "n", "e", "split"} {
				places := append([]router.Place(nil), tb.Models[name].Places...)
				for i := range places {
					places[i].Executions = 1 + rand.Uint64N(1<<executions-1)
				}
				tb.Models[name].Places = places
				tb.Models[name].SLO = time.Duration(rand.IntN(3)) * 20 * time.Millisecond
				tb.Models[name].Late = policy.LatePolicy(rand.IntN(3))
				if rand.IntN(2) == 0 {
					m := tb.Models[name]
					m.Written = proto.CloneOf(m.Config)
					if m.Config.GetEnsembleScheduling() == nil {
						m.Written.SchedulingChoice = &tritonpb.ModelConfig_DynamicBatching{DynamicBatching: &tritonpb.ModelDynamicBatching{
							PriorityLevels: 3, DefaultPriorityLevel: 2, DefaultQueuePolicy: &tritonpb.ModelQueuePolicy{
								DefaultTimeoutMicroseconds: uint64(rand.IntN(3) * 4000), TimeoutAction: tritonpb.ModelQueuePolicy_TimeoutAction(rand.IntN(2)), AllowTimeoutOverride: true, MaxQueueSize: uint32(rand.IntN(3) * 20),
							},
						}}
					}
				}
			}
			switch rand.IntN(6) {
			case 0:
				delete(tb.Models, "n")
			case 1:
				delete(tb.Models, "e")
			case 2:
				tb.Models["n"].Batchable, tb.Models["n"].PassThroughReason = false, "a test"
			}
		}, parts...)
	}
	require.NoError(t, d.Swap(t.Context(), made(1)))
	for _, name := range []string{"m", "n"} {
		profile := linear(100*time.Microsecond, 300*time.Microsecond)
		profile.Model = name
		d.SetProfile(profile)
	}

	models := []string{"m", "n", "e", "split", "e", "split"}
	u.ask(d, func(m *tritonpb.ModelInferRequest) {
		m.ModelName = models[rand.IntN(len(models))]
		switch rand.IntN(20) {
		case 0:
			m.Parameters = map[string]*tritonpb.InferParameter{"priority": {ParameterChoice: &tritonpb.InferParameter_Uint64Param{Uint64Param: uint64(rand.IntN(4))}}}
		case 1:
			m.Parameters = map[string]*tritonpb.InferParameter{"timeout": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: rand.Int64N(5000)}}}
		}
	})
	u.running.Go(func() {
		for n := uint64(2); time.Now().Before(u.ends); n++ {
			time.Sleep(20 * time.Millisecond)
			if n%5 == 0 {
				servers[0].kill()
				time.Sleep(30 * time.Millisecond)
				servers[0].restart()
			} else if err := d.Swap(context.Background(), made(n)); err != nil {
				u.wrong.Store(n, err.Error())
			}
		}
	})
	u.over(t, d)
	require.NoError(t, d.Fault())
	logging.Lock()
	defer logging.Unlock()
	require.NotContains(t, log.String(), "fault of Conch's")
	require.NotContains(t, log.String(), "stack=")
	require.NotContains(t, log.String(), "has not taken a change")
	t.Log("requests", u.begun.Load(), seen.count(t))
}
