// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package warmup

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// Pace says how batches are timed on a server that serves clients meanwhile.
type Pace struct {
	// Share is the largest part of the server's time that the batches may take: of each size, one is sent at most in so much time as the fastest so far took,
	// divided by Share. What a batch waited for clients' batches is not time that it took.
	Share float64
	// Repeats is how often a batch size is timed.
	Repeats int
	// Enough is when larger batches need no timing: a size of more than one row that takes longer is the last. 0 times all.
	Enough time.Duration
	// Now and Sleep are the clock; Sleep returns early with ctx.
	Now   func() time.Time
	Sleep func(ctx context.Context, d time.Duration)
}

// Timed is a batch size with what it takes on a server that is otherwise idle, as far as that is known.
type Timed struct {
	Rows     int
	Duration time.Duration
	Repeats  int
}

// Paced times generated batches of 1, 2, 4, ... rows of zeros on a server under load: one of each size, and then again, so that little is lost where ctx ends
// before the last repeat. What was timed until then is returned with the error. A batch may wait for those of clients, so that of the
// repeats of a size the mean of the fastest quarter counts. Skipped says why the configuration does not tell what a request looks like.
func Paced(ctx context.Context, server tritonpb.GRPCInferenceServiceClient, c *tritonpb.ModelConfig, p Pace) (all []Timed, skipped string, err error) {
	if !(p.Share > 0 && p.Share <= 1) || p.Repeats < 1 {
		return nil, "", fmt.Errorf("time %q: a share of %g and %d repeats: the share is above 0 and at most 1, the repeats at least 1", c.GetName(), p.Share, p.Repeats)
	}
	if _, reason := Request(c, 1); reason != "" {
		return nil, reason, nil
	}
	sizes := Sizes(int(max(1, c.GetMaxBatchSize())))
	took := make([][]time.Duration, len(sizes))
	for range p.Repeats {
		for i, rows := range sizes {
			request, reason := Request(c, rows)
			if reason != "" {
				break // it is too large
			}
			begin := p.Now()
			if _, err := server.ModelInfer(ctx, request); err != nil {
				return timed(sizes, took), "", fmt.Errorf("time %q with %d rows of zeros: %w", c.GetName(), rows, err)
			}
			took[i] = append(took[i], p.Now().Sub(begin))
			fastest := slices.Min(took[i])
			p.Sleep(ctx, max(0, begin.Add(time.Duration(float64(fastest)/p.Share)).Sub(p.Now())))
			if err := ctx.Err(); err != nil {
				return timed(sizes, took), "", err
			}
			if i > 0 && p.Enough > 0 && fastest > p.Enough {
				break
			}
		}
	}
	return timed(sizes, took), "", nil
}

// timed is what the batches of each size took, for sizes of which some were answered.
func timed(sizes []int, took [][]time.Duration) (all []Timed) {
	for i, rows := range sizes {
		n := len(took[i])
		if n == 0 {
			continue
		}
		slices.Sort(took[i])
		fastest := took[i][:(n+3)/4]
		sum := time.Duration(0)
		for _, d := range fastest {
			sum += d
		}
		all = append(all, Timed{Rows: rows, Duration: sum / time.Duration(len(fastest)), Repeats: n})
	}
	return all
}

// InTurns has the models of a server timed, so many at once as it executes batches at once, within a time that they share equally: what a model leaves of its
// part is for those after it. Each is timed under a context that ends with its part. Within of 0 sets no end.
func InTurns(ctx context.Context, models, atOnce int, within time.Duration, measure func(ctx context.Context, model int)) {
	var cancel context.CancelFunc = func() {}
	if within > 0 {
		ctx, cancel = context.WithTimeout(ctx, within)
	}
	defer cancel()
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(models, max(1, atOnce)) {
		all.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= models {
					return
				}
				part, done := ctx, context.CancelFunc(func() {})
				if end, limited := ctx.Deadline(); limited && within > 0 {
					rounds := (models - i + max(1, atOnce) - 1) / max(1, atOnce)
					part, done = context.WithTimeout(ctx, time.Until(end)/time.Duration(rounds))
				}
				measure(part, i)
				done()
			}
		})
	}
	all.Wait()
}
