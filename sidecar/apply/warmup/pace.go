// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package warmup

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// Pace says how batches are timed on a server that serves clients meanwhile.
type Pace struct {
	// Share is the largest part of the server's time that the batches may take: after each, nothing is sent for as long as that takes.
	Share float64
	// Repeats is how often a batch size is timed.
	Repeats int
	// Enough is when larger batches need no timing: a batch that took longer is the last. 0 times all.
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

// Paced times generated batches of 1, 2, 4, ... rows of zeros on a server under load. A batch may wait for those of clients, so that of the
// repeats of a size the mean of the fastest quarter counts. Skipped says why the configuration does not tell what a request looks like.
func Paced(ctx context.Context, server tritonpb.GRPCInferenceServiceClient, c *tritonpb.ModelConfig, p Pace) (all []Timed, skipped string, err error) {
	if !(p.Share > 0 && p.Share <= 1) || p.Repeats < 1 {
		return nil, "", fmt.Errorf("time %q: a share of %g and %d repeats: the share is above 0 and at most 1, the repeats at least 1", c.GetName(), p.Share, p.Repeats)
	}
	if _, reason := Request(c, 1); reason != "" {
		return nil, reason, nil
	}
	for _, rows := range Sizes(int(max(1, c.GetMaxBatchSize()))) {
		request, reason := Request(c, rows)
		if reason != "" {
			break // it is too large
		}
		var took []time.Duration
		for range p.Repeats {
			begin := p.Now()
			if _, err := server.ModelInfer(ctx, request); err != nil {
				return all, "", fmt.Errorf("time %q with %d rows of zeros: %w", c.GetName(), rows, err)
			}
			d := p.Now().Sub(begin)
			took = append(took, d)
			p.Sleep(ctx, time.Duration(float64(d)*(1/p.Share-1)))
			if err := ctx.Err(); err != nil {
				return all, "", err
			}
		}
		slices.Sort(took)
		fastest := took[:(len(took)+3)/4]
		sum := time.Duration(0)
		for _, d := range fastest {
			sum += d
		}
		mean := sum / time.Duration(len(fastest))
		all = append(all, Timed{Rows: rows, Duration: mean, Repeats: len(took)})
		if p.Enough > 0 && mean > p.Enough {
			break
		}
	}
	return all, "", nil
}
