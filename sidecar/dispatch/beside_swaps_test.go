// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// BenchmarkInferBesideSwaps is what requests notice of ten swaps a second: 1,001 models on eight partitions, of which ten change their places with each
// swap. Requests to a model that takes 2 ms come from four callers, and in turns of a quarter of a second without and with swaps beside them, so
// that both have the same machine. It reports the ratio of the 99th percentiles, and how long a swap stops the queue.
func BenchmarkInferBesideSwaps(b *testing.B) {
	const others, changing, callers, turn, swaps = 1000, 10, 4, 250 * time.Millisecond, 100 * time.Millisecond
	r := newRig(b, 8, "slow")
	next := func(revision int) *router.Table {
		t := *r.table
		t.Revision, t.Models = uint64(revision+2), maps.Clone(r.table.Models)
		for i := range others {
			m := *r.table.Models["slow"]
			m.Name = fmt.Sprint("other-", i)
			at := i
			if i < changing {
				at += revision
			}
			m.Places = []router.Place{r.table.Models["slow"].Places[at%8]}
			t.Models[m.Name] = &m
		}
		return &t
	}
	revision := 0
	require.NoError(b, r.d.Swap(b.Context(), next(revision)))
	request := &tritonpb.ModelInferRequest{
		ModelName: "slow", Inputs: []*input{{Name: "INPUT0", Datatype: "FP32", Shape: []int64{1, 16}}}, RawInputContents: [][]byte{make([]byte, 64)},
	}
	var took [2][]time.Duration // without and with swaps
	ask := func(with int) {
		ctx, cancel := context.WithTimeout(b.Context(), turn)
		defer cancel()
		var mu sync.Mutex
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				for ctx.Err() == nil {
					began := time.Now()
					if _, err := r.client.ModelInfer(b.Context(), request); err != nil {
						b.Error(err)
						return
					}
					mu.Lock()
					took[with] = append(took[with], time.Since(began))
					mu.Unlock()
				}
			})
		}
		for with == 1 && ctx.Err() == nil {
			revision++
			table := next(revision) // made beside the requests, as the plan way does
			require.NoError(b, r.d.Swap(b.Context(), table))
			select {
			case <-ctx.Done():
			case <-time.After(swaps):
			}
		}
		all.Wait()
	}
	for b.Loop() {
		ask(0)
		ask(1)
	}
	p99 := func(all []time.Duration) float64 {
		slices.Sort(all)
		return float64(all[len(all)*99/100].Microseconds())
	}
	b.ReportMetric(p99(took[1])/p99(took[0]), "p99-ratio")
	b.ReportMetric(p99(took[0]), "us-p99")
	b.ReportMetric(0, "ns/op") // says nothing: turns have a length of their own
}
