// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package servers

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/observe"
)

// counting is a server that executes ten batches of every size between two looks.
type counting struct {
	tritonpb.GRPCInferenceServiceClient
	looks uint64
	err   error
}

func (c *counting) ModelStatistics(context.Context, *tritonpb.ModelStatisticsRequest, ...grpc.CallOption) (*tritonpb.ModelStatisticsResponse, error) {
	c.looks++
	s := &tritonpb.ModelStatistics{Name: "m", Version: "1"}
	for rows := uint64(1); rows <= 4; rows++ {
		s.BatchStats = append(s.BatchStats, &tritonpb.InferBatchStatistics{BatchSize: rows, ComputeInfer: &tritonpb.StatisticDuration{Count: 10 * c.looks, Ns: 10 * c.looks * (5 + rows) * 1e6}})
	}
	return &tritonpb.ModelStatisticsResponse{ModelStats: []*tritonpb.ModelStatistics{s}}, c.err
}

// Servers are asked while they batch and left alone once Conch does; one that does
// not answer does not delay the others.
func TestServersThatBatchAreAskedWhatTheyDid(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		recorder, err := observe.New(nil)
		require.NoError(t, err)
		recorder.SetModel("m", "r1", 4, nil)
		mute, good := &counting{err: errors.New("gone")}, &counting{}
		var passing atomic.Bool
		passing.Store(true)
		s := &Served{
			recorder: recorder, passing: passing.Load, nodes: func() []*policy.Node {
				return []*policy.Node{{Gpus: []*policy.GPU{{Id: "gpu0", Type: "A"}, {Id: "gpu1", Type: "B"}}}}
			}, seen: map[string]*observe.ServerStatistics{},
			each: func(ctx context.Context, call func(context.Context, driver.EndpointState, tritonpb.GRPCInferenceServiceClient) error) error {
				for gpu, c := range map[string]*counting{"gpu0": mute, "gpu1": good} {
					if err := call(ctx, driver.EndpointState{AttachEndpoint: driver.AttachEndpoint{GPU: gpu}}, c); err != nil {
						return err
					}
				}
				return nil
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = s.Run(ctx) }()
		time.Sleep(5 * servedEvery / 2)
		synctest.Wait()
		require.EqualValues(t, 3, mute.looks)
		require.EqualValues(t, 3, good.looks)
		require.Empty(t, recorder.Unusable("m", "B"))
		require.NotEmpty(t, recorder.Unusable("m", "A"))
		passing.Store(false)
		time.Sleep(10 * servedEvery)
		synctest.Wait()
		require.EqualValues(t, 3, good.looks)
		cancel()
		<-ended
	})
}
