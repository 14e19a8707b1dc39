// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
)

// TestOneRequestKillsItsOwnRetryAlone: each request of a batch whose server has crashed is tried once more, alone. A request that crashes a
// second server fails no other.
func TestOneRequestKillsItsOwnRetryAlone(t *testing.T) {
	const poison = 5
	parts := []*triton{newTriton(t), newTriton(t), newTriton(t)}
	for _, p := range parts {
		p.asked = func(ctx context.Context, r *tritonpb.ModelInferRequest) {
			for row := 0; row < len(r.RawInputContents[0]); row += 16 {
				if r.RawInputContents[0][row] == poison {
					go p.kill()
					<-ctx.Done()
				}
			}
		}
	}
	d, _ := newDispatcher(t, dispatch.Options{}, table(1, nil, parts...))
	d.SetProfile(linear(time.Millisecond, 20*time.Millisecond))
	errs := atOnce(8, func(i int) error { return infer(t.Context(), t, d, uint32(i+1), 1, nil) })
	for i, err := range errs {
		if i+1 == poison {
			requireCode(t, codes.Unavailable, err)
		} else {
			require.NoError(t, err, "request %d: %v", i+1, status.Convert(err).Message())
		}
	}
}
