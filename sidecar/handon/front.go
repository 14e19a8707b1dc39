// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package handon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"

	"github.com/conch-serving/conch/internal/buffers"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/gate"
)

// Options of New.
type Options struct {
	// Name of this replica: what its mark on a request says.
	Name string
	// GRPC, HTTP and Metrics are the addresses of the doors; empty: the door is off.
	GRPC, HTTP, Metrics string
	// Requests, Bytes, Connections and Stall bound what clients can make this replica hold, as those of package gate; MessageBytes is the largest request.
	Requests     int
	Bytes        int64
	Connections  int
	Stall        time.Duration
	MessageBytes int
	// Patience is how long a request waits for an owner, if its own deadline is not sooner (30s).
	Patience time.Duration
	Logger   *slog.Logger
}

// Front is the doors of a replica that owns nothing. New opens them; it is a prometheus.Collector of what went through.
type Front struct {
	o       Options
	owner   followed
	counts  *counters
	gate    *gate.Gate
	pool    buffers.Pool
	grpc    *grpc.Server
	http    *http.Server
	metrics *http.Server
	// leaving: HTTP answers ask for another connection.
	leaving atomic.Bool

	mu    sync.Mutex
	doors map[string]*door
	ended bool

	stop    context.CancelFunc
	running sync.WaitGroup
}

// door is a socket and the turn of this front's server on it; nil once the socket is another's.
type door struct {
	socket *socket
	turn   *turn
}

const (
	// probing is how often the owner is asked whether it serves.
	probing = time.Second
	// header bounds how long the lines before a body take.
	header = 10 * time.Second
)

// New opens the doors, and begins to serve. Until Follow is called requests wait.
func New(o Options) (_ *Front, err error) {
	o.Patience = cmp.Or(o.Patience, 30*time.Second)
	f := &Front{o: o, doors: map[string]*door{}, counts: newCounters()}
	f.owner.changed = make(chan struct{})
	f.gate = gate.New(gate.Options{Requests: o.Requests, Bytes: o.Bytes, Connections: o.Connections, Stall: o.Stall, Logger: o.Logger})
	life, stop := context.WithCancel(context.Background())
	f.stop = stop
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(0))
		}
	}()
	f.grpc = f.newGRPC()
	f.http = f.server(f.newHTTP())
	f.http.ConnContext, f.http.IdleTimeout = gate.WithConn, -1
	own := prometheus.NewRegistry()
	if err := own.Register(f); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(own, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { health(w, nil) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { health(w, f.Ready()) })
	f.metrics = f.server(mux)
	for key, address := range map[string]string{"grpc": o.GRPC, "http": o.HTTP, "metrics": o.Metrics} {
		if address == "" {
			continue
		}
		s, err := open(address)
		if err != nil {
			return nil, fmt.Errorf("listen.%s: %w; choose another address, or off", key, err)
		}
		f.doors[key] = &door{s, s.turn()}
	}
	for key, d := range f.doors {
		serve, l := map[string]func(net.Listener) error{"grpc": f.grpc.Serve, "http": f.http.Serve, "metrics": f.metrics.Serve}[key], net.Listener(d.turn)
		if key != "metrics" {
			l = f.gate.Listener(l, key == "grpc")
		}
		f.running.Go(func() {
			if err := serve(l); err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, grpc.ErrServerStopped) {
				o.Logger.Error("a door for requests that are handed on has failed", "door", key, "error", err)
			}
		})
	}
	f.running.Go(func() { f.probe(life) })
	return f, nil
}

func (f *Front) server(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: header, ErrorLog: slog.NewLogLogger(f.o.Logger.Handler(), slog.LevelDebug)}
}

// health answers a probe in the form of the admin API.
func health(w http.ResponseWriter, err error) {
	type check struct {
		Name   string `json:"name"`
		OK     bool   `json:"ok"`
		Reason string `json:"reason,omitempty"`
	}
	c := check{Name: "owner", OK: err == nil}
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		c.Reason = err.Error()
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"ok": c.OK, "checks": []check{c}}) // who asked has gone
}

// Address is that of a door, grpc, http or metrics; nil where it is off.
func (f *Front) Address(key string) net.Addr {
	f.mu.Lock()
	defer f.mu.Unlock()
	if d := f.doors[key]; d != nil {
		return d.socket.Addr()
	}
	return nil
}

// Follow has requests go to an owner from now on. What the owner before has not answered yet goes there, too. The owner may be this very replica: then its requests
// wait until the doors were taken.
func (f *Front) Follow(o Owner) {
	if err := f.owner.follow(o); err != nil {
		f.o.Logger.Warn("the way to an owner could not be closed or opened", "owner", o.Name, "error", err)
	}
}

// Ready says why no request can be handed on at the moment; nil where it can.
func (f *Front) Ready() error { return f.owner.fresh(f.o.Patience) }

// Take gives a door to the caller, who closes it: this front accepts nothing there any more. What it has accepted it still hands on. Nil where the door is
// off, or was taken.
func (f *Front) Take(key string) net.Listener {
	f.mu.Lock()
	d := f.doors[key]
	if d == nil || d.turn == nil || f.ended {
		f.mu.Unlock()
		return nil
	}
	mine := d.turn
	d.turn = nil
	f.running.Add(1) // while Close, which waits, cannot have begun
	f.mu.Unlock()
	defer f.running.Done()
	if err := mine.Close(); err != nil {
		f.o.Logger.Debug("a door was not given up cleanly", "door", key, "error", err)
	}
	switch key {
	case "grpc": // clients are sent to connections that the next server accepts
		f.running.Go(f.grpc.GracefulStop)
	case "http":
		f.leaving.Store(true)
	case "metrics": // a connection that is kept would have this front's few figures for ever
		f.metrics.SetKeepAlivesEnabled(false)
	}
	return last{d.socket.turn()}
}

// Close ends the doors that were not taken, and waits for what is under way, within a time.
func (f *Front) Close(within time.Duration) error {
	f.mu.Lock()
	if f.ended {
		f.mu.Unlock()
		return nil
	}
	f.ended = true
	var errs []error
	for _, d := range f.doors {
		if d.turn != nil {
			errs = append(errs, last{d.turn}.Close())
		}
	}
	f.mu.Unlock()
	limit, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if f.grpc != nil {
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			f.grpc.GracefulStop()
		}()
		for _, s := range []*http.Server{f.http, f.metrics} {
			if s != nil && s.Shutdown(limit) != nil {
				errs = append(errs, s.Close())
			}
		}
		select {
		case <-stopped:
		case <-limit.Done():
			f.grpc.Stop()
			<-stopped
		}
	}
	f.stop()
	f.running.Wait()
	errs = append(errs, f.owner.close())
	f.gate.Close()
	return errors.Join(errs...)
}

// probe asks the owner again and again whether it serves.
func (f *Front) probe(life context.Context) {
	for life.Err() == nil {
		now, changed := f.owner.look()
		if now != nil && f.serves(life, now) {
			f.owner.heard()
		}
		select {
		case <-life.Done():
		case <-changed:
		case <-time.After(probing):
		}
	}
}
