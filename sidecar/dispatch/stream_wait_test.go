// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/names"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// asking is a request on a stream.
func asking(id string, change ...func(*tritonpb.ModelInferRequest)) *tritonpb.ModelInferRequest {
	m := message(id, 1, 1)
	both(change...)(m)
	return m
}

// TestAStreamIsReadWhileAVariantIsWaitedFor: the requests after a request that waits run meanwhile, of other models and of the same app, and the
// answers keep their order.
func TestAStreamIsReadWhileAVariantIsWaitedFor(t *testing.T) {
	p := newTriton(t)
	p.started = make(chan string, 10)
	wanted := make(chan names.InactiveError, 10)
	d, seen, client := streamed(t, dispatch.Options{OutageWait: time.Hour, Wanted: func(e names.InactiveError) error { wanted <- e; return nil }}, apps(1, p, "fast"))
	s := openStream(t.Context(), t, client, asking("waits", forName("a"), wish("accuracy", .8)), asking("other", forName("fast")), asking("same app", forName("a")))
	<-wanted
	require.ElementsMatch(t, []string{"other", "same app"}, []string{<-p.started, <-p.started})
	require.NoError(t, d.Swap(t.Context(), apps(2, p, "fast", "good")))
	require.Equal(t, []string{"waits|a|true|", "other|fast|true|", "same app|a|true|"}, lines(t, s))
	require.Equal(t, map[dispatch.Result]int{dispatch.OK: 2, dispatch.Cold: 1}, seen.count(t))
	require.Eventually(t, func() bool { n, bytes := d.UnderWay(); return n == 0 && bytes == 0 }, 30*time.Second, time.Millisecond)
}

// decoupledApps are apps whose variants may answer any number of times.
func decoupledApps(revision uint64, p *triton, running ...string) *router.Table {
	routes := apps(revision, p, running...)
	for _, m := range routes.Models {
		decoupled(m)
	}
	return routes
}

// TestWaitingRequestsOfADecoupledModelKeepTheirOrder: they reach the server in order, though the caller has half-closed the stream, and they
// delay no other requests.
func TestWaitingRequestsOfADecoupledModelKeepTheirOrder(t *testing.T) {
	const n = 20
	for name, c := range map[string]struct {
		change        func(*tritonpb.ModelInferRequest)
		before, after func(p *triton) *router.Table
	}{
		"a variant": {
			both(forName("a"), wish("accuracy", .8)),
			func(p *triton) *router.Table { return decoupledApps(1, p, "fast") },
			func(p *triton) *router.Table { return decoupledApps(2, p, "fast", "good") },
		},
		"on demand": {
			forName("good"),
			func(p *triton) *router.Table {
				t := decoupledApps(1, p, "fast", "good")
				t.Models["good"].OnDemand, t.Models["good"].Cold, t.Models["good"].Places = true, true, nil
				return t
			},
			func(p *triton) *router.Table {
				t := decoupledApps(2, p, "fast", "good")
				t.Models["good"].OnDemand = true
				return t
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTriton(t)
			p.started = make(chan string, n+1)
			wanted := make(chan string, n)
			o := dispatch.Options{
				OutageWait: time.Hour, LoadWanted: func(string) { wanted <- "" },
				Wanted: func(names.InactiveError) error { wanted <- ""; return nil },
			}
			d, seen, client := streamed(t, o, c.before(p))
			var all []*tritonpb.ModelInferRequest
			for i := range n {
				all = append(all, asking(strconv.Itoa(i), c.change))
			}
			s := openStream(t.Context(), t, client, append(all, asking("other", forName("fast")))...)
			require.NoError(t, s.CloseSend())
			<-wanted
			require.Equal(t, "other", <-p.started)
			first, err := s.Recv()
			require.NoError(t, err)
			require.Equal(t, "other", first.InferResponse.Id, "answers of decoupled models have no order")
			require.NoError(t, d.Swap(t.Context(), c.after(p)))
			for i := range n {
				require.Equal(t, strconv.Itoa(i), <-p.started)
			}
			require.Len(t, lines(t, s), n)
			require.Equal(t, map[dispatch.Result]int{dispatch.OK: 1, dispatch.Cold: n}, seen.count(t))
			require.Eventually(t, func() bool { n, bytes := d.UnderWay(); return n == 0 && bytes == 0 }, 30*time.Second, time.Millisecond)
		})
	}
}

// TestWhatWaitedOnAStreamSharesOneStreamOfTheServer: requests for two decoupled models wait on one stream, and both are loaded at once. The server gets them on
// one stream, message by message, and the caller's stream ends when all are answered.
func TestWhatWaitedOnAStreamSharesOneStreamOfTheServer(t *testing.T) {
	const n = 20
	p := newTriton(t)
	wanted := make(chan string, 2)
	both := func(revision uint64, cold bool) *router.Table {
		routes := decoupledApps(revision, p, "fast", "good")
		for _, m := range routes.Models {
			if m.OnDemand, m.Cold = true, cold; cold {
				m.Places = nil
			}
		}
		return routes
	}
	d, seen, client := streamed(t, dispatch.Options{OutageWait: time.Hour, LoadWanted: func(m string) { wanted <- m }}, both(1, true))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var all []*tritonpb.ModelInferRequest
	for i := range n {
		all = append(all, asking(strconv.Itoa(i), forName([]string{"fast", "good"}[i%2])))
	}
	s := openStream(ctx, t, client, all...)
	require.ElementsMatch(t, []string{"fast", "good"}, []string{<-wanted, <-wanted})
	require.Eventually(t, func() bool { under, _ := d.UnderWay(); return under == n+1 }, 30*time.Second, time.Millisecond)
	require.NoError(t, d.Swap(t.Context(), both(2, false)))
	require.Len(t, lines(t, s), n)
	require.Equal(t, map[dispatch.Result]int{dispatch.Cold: n}, seen.count(t))
	require.EqualValues(t, 1, p.streams.Load())
}

// TestAStreamThatEndsWhileItWaits leaves no request under way.
func TestAStreamThatEndsWhileItWaits(t *testing.T) {
	for name, cold := range map[string]bool{"a variant": false, "on demand": true} {
		t.Run(name, func(t *testing.T) {
			p := newTriton(t)
			wanted := make(chan string, 10)
			routes, change := decoupledApps(1, p, "fast"), both(forName("a"), wish("accuracy", .8))
			if cold {
				routes.Models["fast"].OnDemand, routes.Models["fast"].Cold, routes.Models["fast"].Places = true, true, nil
				change = forName("fast")
			}
			o := dispatch.Options{OutageWait: time.Hour, LoadWanted: func(string) { wanted <- "" }, Wanted: func(names.InactiveError) error { wanted <- ""; return nil }}
			d, seen, client := streamed(t, o, routes)
			ctx, cancel := context.WithCancel(t.Context())
			s := openStream(ctx, t, client, asking("1", change), asking("2", change))
			<-wanted
			require.Eventually(t, func() bool { n, _ := d.UnderWay(); return n == 3 }, 30*time.Second, time.Millisecond)
			cancel()
			_, err := s.Recv()
			require.Error(t, err)
			require.Eventually(t, func() bool { n, bytes := d.UnderWay(); return n == 0 && bytes == 0 }, 30*time.Second, time.Millisecond)
			require.Equal(t, map[dispatch.Result]int{dispatch.Cancelled: 2}, seen.count(t))
		})
	}
}

// TestAPanicOfARequestThatWaitedGivesBackWhatItHeld, and ends the call, as one of any other request does.
func TestAPanicOfARequestThatWaitedGivesBackWhatItHeld(t *testing.T) {
	p := newTriton(t)
	wanted := make(chan names.InactiveError, 1)
	o := dispatch.Options{OutageWait: time.Hour, Recorder: faulty{}, Wanted: func(e names.InactiveError) error { wanted <- e; return nil }}
	d, _, client := streamed(t, o, apps(1, p, "fast"))
	s := openStream(t.Context(), t, client, asking("waits", forName("a"), wish("accuracy", .8)))
	<-wanted
	require.NoError(t, d.Swap(t.Context(), apps(2, p, "fast", "good")))
	_, err := s.Recv()
	requireCode(t, codes.Internal, err)
	n, bytes := d.UnderWay()
	require.Zero(t, n)
	require.Zero(t, bytes)
}

// TestWhoWaitsForAnotherVariantHoldsUpNobody: two requests wait for the same variant, and one of them is then served by another one.
func TestWhoWaitsForAnotherVariantHoldsUpNobody(t *testing.T) {
	for name, table := range map[string]func(uint64, *triton, ...string) *router.Table{"decoupled": decoupledApps, "not decoupled": apps} {
		t.Run(name, func(t *testing.T) {
			p := newTriton(t)
			p.started = make(chan string, 10)
			three := func(revision uint64, running ...string) *router.Table {
				routes := table(revision, p, running...)
				app := routes.Names["a"].App
				app.Variants[1].Wait = time.Minute // the best is sooner there
				app.Variants = append(app.Variants, names.Variant{Model: "best", Accuracy: .95, Latency: time.Minute})
				return routes
			}
			wanted := make(chan string, 10)
			o := dispatch.Options{OutageWait: time.Hour, Wanted: func(e names.InactiveError) error { wanted <- e.Model; return nil }}
			d, _, client := streamed(t, o, three(1, "fast"))
			ctx, cancel := context.WithCancel(t.Context())
			s := openStream(ctx, t, client, asking("best", forName("a"), wish("accuracy", .92)), asking("good", forName("a"), wish("accuracy", .8)))
			require.Equal(t, []string{"best", "best"}, []string{<-wanted, <-wanted})
			require.NoError(t, d.Swap(t.Context(), three(2, "fast", "good")))
			select {
			case id := <-p.started:
				require.Equal(t, "good", id)
			case <-time.After(30 * time.Second):
				t.Error("it waits for the other")
			}
			cancel()
			for _, err := s.Recv(); err == nil; _, err = s.Recv() {
			}
			require.Eventually(t, func() bool { n, bytes := d.UnderWay(); return n == 0 && bytes == 0 }, 30*time.Second, time.Millisecond)
		})
	}
}
