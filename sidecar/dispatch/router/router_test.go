// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package router_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// table has partitions by the models that they serve. Nothing listens at their endpoints: leases need no connection. A name such as
// "p0/2" is partition p0 with a second endpoint.
func table(revision uint64, partitions map[string][]string) *router.Table {
	t := &router.Table{Revision: revision, Models: map[string]*router.Model{}}
	for _, name := range slices.Sorted(maps.Keys(partitions)) {
		var id string
		var endpoint int
		if n, _ := fmt.Sscanf(name, "p%1s/%d", &id, &endpoint); n == 0 {
			panic(name)
		}
		id = "p" + id
		t.Partitions = append(t.Partitions, &router.PartitionSpec{ID: id, GPUType: "T", Endpoint: router.Endpoint{GRPC: fmt.Sprintf("unix:/nobody/%s-%d", id, endpoint)}})
		for _, model := range partitions[name] {
			m := t.Models[model]
			if m == nil {
				m = &router.Model{Name: model, Config: &tritonpb.ModelConfig{Name: model}}
				t.Models[model] = m
			}
			m.Places = append(m.Places, router.Place{Partition: id})
		}
	}
	return t
}

func commit(t require.TestingT, r *router.Router, table *router.Table) {
	c, err := r.Prepare(table)
	require.NoError(t, err)
	c.Commit()
}

func newRouter(t *testing.T, o router.Options) *router.Router {
	if o.Clock == nil {
		o.Clock = clock.Timers()
	}
	r := router.New(o)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

func tryLease(r *router.Router, model string) (router.Lease, error) {
	l, _, err := r.Acquire(model, router.Hints{})
	return l, err
}

// await leases a partition, and waits for one as long as it may.
func await(ctx context.Context, r *router.Router, model string) (router.Lease, error) {
	for {
		l, on, err := r.Acquire(model, router.Hints{})
		if on == nil {
			return l, err
		}
		select {
		case <-on:
		case <-ctx.Done():
			return l, status.FromContextError(ctx.Err()).Err()
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestLeasesAreOnTheTableInForce: a lease that is taken after a Commit is on a place of the new table, and Take fails for a place that the
// table removed. Such a place is drained when its last lease is released.
func TestLeasesAreOnTheTableInForce(t *testing.T) {
	r := newRouter(t, router.Options{})
	commit(t, r, table(1, map[string][]string{"p0": {"a", "b"}, "p1": {"b"}}))
	before, err := tryLease(r, "a")
	require.NoError(t, err)
	require.Equal(t, "p0", before.Partition().ID())

	commit(t, r, table(2, map[string][]string{"p0": {"b"}, "p1": {"a", "b"}}))
	after, err := tryLease(r, "a")
	require.NoError(t, err)
	require.Equal(t, "p1", after.Partition().ID())
	_, err = r.Take(before.Partition(), "a")
	require.Error(t, err, "the queue is not given what was taken away")

	drained := r.Drained("p0", "a")
	require.False(t, isClosed(drained))
	require.True(t, isClosed(r.Drained("p0", "nobody's")))
	after.Release()
	require.False(t, isClosed(drained))
	before.Release()
	require.True(t, isClosed(drained))
	require.True(t, isClosed(r.Drained("p0", "a")))
}

// TestAReplacedPartitionDrains: a partition with a new endpoint is another one of the same name. The first is idle when its leases are released,
// whatever leases the second one has.
func TestAReplacedPartitionDrains(t *testing.T) {
	r := newRouter(t, router.Options{})
	commit(t, r, table(1, map[string][]string{"p0": {"a"}}))
	old, err := tryLease(r, "a")
	require.NoError(t, err)
	commit(t, r, table(2, map[string][]string{"p0/2": {"a"}}))
	fresh, err := tryLease(r, "a")
	require.NoError(t, err)
	require.NotSame(t, old.Partition(), fresh.Partition())
	require.True(t, r.Retired(old.Partition()))
	drained := r.Drained("p0", "")
	require.False(t, isClosed(drained))
	old.Release()
	require.True(t, isClosed(drained))
	fresh.Release()
}

// TestWhoWaitsForAModel: a wait ends when the model's outage is declared. From then on nobody waits.
func TestWhoWaitsForAModel(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		changed := make(chan string, 10)
		r := router.New(router.Options{Clock: clock.Timers(), OutageWait: time.Minute, ModelChanged: func(m string) { changed <- m }})
		defer func() { require.NoError(t, r.Close()) }()
		r.Set("p0", false, "not started yet")
		r.Set("p1", false, "not started yet")
		commit(t, r, &router.Table{Models: map[string]*router.Model{}, Partitions: nil})
		// The partitions were set down before a table had them. A table without them removes that note.
		commit(t, r, table(1, map[string][]string{}))
		wait := func(ctx context.Context, model string) <-chan error {
			result := make(chan error, 1)
			go func() {
				l, err := await(ctx, r, model)
				if err == nil {
					l.Release()
				}
				result <- err
			}()
			synctest.Wait()
			return result
		}
		require.Equal(t, codes.NotFound, status.Code(<-wait(t.Context(), "a")))

		none := table(2, map[string][]string{})
		none.Models["a"] = &router.Model{Name: "a", Config: &tritonpb.ModelConfig{}}
		none.Models["b"] = &router.Model{Name: "b", Config: &tritonpb.ModelConfig{}}
		commit(t, r, none)
		waits := wait(t.Context(), "a")
		ctx, cancel := context.WithCancel(t.Context())
		leaves := wait(ctx, "a")
		cancel()
		require.Equal(t, codes.Canceled, status.Code(<-leaves))
		time.Sleep(59 * time.Second)
		require.Empty(t, waits)
		require.NoError(t, r.Out("a"))
		time.Sleep(time.Second)
		require.Equal(t, codes.Unavailable, status.Code(<-waits))
		require.Error(t, r.Out("a"))
		require.Equal(t, codes.Unavailable, status.Code(<-wait(t.Context(), "a")), "nobody waits again for the same outage")
		require.ElementsMatch(t, []string{"a", "b"}, []string{<-changed, <-changed})
	})
}

// TestTheDriverHasTheLastWord: a partition that is set down before a table has it starts down, and a lost partition that its driver sets down
// and then up is up.
func TestTheDriverHasTheLastWord(t *testing.T) {
	var changes []bool
	var r *router.Router
	r = newRouter(t, router.Options{PartitionChanged: func(p *router.Partition) { changes = append(changes, r.Up(p)) }})
	r.Set("p0", false, "starting")
	commit(t, r, table(1, map[string][]string{"p0": {"a"}}))
	_, err := tryLease(r, "a")
	require.Equal(t, codes.Unavailable, status.Code(err))
	r.Set("p0", true, "")
	l, err := tryLease(r, "a")
	require.NoError(t, err)
	r.Lost(l.Partition(), errors.New("gone"))
	r.Lost(l.Partition(), errors.New("gone"))
	require.False(t, r.Up(l.Partition()))
	r.Set("p0", false, "dead")
	require.Equal(t, "dead", r.Partitions()[0].Reason)
	r.Set("p0", true, "")
	require.True(t, r.Up(l.Partition()))
	require.Equal(t, []bool{true, false, true}, changes)
	l.Release()
}

// TestNewsOfTheDriverDoNotUndoALoss: the driver reports a partition as up until it has noticed its end. The request path notices that earlier.
func TestNewsOfTheDriverDoNotUndoALoss(t *testing.T) {
	r := newRouter(t, router.Options{})
	commit(t, r, table(1, map[string][]string{"p0": {"a"}}))
	l, err := tryLease(r, "a")
	require.NoError(t, err)
	defer l.Release()
	r.Lost(l.Partition(), errors.New("gone"))
	r.Set("p0", true, "")
	require.False(t, r.Up(l.Partition()), "nothing answers there")
	_, err = tryLease(r, "a")
	require.Equal(t, codes.Unavailable, status.Code(err), "what is retried waits")
	r.Set("p0", false, "dead")
	r.Set("p0", true, "")
	require.True(t, r.Up(l.Partition()), "another was started")
}

// TestNobodyIsLeasedWhatWasTakenAway checks random tables, partitions and leases against a simple model of them.
func TestNobodyIsLeasedWhatWasTakenAway(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := router.New(router.Options{Clock: clock.Timers()})
		defer func() { require.NoError(t, r.Close()) }()
		type drain struct {
			partition, model string
			idle             <-chan struct{}
			left             int // leases that it waits for
		}
		type lease struct {
			router.Lease
			model  string
			drains []*drain
		}
		var leases []*lease
		var drains []*drain
		placed, up := map[string][]string{}, map[string]bool{}
		revision := uint64(0)
		names := []string{"a", "b", "c"}
		t.Repeat(map[string]func(*rapid.T){
			"swap": func(t *rapid.T) {
				placed = map[string][]string{}
				for _, p := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"p0/1", "p0/2", "p1/1", "p2/1"}), 0, 3, func(s string) string { return s[:2] }).Draw(t, "partitions") {
					placed[p] = rapid.SliceOfNDistinct(rapid.SampledFrom(names), 0, 3, rapid.ID[string]).Draw(t, "models")
				}
				revision++
				commit(t, r, table(revision, placed))
				for id := range up {
					if !slices.ContainsFunc(slices.Collect(maps.Keys(placed)), func(p string) bool { return p[:2] == id }) {
						delete(up, id) // forgotten
					}
				}
			},
			"set": func(t *rapid.T) {
				id, is := rapid.SampledFrom([]string{"p0", "p1", "p2"}).Draw(t, "partition"), rapid.Bool().Draw(t, "up")
				r.Set(id, is, "set")
				up[id] = is
			},
			"lease": func(t *rapid.T) {
				model := rapid.SampledFrom(names).Draw(t, "model")
				var at []string
				for p, models := range placed {
					if is, set := up[p[:2]]; slices.Contains(models, model) && (is || !set) {
						at = append(at, p[:2])
					}
				}
				l, err := tryLease(r, model)
				if len(at) == 0 {
					require.Error(t, err)
					return
				}
				require.NoError(t, err)
				require.Contains(t, at, l.Partition().ID())
				leases = append(leases, &lease{Lease: l, model: model})
			},
			"release": func(t *rapid.T) {
				if len(leases) == 0 {
					t.Skip("nothing is leased")
				}
				i := rapid.IntRange(0, len(leases)-1).Draw(t, "lease")
				l := leases[i]
				leases = slices.Delete(leases, i, i+1)
				l.Release()
				for _, d := range l.drains {
					d.left--
				}
			},
			"drain": func(t *rapid.T) {
				d := &drain{partition: rapid.SampledFrom([]string{"p0", "p1", "p2"}).Draw(t, "partition"), model: rapid.SampledFrom(append(names, "")).Draw(t, "model")}
				// Drained is called only for places that the table does not have: they get no further lease.
				for p, models := range placed {
					if p[:2] == d.partition && slices.Contains(models, d.model) {
						t.Skip("in the table")
					}
				}
				d.idle = r.Drained(d.partition, d.model)
				for _, l := range leases {
					if l.Partition().ID() == d.partition && (l.model == d.model || d.model == "" && r.Retired(l.Partition())) {
						d.left++
						l.drains = append(l.drains, d)
					}
				}
				drains = append(drains, d)
			},
			"": func(t *rapid.T) {
				for _, d := range drains {
					require.Equal(t, d.left == 0, isClosed(d.idle), "%s of %s: %d leases are out", d.model, d.partition, d.left)
				}
				out := 0
				for _, p := range r.Partitions() {
					out += p.Leases
				}
				require.Equal(t, len(leases), out)
			},
		})
		for _, l := range leases {
			l.Release()
		}
	})
}

// BenchmarkLease is a lease and its return while others wait for a model that is down.
func BenchmarkLease(b *testing.B) {
	for _, waiting := range []int{0, 4000} {
		b.Run(fmt.Sprint(waiting, "waiting"), func(b *testing.B) {
			r := router.New(router.Options{Clock: clock.Timers()})
			defer func() { require.NoError(b, r.Close()) }()
			t := table(1, map[string][]string{"p0": {"a"}, "p1": {"b"}})
			r.Set("p1", false, "down")
			commit(b, r, t)
			ctx, cancel := context.WithCancel(b.Context())
			defer cancel()
			ended := make(chan struct{})
			for range waiting {
				go func() {
					_, _ = await(ctx, r, "b")
					ended <- struct{}{}
				}()
			}
			b.ReportAllocs()
			for b.Loop() {
				l, err := await(ctx, r, "a")
				if err != nil {
					b.Fatal(err)
				}
				l.Release()
			}
			b.StopTimer()
			cancel()
			for range waiting {
				<-ended
			}
		})
	}
}

// slowToSay is a server that delays its answer to each ModelReady call.
type slowToSay struct {
	tritonpb.UnimplementedGRPCInferenceServiceServer
	takes time.Duration
}

func (s slowToSay) ServerLive(context.Context, *tritonpb.ServerLiveRequest) (*tritonpb.ServerLiveResponse, error) {
	return &tritonpb.ServerLiveResponse{Live: true}, nil
}

func (s slowToSay) ModelReady(ctx context.Context, _ *tritonpb.ModelReadyRequest) (*tritonpb.ModelReadyResponse, error) {
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
	}
	return &tritonpb.ModelReadyResponse{Ready: true}, nil
}

// TestALostServerWithManyModelsIsFoundAgain: the probe succeeds however long all the answers of a server take together.
func TestALostServerWithManyModelsIsFoundAgain(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer()
	tritonpb.RegisterGRPCInferenceServiceServer(s, slowToSay{takes: 30 * time.Millisecond})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() { s.Stop(); require.NoError(t, <-served) }()

	models := make([]string, 40)
	for i := range models {
		models[i] = fmt.Sprint("m", i)
	}
	routes := table(1, map[string][]string{"p0": models})
	routes.Partitions[0].Endpoint.GRPC = l.Addr().String()
	changed := make(chan struct{}, 10)
	r := newRouter(t, router.Options{PartitionChanged: func(*router.Partition) { changed <- struct{}{} }})
	commit(t, r, routes)
	held, err := tryLease(r, "m0")
	require.NoError(t, err)
	defer held.Release()
	r.Lost(held.Partition(), errors.New("gone"))
	<-changed
	select {
	case <-changed:
	case <-time.After(30 * time.Second):
	}
	require.True(t, r.Up(held.Partition()))
}

// TestACallAfterTheServerIsUpAgainKeepsItsConnection: what ends the calls of a partition that is down does not reach calls of its next server.
func TestACallAfterTheServerIsUpAgainKeepsItsConnection(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer()
	tritonpb.RegisterGRPCInferenceServiceServer(s, slowToSay{takes: 5 * time.Millisecond})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() { s.Stop(); require.NoError(t, <-served) }()
	routes := table(1, map[string][]string{"p0": {"m"}})
	routes.Partitions[0].Endpoint.GRPC = l.Addr().String()
	r := newRouter(t, router.Options{})
	commit(t, r, routes)
	client := tritonpb.NewGRPCInferenceServiceClient(r.Partitions()[0].Conn)
	for range 200 {
		r.Set("p0", false, "restarting")
		r.Set("p0", true, "")
		_, err := client.ModelReady(t.Context(), &tritonpb.ModelReadyRequest{Name: "m"}, grpc.WaitForReady(true))
		require.NoError(t, err)
	}
}
