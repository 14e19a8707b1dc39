// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/sidecar/console/door"
	"github.com/conch-serving/conch/sidecar/watch"
)

// seen is a conch with something to see.
type seen struct{ stub }

func (*seen) Version(context.Context) (api.Version, error) {
	return api.Version{Version: "1", Mode: "control"}, nil
}

func (*seen) Ready(context.Context) (api.Health, error) { return api.Health{OK: true}, nil }
func (*seen) Glance(context.Context) ([]api.Model, error) {
	return []api.Model{{Name: "b"}, {Name: "a", Queued: 3}}, nil
}
func (*seen) GPUs(context.Context) ([]api.GPU, error) {
	return []api.GPU{{ID: "gpu1"}, {ID: "cpu", Node: "a"}, {ID: "cpu", Node: "b"}}, nil
}
func (*seen) Partitions(context.Context) ([]api.Partition, error) {
	return []api.Partition{{ID: "gpu1-a"}, {ID: "gpu1-a", Retiring: true}}, nil
}
func (*seen) Plan(context.Context) (api.Plan, error) {
	return api.Plan{Revision: 7, Plan: []byte(`{}`)}, nil
}
func (*seen) Events(_ context.Context, since uint64) (all []api.Event, err error) {
	for id := since + 1; id <= 300; id++ {
		all = append(all, api.Event{ID: id, Message: "a line\nand another"})
	}
	return all, nil
}

func hub(conch admin.API) *watch.Hub {
	return watch.New(watch.Options{Sources: admin.Sources(conch), Epoch: "e", Watchers: 2, Now: time.Now, Logger: slog.New(slog.DiscardHandler)})
}

var errEnough = errors.New("enough")

func TestWatchSendsEveryTopicToTheClient(t *testing.T) {
	server := httptest.NewServer(admin.NewHandler(&seen{}, hub(&seen{}), slog.New(slog.DiscardHandler)))
	t.Cleanup(server.Close)
	c, err := client.New(server.URL)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	var state client.State
	last := ""
	read := func(topics ...api.Topic) error {
		return c.Watch(t.Context(), topics, "", func(change client.Change) error {
			require.NoError(t, state.Take(change))
			last = change.ID
			if state.Knows(api.TopicConch, api.TopicModels, api.TopicGPUs, api.TopicPartitions, api.TopicPlan, api.TopicEvents) {
				return errEnough
			}
			return nil
		})
	}
	require.ErrorIs(t, read(), errEnough)
	require.NotEmpty(t, last)
	require.Equal(t, &api.Conch{Version: api.Version{Version: "1", Mode: "control"}, Health: api.Health{OK: true}, MayChange: true}, state.Conch)
	require.Equal(t, []api.Model{{Name: "a", Queued: 3}, {Name: "b"}}, state.Models)
	require.Equal(t, []api.GPU{{ID: "gpu1"}, {ID: "cpu", Node: "a"}, {ID: "cpu", Node: "b"}}, state.GPUs)
	require.Equal(t, []api.Partition{{ID: "gpu1-a"}, {ID: "gpu1-a", Retiring: true}}, state.Partitions, "what is replaced has the id of what replaces it")
	require.EqualValues(t, 7, state.Plan.Revision)
	require.Len(t, state.Events, 200)
	require.EqualValues(t, 300, state.Events[199].ID)

	err = c.Watch(t.Context(), []api.Topic{"weather"}, "", nil)
	require.Equal(t, api.CodeInvalid, api.CodeOf(err))
	ctx, cancel := context.WithCancel(t.Context())
	require.NoError(t, c.Watch(ctx, nil, "", func(client.Change) error { cancel(); return nil }), "the caller has enough")
}

func TestADoorThatTakesNoOrdersSaysSo(t *testing.T) {
	all := admin.NewHandler(&seen{}, hub(&seen{}), slog.New(slog.DiscardHandler))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Set(door.Look, "true")
		all.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	c, err := client.New(server.URL)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	require.ErrorIs(t, c.Watch(t.Context(), []api.Topic{api.TopicConch}, "", func(change client.Change) error {
		var state client.State
		require.NoError(t, state.Take(change))
		require.False(t, state.Conch.MayChange)
		return errEnough
	}), errEnough)
}

// pipes is a listener whose connections have no buffers, in the bubble of a synctest.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

// open serves a hub over pipes. The function that is returned sends a request and returns the connection.
func open(t *testing.T, base context.Context, h *watch.Hub) func(lines string) net.Conn {
	t.Helper()
	return openAPI(t, base, &seen{}, h)
}

// openAPI is open for any API.
func openAPI(t *testing.T, base context.Context, conch admin.API, h *watch.Hub) func(lines string) net.Conn {
	t.Helper()
	l := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	server := &http.Server{
		Handler:     admin.NewHandler(conch, h, slog.New(slog.DiscardHandler)),
		BaseContext: func(net.Listener) context.Context { return base },
	}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() {
		require.NoError(t, server.Close())
		synctest.Wait()
	})
	return func(lines string) net.Conn {
		ours, theirs := net.Pipe()
		t.Cleanup(func() { _ = ours.Close() })
		l.conns <- theirs
		_, err := io.WriteString(ours, lines+"\r\nHost: conch\r\n\r\n")
		require.NoError(t, err)
		return ours
	}
}

func TestAWatcherThatNeverReadsIsCutOff(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := hub(&seen{})
		ask := open(t, t.Context(), h)
		ask("GET /v1/watch HTTP/1.1")
		reads := ask("GET /v1/watch?topic=plan HTTP/1.1")
		go func() { _, _ = io.Copy(io.Discard, reads) }()
		synctest.Wait()
		_, err := h.Watch(nil, "")
		require.ErrorContains(t, err, "too many watchers")
		time.Sleep(10*time.Second + time.Millisecond)
		synctest.Wait()
		w, err := h.Watch(nil, "")
		require.NoError(t, err, "the one that never reads has gone")
		defer w.Close()
		_, err = h.Watch(nil, "")
		require.ErrorContains(t, err, "too many watchers", "the one that reads has not")
	})
}

func TestTooManyWatchersAreRefused(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		h := hub(&seen{})
		ask := open(t, t.Context(), h)
		for range 2 {
			w, err := h.Watch(nil, "")
			require.NoError(t, err)
			defer w.Close()
		}
		r, err := http.ReadResponse(bufio.NewReader(ask("GET /v1/watch HTTP/1.1")), nil)
		require.NoError(t, err)
		defer r.Body.Close()
		require.Equal(t, http.StatusServiceUnavailable, r.StatusCode)
		text, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.Contains(t, string(text), "too many watchers: there are 2")
	})
}

// A browser's page hears of events and of nothing else: what says that the stream is alive is one. It has no id, so that who comes back misses nothing.
func TestAnEventComesEvery15SecondsAndConchSaysThatItStops(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		base, stop := context.WithCancel(t.Context())
		defer stop()
		ask := open(t, base, hub(&seen{}))
		r, err := http.ReadResponse(bufio.NewReader(ask("GET /v1/watch?topic=plan HTTP/1.1")), nil)
		require.NoError(t, err)
		defer r.Body.Close()
		require.Equal(t, "text/event-stream", r.Header.Get("Content-Type"))
		lines := bufio.NewScanner(r.Body)
		next := func() string {
			require.True(t, lines.Scan(), lines.Err())
			return lines.Text()
		}
		require.Equal(t, "event: plan", next())
		require.Equal(t, "id: e.1.g", next())
		require.True(t, strings.HasPrefix(next(), `data: {"time":"`))
		require.Empty(t, next())
		start := time.Now()
		for i := range 3 {
			require.Equal(t, "event: plan", next())
			require.Equal(t, `data: {"time":"`+time.Now().Format(time.RFC3339Nano)+`"}`, next())
			require.Empty(t, next())
			require.Equal(t, time.Duration(i+1)*15*time.Second, time.Since(start))
		}
		stop()
		require.Equal(t, "event: end", next())
		require.Equal(t, `data: {"reason":"stopping","message":"conch stops"}`, next())
		require.Empty(t, next())
		require.False(t, lines.Scan())
	})
}

func TestTheClientSaysHowAStreamEnded(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, ":\n\nevent: end\ndata: {\"reason\":\"slow\",\"message\":\"7 events were not read in time\"}\n\n")
	}))
	t.Cleanup(server.Close)
	c, err := client.New(server.URL)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	var ended *client.EndedError
	require.ErrorAs(t, c.Watch(t.Context(), nil, "", nil), &ended)
	require.Equal(t, "slow", ended.Reason)
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, ":\n\n") })
	require.ErrorIs(t, c.Watch(t.Context(), nil, "", nil), io.ErrUnexpectedEOF)
}

// A client that follows a conch goes on where it was when the connection is lost, also with another process, and ends where it is refused.
func TestFollowConnectsAgain(t *testing.T) {
	var handler atomic.Pointer[http.Handler]
	serve := func(epoch string) {
		h := admin.NewHandler(&seen{}, watch.New(watch.Options{
			Sources: admin.Sources(&seen{}), Epoch: epoch, Now: time.Now, Logger: slog.New(slog.DiscardHandler),
		}), slog.New(slog.DiscardHandler))
		handler.Store(&h)
	}
	serve("a")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*handler.Load()).ServeHTTP(w, r) }))
	t.Cleanup(server.Close)
	c, err := client.New(server.URL)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	states, losses := 0, 0
	err = c.Follow(t.Context(), []api.Topic{api.TopicModels, api.TopicConch}, func(s client.State) error {
		require.True(t, s.Knows(api.TopicModels, api.TopicConch))
		require.Len(t, s.Models, 2)
		states++
		switch losses {
		case 0:
			serve("b") // another conch
			server.CloseClientConnections()
			return nil
		case 1:
			return errEnough
		}
		return nil
	}, func(err error) error {
		require.Error(t, err)
		losses++
		return nil
	})
	require.ErrorIs(t, err, errEnough)
	require.Equal(t, 1, losses)
	require.GreaterOrEqual(t, states, 2)

	refuse := http.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"error":{"code":"unauthenticated","message":"wrong token"}}`)
	}))
	handler.Store(&refuse)
	err = c.Follow(t.Context(), []api.Topic{api.TopicModels}, nil, func(error) error { t.Error("refused, not lost"); return errEnough })
	require.Equal(t, api.CodeUnauthenticated, api.CodeOf(err))
	server.Close()
	require.ErrorIs(t, c.Follow(t.Context(), []api.Topic{api.TopicModels}, nil, func(err error) error { return err }), client.ErrUnreachable)
}
