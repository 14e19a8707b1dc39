// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// badRow fails every execution that has a row of this value.
const badRow = 13

func failsBadRows(r *tritonpb.ModelInferRequest) error {
	for row := 0; row < len(r.RawInputContents[0]); row += 16 {
		if r.RawInputContents[0][row] == badRow {
			return status.Error(codes.Internal, "Failed to process the request(s) for model instance 'm_0', message: ValueError: bad row")
		}
	}
	return nil
}

// TestBadRequestsCostTheOthersLittle: at eight tenths of what two servers can carry, one request of twenty fails in the model. An execution that fails
// takes as long as one that does not, so that no way to find bad requests among others is free: at this load it takes more than there is. When failed
// batches ran one by one, two thirds of the other requests were late.
func TestBadRequestsCostTheOthersLittle(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const fixed, each, slo = 8 * time.Millisecond, time.Millisecond, 150 * time.Millisecond
		parts, options := inBubble(t, 2)
		for _, p := range parts {
			turn := make(chan struct{}, 1) // a mutex would keep virtual time from passing
			p.refuse = failsBadRows
			p.asked = func(_ context.Context, r *tritonpb.ModelInferRequest) {
				turn <- struct{}{}
				time.Sleep(fixed + time.Duration(r.Inputs[0].Shape[0])*each)
				<-turn
			}
		}
		d, seen := newDispatcher(t, options, table(1, func(m *router.Model) { m.SLO = slo }, parts...))
		d.SetProfile(linear(each, fixed))
		rate := .8 * 2 * 8 / (fixed + 8*each).Seconds()
		g := rand.New(rand.NewPCG(1, 1))
		var all sync.WaitGroup
		began, at := time.Now(), 0.
		for at < 10 {
			at += g.ExpFloat64() / rate
			time.Sleep(time.Until(began.Add(time.Duration(at * float64(time.Second)))))
			seed := uint32(1000 << 8)
			if g.IntN(20) == 0 {
				seed = badRow
			}
			all.Go(func() { _ = infer(t.Context(), t, d, seed, 1, nil) })
		}
		all.Wait()
		n := seen.count(t)
		late := float64(n[dispatch.Late]) / float64(n[dispatch.OK]+n[dispatch.Late])
		t.Logf("%v: %.1f%% of the others are late, %d executions", n, 100*late, len(parts[0].executions())+len(parts[1].executions()))
		require.Less(t, late, .25)
	})
}

// batched is a model on one server that executes one batch at a time, in l(b) = each*b + fixed, and fails those with a bad row.
func batched(t *testing.T, slo, each, fixed time.Duration) (p *triton, d *dispatch.Dispatcher) {
	parts, options := inBubble(t, 1)
	p = parts[0]
	p.refuse = failsBadRows
	p.asked = func(_ context.Context, r *tritonpb.ModelInferRequest) {
		time.Sleep(fixed + time.Duration(r.Inputs[0].Shape[0])*each)
	}
	d, _ = newDispatcher(t, options, table(1, func(m *router.Model) { m.SLO = slo }, p))
	d.SetProfile(linear(each, fixed))
	return p, d
}

// burst sends one request and, while it is executed, eight more, the first of which are bad. It returns the rows of the largest of their executions.
func burst(t *testing.T, p *triton, d *dispatch.Dispatcher, bad int) (largest int) {
	before := len(p.executions())
	var all sync.WaitGroup
	send := func(seed uint32) { all.Go(func() { _ = infer(t.Context(), t, d, seed, 1, nil) }) }
	send(1000 << 8)
	time.Sleep(time.Millisecond)
	for i := range 8 {
		if i < bad {
			send(badRow)
		} else {
			send(1000 << 8)
		}
	}
	all.Wait()
	return slices.Max(p.executions()[before:])
}

// TestRequestsRunAloneWhileManyFail: while a quarter of a model's requests fails, none shares an execution with others; when they succeed again, they do.
func TestRequestsRunAloneWhileManyFail(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, d := batched(t, time.Second, time.Millisecond, 8*time.Millisecond)
		require.Equal(t, 8, burst(t, p, d, 0))
		for range 10 {
			burst(t, p, d, 4)
		}
		require.Equal(t, 1, burst(t, p, d, 4))
		require.Equal(t, 1, burst(t, p, d, 0))
		bursts := 0
		for burst(t, p, d, 0) == 1 {
			bursts++
			require.Less(t, bursts, 100)
		}
	})
}

// TestBatchesArePlannedWithWhatBadRequestsCost: eight requests can be executed together in time only if none of them is bad. While one of six is, fewer
// share an execution.
func TestBatchesArePlannedWithWhatBadRequestsCost(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p, d := batched(t, 120*time.Millisecond, 5*time.Millisecond, 20*time.Millisecond)
		require.Equal(t, 8, burst(t, p, d, 0))
		for i := range 66 {
			seed := uint32(1000 << 8)
			if i%6 == 5 {
				seed = badRow
			}
			require.Equal(t, seed == badRow, infer(t.Context(), t, d, seed, 1, nil) != nil)
		}
		largest := burst(t, p, d, 0)
		require.Less(t, largest, 8)
		require.Greater(t, largest, 1)
	})
}

// TestSickServersLoseNothing: a server fails everything from time to time, some requests fail wherever they are executed, some callers leave. Every
// other request gets its own answer, and nothing stays behind.
func TestSickServersLoseNothing(t *testing.T) {
	for name, change := range map[string]func(*router.Model){
		"queued":         nil,
		"passed through": func(m *router.Model) { m.Batchable, m.PassThroughReason = false, "a test" },
	} {
		t.Run(name, func(t *testing.T) {
			parts := []*triton{newTriton(t), newTriton(t), newTriton(t)}
			for _, p := range parts {
				p.takes, p.refuse = time.Millisecond, failsBadRows
			}
			d, seen := newDispatcher(t, dispatch.Options{}, table(1, change, parts...))
			d.SetProfile(linear(100*time.Microsecond, time.Millisecond))
			ended := make(chan struct{})
			var faults sync.WaitGroup
			faults.Go(func() {
				g, sick := rand.New(rand.NewPCG(2, 2)), parts[0] // a request that meets two sick servers may fail
				for {
					sick.set(func() { sick.refuse = fails(errCUDA) })
					pause := time.After(time.Duration(10+g.IntN(40)) * time.Millisecond)
					select {
					case <-ended:
						return
					case <-pause:
					}
					sick.set(func() { sick.refuse = failsBadRows })
					time.Sleep(5 * time.Millisecond)
				}
			})
			errs := inTurns(3000, 16, func(i int) error {
				g := rand.New(rand.NewPCG(3, uint64(i)))
				seed, ctx, cancel := uint32(1000+i)<<8, t.Context(), func() {}
				switch g.IntN(20) {
				case 0:
					seed = badRow
				case 1:
					ctx, cancel = context.WithTimeout(ctx, time.Duration(g.IntN(3000))*time.Microsecond)
				}
				defer cancel()
				err := infer(ctx, t, d, seed, 1+g.IntN(3), nil)
				if _, leaves := ctx.Deadline(); seed == badRow || leaves {
					return nil
				}
				return err
			})
			close(ended)
			faults.Wait()
			for i, err := range errs {
				require.NoError(t, err, "request %d", i)
			}
			seen.count(t)
			require.Eventually(t, func() bool {
				n, bytes := d.UnderWay()
				c, _ := d.Counts("m")
				return n == 0 && bytes == 0 && c.Waiting == 0 && c.UnderWay == 0
			}, 30*time.Second, time.Millisecond)
		})
	}
}
