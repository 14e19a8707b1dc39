// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/internal/zoo"
)

// Six models load on demand where memory holds three. Callers ask for them by Zipf's law; whatever they ask for is answered, rightly, and
// the server never has more than memory holds.
func TestLoadOnDemand(t *testing.T) {
	t.Parallel()
	const many, fit, callers, each = 6, 3, 3, 6
	models := rig.Copies(zoo.Profile{Model: "m", GPUType: zoo.A100, Alpha: time.Millisecond, Beta: 5 * time.Millisecond, SLO: time.Second}, many, 1, 8)
	memory := map[string]any{}
	for _, name := range models.Names() {
		memory[name] = map[string]any{"memory": "25GiB"}
	}
	c := serve(t, rig.ConchOptions{Models: models, GPUs: 1, Settings: map[string]any{
		"defaults": map[string]any{"load": "demand"}, "models": memory, "demand": map[string]any{"wait": "4m"},
	}})
	server := triton(t, c)
	loaded := func() (names []string) {
		index, err := server.RepositoryIndex(t.Context(), &tritonpb.RepositoryIndexRequest{Ready: true})
		require.NoError(t, err)
		for _, m := range index.GetModels() {
			names = append(names, m.GetName())
		}
		return names
	}
	require.Empty(t, loaded(), "nobody has asked for any")

	caller, err := loadgen.NewGRPC(c.Endpoints(), models.Load(), loadgen.Emulated(16))
	require.NoError(t, err)
	defer caller.Close()
	// A herd first: all ask for one model.
	var group sync.WaitGroup
	herd := make([]error, 20)
	for i := range herd {
		group.Go(func() { herd[i] = caller.Call(t.Context(), 0, uint64(i)) })
	}
	group.Wait()
	for _, err := range herd {
		require.NoError(t, err)
	}
	require.Equal(t, models.Names()[:1], loaded())
	require.EqualValues(t, 1, scrape(t, c).sum("conch_apply_step_duration_seconds", "step=load"), "the herd loaded it once")

	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var errs [callers]error
	var sequence atomic.Uint64
	sequence.Store(1000)
	for i := range callers {
		random := rand.New(rand.NewPCG(7, uint64(i)))
		pick := rand.NewZipf(random, 1.2, 1, many-1)
		group.Go(func() {
			for range each {
				model := int(pick.Uint64())
				if err := caller.Call(ctx, model, sequence.Add(1)); err != nil {
					errs[i] = fmt.Errorf("%s: %w", models.Names()[model], err)
					return
				}
			}
		})
	}
	group.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
	require.LessOrEqual(t, len(loaded()), fit)
	counted := scrape(t, c)
	cold := counted.sum("conch_requests_total", "result=cold")
	require.GreaterOrEqual(t, cold, float64(len(herd)+2), "others were loaded too")
	require.EqualValues(t, len(herd)+callers*each, cold+counted.sum("conch_requests_total", "result=ok")+counted.sum("conch_requests_total", "result=late"))
	require.Less(t, cold, float64(len(herd)+callers*each), "and some were found loaded")
	require.EqualValues(t, cold, counted.sum("conch_cold_start_duration_seconds"))
}
