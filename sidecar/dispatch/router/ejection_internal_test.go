// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package router

import (
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
)

// twoPlaces is a model on partitions p and q, on virtual time. Nothing listens there.
func twoPlaces(t *testing.T) (r *Router, p, q *place) {
	nobody := grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() })
	r = New(Options{Clock: clock.Timers(), Forward: forward.Options{DialOptions: []grpc.DialOption{nobody}}})
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	c, err := r.Prepare(&Table{
		Revision:   1,
		Partitions: []*PartitionSpec{{ID: "p", Endpoint: Endpoint{GRPC: "unix:/nobody/p"}}, {ID: "q", Endpoint: Endpoint{GRPC: "unix:/nobody/q"}}},
		Models:     map[string]*Model{"m": {Name: "m", Config: &tritonpb.ModelConfig{Name: "m"}, Places: []Place{{Partition: "p"}, {Partition: "q"}}}},
	})
	require.NoError(t, err)
	c.Commit()
	return r, r.partitions["p"].places["m"], r.partitions["q"].places["m"]
}

// execute has an execution succeed on a place, or fail.
func (l *place) execute(t *testing.T, r *Router, succeeds bool, of Blame) {
	lease, err := r.Take(l.partition, l.model)
	require.NoError(t, err)
	if succeeds {
		lease.Worked()
	} else {
		lease.Faulted(status.Error(codes.Internal, "broken"), of)
	}
	lease.Release()
}

// standing reads the standing of a place.
func (r *Router) standing(l *place) standing {
	r.mu.Lock()
	defer r.mu.Unlock()
	return l.health.standing
}

// TestAPlaceThatFailsMoreOftenThanTheOthersIsEjected, though no three executions in a row fail there: half of them do, at least ten were, and the model's other
// place fails at most half as often. Where both fail alike, the model is at fault, or its requests are.
func TestAPlaceThatFailsMoreOftenThanTheOthersIsEjected(t *testing.T) {
	const bad = "x.x.x.x..x" // in turn: . succeeds, x fails
	for name, c := range map[string]struct {
		p, q  string
		of    Blame
		pause int // before this execution of p more than rateWindow passes; 0: before none
		want  standing
	}{
		"the others are well":                  {p: bad, q: "..........", want: ejected},
		"its requests are known to fail":       {p: bad, q: "..........", of: OfRequest, want: ejected},
		"the others fail half as often":        {p: bad, q: "...x...x", want: ejected},
		"the others fail more than half of it": {p: bad, q: "..x..x..x", want: healthy},
		"the others fail as often":             {p: bad, q: bad, want: healthy},
		"the others execute nothing":           {p: bad, want: healthy},
		"fewer than half fail":                 {p: strings.Repeat("x..", 10), q: "..........", want: healthy},
		"fewer than ten":                       {p: bad[2:], q: "..........", want: healthy},
		"half of it was long ago":              {p: bad, q: "..........", pause: 5, want: healthy},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				r, p, q := twoPlaces(t)
				for i := range max(len(c.p), len(c.q)) {
					if c.pause > 0 && i == c.pause {
						time.Sleep(rateWindow + 1)
					}
					if i < len(c.p) {
						require.Equal(t, healthy, r.standing(p), "after %d", i)
						p.execute(t, r, c.p[i] == '.', c.of)
					}
					if i < len(c.q) {
						q.execute(t, r, c.q[i] == '.', c.of)
					}
				}
				require.Equal(t, c.want, r.standing(p))
				require.Equal(t, healthy, r.standing(q))
			})
		})
	}
}

// TestEjectionsTakeTwiceAsLongEachTime, up to a minute. One that comes later after the last than that took begins anew.
func TestEjectionsTakeTwiceAsLongEachTime(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r, p, _ := twoPlaces(t)
		fails := func(times int) {
			for range times {
				require.NotEqual(t, ejected, r.standing(p))
				p.execute(t, r, false, OfPlace)
			}
			require.Equal(t, ejected, r.standing(p))
		}
		lasts := func(period time.Duration) {
			time.Sleep(period - 1)
			synctest.Wait()
			require.Equal(t, ejected, r.standing(p), "before %v", period)
			time.Sleep(1)
			synctest.Wait()
			require.Equal(t, onProbation, r.standing(p), "after %v", period)
		}
		fails(patience)
		lasts(time.Second)
		for _, period := range []time.Duration{2, 4, 8, 16, 32, 60, 60} {
			fails(1) // one decides the probation
			lasts(period * time.Second)
		}

		p.execute(t, r, true, OfPlace)
		require.Equal(t, healthy, r.standing(p))
		time.Sleep(time.Minute - 1)
		fails(patience)
		lasts(time.Minute)
		p.execute(t, r, true, OfPlace)
		time.Sleep(time.Minute)
		fails(patience)
		lasts(time.Second)
	})
}
