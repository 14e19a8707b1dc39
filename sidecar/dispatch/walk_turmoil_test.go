// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
	"github.com/conch-serving/conch/sidecar/dispatch/wire"
)

// TestTurmoilOfEnsembles: callers that leave in every state, steps that fail, servers that end, and tables that lose steps, ensembles and executions. Each
// request has one answer, which is its own, and nothing is held in the end.
func TestTurmoilOfEnsembles(t *testing.T) {
	servers := []*triton{newTriton(t), newTriton(t), newTriton(t)}
	for i, p := range servers {
		p.takes = time.Duration(i) * 300 * time.Microsecond
		p.refuse = func(r *tritonpb.ModelInferRequest) error {
			switch n := rand.IntN(60); {
			case n == 0:
				return status.Error(codes.Internal, "a fault of the model's")
			case n == 1:
				return status.Error(codes.InvalidArgument, "refused")
			}
			return nil
		}
	}
	requests, answers := new(countedPool), new(countedPool)
	var log bytes.Buffer
	var logging sync.Mutex
	seen := &recorder{}
	d := dispatch.New(dispatch.Options{Observer: seen, Forward: forward.Options{Pool: answers}, OutageWait: 300 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(locked{&logging, &log}, nil))})
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

	ends := time.Now().Add(time.Second)
	var begun, answered atomic.Int64
	var wrong sync.Map
	var running sync.WaitGroup
	models := []string{"m", "n", "e", "split", "e", "split"}
	for g := range 6 {
		running.Go(func() {
			for i := uint32(0); time.Now().Before(ends); i++ {
				seed, rows := uint32(g)<<24|i, 1+rand.IntN(10)
				id := fmt.Sprint(seed)
				m := message(id, rows, seed)
				m.ModelName = models[rand.IntN(len(models))]
				want := string(m.RawInputContents[0])
				switch rand.IntN(20) {
				case 0:
					m.Parameters = map[string]*tritonpb.InferParameter{"priority": {ParameterChoice: &tritonpb.InferParameter_Uint64Param{Uint64Param: uint64(rand.IntN(4))}}}
				case 1:
					m.Parameters = map[string]*tritonpb.InferParameter{"timeout": {ParameterChoice: &tritonpb.InferParameter_Int64Param{Int64Param: rand.Int64N(5000)}}}
				}
				encoded, err := proto.Marshal(m)
				if err != nil {
					panic(err)
				}
				buf := requests.Get(len(encoded) + 2000)
				copy(*buf, encoded)
				*buf = (*buf)[:len(encoded)]
				r, err := batch.ReadRequest(mem.BufferSlice{mem.NewBuffer(buf, requests)})
				if err != nil {
					panic(err)
				}
				ctx, cancel := context.WithCancel(context.Background())
				switch rand.IntN(5) {
				case 0:
					ctx, cancel = context.WithTimeout(context.Background(), time.Duration(rand.IntN(4000))*time.Microsecond)
				case 1:
					time.AfterFunc(time.Duration(rand.IntN(3000))*time.Microsecond, cancel)
				case 2:
					if rand.IntN(4) == 0 {
						cancel()
					}
				}
				begun.Add(1)
				var times atomic.Int32
				d.Begin(ctx, nil, r, func(_ *wire.Turn, a *batch.Response, err error) {
					if times.Add(1) > 1 {
						wrong.Store(id, "answered twice")
						return
					}
					if a != nil {
						for i := range a.Outputs {
							if string(a.Outputs[i].Data.Materialize()) != want {
								wrong.Store(id, fmt.Sprintf("an answer of %s to %q: %v", m.ModelName, a.ID, a.Err()))
							}
						}
						if len(a.Outputs) == 0 || a.ID != id {
							wrong.Store(id, fmt.Sprintf("an answer of %s to %q: %v", m.ModelName, a.ID, a.Err()))
						}
						a.Free()
					}
					cancel()
					answered.Add(1)
				})
				if rand.IntN(8) == 0 {
					time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
				}
				for begun.Load()-answered.Load() > 200 && time.Now().Before(ends.Add(10*time.Second)) {
					time.Sleep(100 * time.Microsecond)
				}
			}
		})
	}
	running.Go(func() {
		for n := uint64(2); time.Now().Before(ends); n++ {
			time.Sleep(20 * time.Millisecond)
			if n%5 == 0 {
				servers[0].kill()
				time.Sleep(30 * time.Millisecond)
				servers[0].restart()
			} else if err := d.Swap(context.Background(), made(n)); err != nil {
				wrong.Store(n, err.Error())
			}
		}
	})
	running.Wait()
	require.Eventually(t, func() bool { return begun.Load() == answered.Load() }, time.Minute, time.Millisecond, "%d of %d are answered", answered.Load(), begun.Load())
	require.Eventually(t, func() bool { n, bytes := d.UnderWay(); return n == 0 && bytes == 0 }, 30*time.Second, time.Millisecond)
	require.Eventually(t, func() bool {
		for _, p := range d.Partitions() {
			if p.Leases > 0 {
				return false
			}
		}
		return true
	}, 30*time.Second, time.Millisecond, "a lease is held")
	for _, name := range []string{"m", "n", "e", "split"} {
		if c, ok := d.Counts(name); ok {
			require.Zero(t, c.UnderWay, name)
			require.Zero(t, c.Waiting, name)
		}
	}
	require.NoError(t, d.Close())
	wrong.Range(func(id, what any) bool { t.Error(id, what); return true })
	require.Zero(t, dispatch.EndedTwice(d))
	require.NoError(t, d.Fault())
	require.Zero(t, requests.out.Load(), "buffers of requests")
	require.Zero(t, answers.out.Load(), "buffers of answers")
	logging.Lock()
	defer logging.Unlock()
	require.NotContains(t, log.String(), "fault of Conch's")
	require.NotContains(t, log.String(), "stack=")
	require.NotContains(t, log.String(), "refused a change")
	t.Log("requests", begun.Load(), seen.count(t))
}
