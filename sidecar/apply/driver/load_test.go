// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/plugins/policy"
)

// lives are servers in memory, one after the other. Every load takes a second;
// kills is how many loads of a model end a life half-way.
type lives struct {
	mu        sync.Mutex
	begun     int
	now, most int // loads under way
	kills     map[string]int
	loads     []string // that ended well
}

type oneLife struct {
	of   *lives
	dead chan struct{}
	end  func()
}

func (l *lives) begin(context.Context) (server, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun++
	s := &oneLife{of: l, dead: make(chan struct{})}
	s.end = sync.OnceFunc(func() { close(s.dead) })
	return s, nil
}

func (s *oneLife) endpoint() Endpoint                   { return Endpoint{} }
func (s *oneLife) done() <-chan struct{}                { return s.dead }
func (s *oneLife) death() string                        { return "aborted" }
func (s *oneLife) kill() error                          { s.end(); return nil }
func (s *oneLife) shutdown(context.Context) error       { return nil }
func (s *oneLife) unload(context.Context, string) error { return nil }

func (s *oneLife) load(ctx context.Context, model string) error {
	l := s.of
	l.mu.Lock()
	l.now++
	l.most = max(l.most, l.now)
	kill := l.kills[model] > 0
	l.kills[model]--
	l.mu.Unlock()
	defer func() { l.mu.Lock(); defer l.mu.Unlock(); l.now-- }()
	if kill {
		time.Sleep(time.Second / 2)
		time.AfterFunc(10*time.Millisecond, s.end) // the connection ends first
		return status.Error(codes.Unavailable, "Socket closed")
	}
	if !sleep(ctx, time.Second) {
		return context.Cause(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loads = append(l.loads, model)
	return nil
}

// inMemory is a supervised partition of such lives.
func inMemory(t *testing.T, l *lives) *supervised {
	p, err := supervise(t.Context(), Spec{Partition: &policy.Partition{Id: "p0"}}, l.begin, Backoff{}, limits{load: time.Minute, drain: time.Minute}, slog.New(slog.DiscardHandler), nil)
	require.NoError(t, err)
	return p
}

func TestAServerLoadsFewModelsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lives{kills: map[string]int{}}
		p := inMemory(t, l)
		began := time.Now()
		var all sync.WaitGroup
		for i := range 4 * parallelLoads {
			all.Go(func() { require.NoError(t, p.Load(t.Context(), strconv.Itoa(i))) })
		}
		all.Wait()
		require.Equal(t, parallelLoads, l.most)
		require.Equal(t, 4*time.Second, time.Since(began))
		require.NoError(t, p.Restart("to see it load all of them again"))
		require.Error(t, waitFor(t, p, time.Nanosecond), "down")
		require.NoError(t, waitFor(t, p, time.Minute))
		require.Len(t, l.loads, 8*parallelLoads)
		require.Equal(t, parallelLoads, l.most)
		require.NoError(t, p.Stop(t.Context()))
	})
}

// waitFor waits until a partition has a server with its models.
func waitFor(t *testing.T, p *supervised, patience time.Duration) error {
	synctest.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := p.living(ctx)
	return err
}

func TestALoadInWhichTheServerDiesIsTriedOnceMore(t *testing.T) {
	for name, c := range map[string]struct{ kills, begun int }{
		"once":        {kills: 1, begun: 2},
		"every time":  {kills: 100, begun: 3},
		"not at all":  {kills: 0, begun: 1},
		"by another":  {kills: -1, begun: 2},
		"and another": {kills: -2, begun: 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &lives{kills: map[string]int{"m": max(0, c.kills), "other": max(0, -c.kills)}}
				p := inMemory(t, l)
				var all sync.WaitGroup
				var other error
				if c.kills < 0 {
					all.Go(func() { other = p.Load(t.Context(), "other") })
				}
				err := p.Load(t.Context(), "m")
				all.Wait()
				require.NoError(t, waitFor(t, p, time.Minute))
				require.Equal(t, c.begun, l.begun)
				var refused *LoadError
				switch {
				case c.kills > 1:
					require.ErrorAs(t, err, &refused)
					require.False(t, refused.Hung)
					require.NotContains(t, p.models, "m", "no later life is to load it")
				case c.kills < -1:
					require.ErrorAs(t, errors.Join(other, err), &refused, "whoever is hit twice")
					require.NotContains(t, p.models, "other")
				default:
					require.NoError(t, err)
					require.NoError(t, other)
					require.Contains(t, p.models, "m")
				}
				require.NoError(t, p.Stop(t.Context()))
			})
		})
	}
}

func TestAModelThatIsRefusedIsNotTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		l := &lives{kills: map[string]int{}}
		launch := func(ctx context.Context) (server, error) {
			s, err := l.begin(ctx)
			return refuser{s, &tries}, err
		}
		p, err := supervise(t.Context(), Spec{Partition: &policy.Partition{Id: "p0"}}, launch, Backoff{}, limits{load: time.Minute, drain: time.Minute}, slog.New(slog.DiscardHandler), nil)
		require.NoError(t, err)
		var refused *LoadError
		require.ErrorAs(t, p.Load(t.Context(), "m"), &refused)
		require.Equal(t, 1, tries)
		require.Equal(t, 1, l.begun)
		require.NoError(t, p.Stop(t.Context()))
	})
}

// refuser loads nothing and lives on.
type refuser struct {
	server
	tries *int
}

func (r refuser) load(context.Context, string) error {
	*r.tries++
	return status.Error(codes.Unavailable, "Server not ready")
}
