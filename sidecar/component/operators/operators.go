// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package operators is the operators' doors to conch: the admin API, with the stream
// of state and the orders that control alone cannot execute, and metrics and health.
package operators

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/calibration"
	"github.com/conch-serving/conch/sidecar/component/credentials"
	"github.com/conch-serving/conch/sidecar/component/doors"
	"github.com/conch-serving/conch/sidecar/component/routes"
	"github.com/conch-serving/conch/sidecar/component/servers"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control"
	"github.com/conch-serving/conch/sidecar/control/merging"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/metrics"
	"github.com/conch-serving/conch/sidecar/observe/recent"
	"github.com/conch-serving/conch/sidecar/record"
	"github.com/conch-serving/conch/sidecar/watch"
)

// stopWatching is how long the streams of state may take to say that conch stops.
const stopWatching = 2 * time.Second

// Options of New.
type Options struct {
	Config      *config.Config
	Control     *control.Control
	Dispatcher  *dispatch.Dispatcher
	Routes      routes.Routes
	Recent      *recent.Recorder
	Traces      *record.Recorder
	Calibration *calibration.Calibration
	// Groups is nil where there is no repository of models to merge, Others where
	// conch runs its servers itself.
	Groups *merging.Book
	Others *servers.Others
	// Logs are those of servers in Pods, as kubernetes.Driver's Log; nil where servers are none.
	Logs func(ctx context.Context, partition string, lines int, follow bool) (io.ReadCloser, error)
	// Fronts says whether clients can come in, if there is something to say.
	Fronts func() (api.Check, bool)
	// MetricsDoor gives the listener of the metrics, on which another part of this conch has served until then; nil, or giving nil: the address is bound.
	MetricsDoor func() net.Listener
	// Leading is closed once this conch owns, and Follows says who does before: then only the admin API is there, for what a conch knows that follows. Both are nil
	// where no other conch may own.
	Leading  <-chan struct{}
	Follows  func() (owner string, is bool)
	Registry *prometheus.Registry
	Log      *slog.Logger
}

// Operators are the doors of operators.
type Operators struct {
	log     *slog.Logger
	metrics func() net.Listener // may be nil
	leading <-chan struct{}     // nil: New has opened all doors
	watches *watch.Hub          // of conch's state
	doors   []*door
}

// door is an address and what is behind it.
type door struct {
	key, address string
	server       *http.Server
	tls          *tls.Config // nil in the clear
	listener     net.Listener
	served       bool
}

// New makes the servers and binds their addresses. Requests end with ctx.
func New(ctx context.Context, o Options) (*Operators, error) {
	listen := o.Config.Listen
	log := o.Log.With("part", "admin")
	metricsTLS, adminTLS, uiTLS, err := settingsTLS(listen, o.Log.With("part", "tls"))
	if err != nil {
		return nil, err
	}
	shown := traffic{o.Dispatcher, o.Recent}
	conch := view{admin.Of(o.Control, o.Traces, shown), o}
	p := &Operators{log: o.Log, metrics: o.MetricsDoor, leading: o.Leading, watches: watch.New(watch.Options{
		Sources: append(admin.Sources(conch),
			watch.Source{Topic: api.TopicRequests, State: shown.requests},
			watch.Source{Topic: api.TopicMinutes, Since: shown.minutes, First: recent.MinutesKept},
			watch.Source{Topic: api.TopicWaiting, State: shown.waiting},
			watch.Source{Topic: api.TopicExecutions, Since: shown.executions, First: recent.ExecutionsKept},
		),
		Epoch: strconv.FormatInt(time.Now().UnixMicro(), 36), Now: time.Now, Logger: o.Log.With("part", "watch"),
	})}
	scrape, err := metrics.New(metrics.Options{
		Partitions: o.Routes, Requests: o.Routes, Conch: o.Registry, Registerer: o.Registry, Logger: o.Log.With("part", "metrics"),
	})
	if err != nil {
		return nil, err
	}
	orders := http.Handler(admin.NewHandler(conch, p.watches, log))
	if o.Follows != nil {
		orders = admin.Following(orders, o.Follows, log)
	}
	browsers, err := newBrowsers(listen.UI, orders, o.Log.With("part", "ui"))
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	health := http.NewServeMux()
	health.Handle("/metrics", scrape)
	health.Handle("GET /livez", orders)
	health.Handle("GET /readyz", orders)
	if listen.AdminToken != "" {
		token, err := admin.NewToken("listen.adminToken", listen.AdminToken)
		if err != nil {
			return nil, errors.Join(err, p.close())
		}
		orders = token.Guard(orders, log)
	}
	p.doors = []*door{
		{"metrics", listen.Metrics, doors.HTTP(ctx, health, o.Log), metricsTLS, nil, false},
		{"admin", listen.Admin, doors.HTTP(ctx, orders, o.Log), adminTLS, nil, false},
		{"ui", listen.UI.Address, doors.HTTP(ctx, browsers, o.Log), uiTLS, nil, false},
	}
	p.doors[1].server.ConnContext = admin.WithPeer
	if err := p.bind(o.Leading == nil); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// settingsTLS reads the certificates of the doors that have one.
func settingsTLS(listen config.Listen, log *slog.Logger) (forMetrics, forAdmin, forUI *tls.Config, err error) {
	if listen.TLS.Metrics {
		if forMetrics, err = credentials.Server(listen.TLS, log, "http/1.1"); err != nil {
			return nil, nil, nil, err
		}
	}
	if forAdmin, err = credentials.Admin("listen.adminTLS", listen.AdminTLS, log); err != nil {
		return nil, nil, nil, err
	}
	forUI, err = credentials.Admin("listen.ui.tls", listen.UI.TLS, log)
	return forMetrics, forAdmin, forUI, err
}

// bind opens every address that is not off, or only that of the admin API.
func (p *Operators) bind(all bool) (err error) {
	if all && p.metrics != nil {
		p.doors[0].listener = p.metrics()
	}
	for _, d := range p.doors {
		if d.address == config.Off || d.listener != nil || !all && d.key != "admin" {
			continue
		}
		open := doors.Listen
		if d.key == "admin" {
			open = admin.Listen
		}
		if d.listener, err = open(d.address); err != nil {
			d.listener = nil
			return doors.Error(d.key, err)
		}
	}
	return nil
}

// Address is that of an open door, metrics, admin or ui; nil if it is off.
func (p *Operators) Address(key string) net.Addr {
	for _, d := range p.doors {
		if d.key == key && d.listener != nil {
			return d.listener.Addr()
		}
	}
	return nil
}

// Run implements component.Component.
func (p *Operators) Run(ctx context.Context) error {
	if ctx.Err() != nil {
		return p.close()
	}
	var running sync.WaitGroup
	failed := make(chan error, len(p.doors))
	p.serve(failed, &running)
	var cause error
	for leading := p.leading; cause == nil && ctx.Err() == nil; {
		select {
		case <-ctx.Done():
		case cause = <-failed:
		case <-leading:
			leading = nil
			if cause = p.bind(true); cause == nil {
				p.serve(failed, &running)
			}
		}
	}
	p.watches.Stop(stopWatching)
	for _, d := range p.doors {
		if err := d.server.Close(); err != nil {
			p.log.Debug("an operators' server did not close cleanly", "error", err)
		}
	}
	running.Wait()
	return errors.Join(cause, p.close())
}

// serve serves the doors that are open and not served yet.
func (p *Operators) serve(failed chan<- error, running *sync.WaitGroup) {
	for _, d := range p.doors {
		if d.listener == nil || d.served {
			continue
		}
		d.served = true
		l := d.listener
		if d.tls != nil {
			l = tls.NewListener(l, d.tls)
		}
		running.Go(func() {
			if err := doors.Served(d.key, d.server.Serve(l)); err != nil {
				failed <- err
			}
		})
	}
}

// close closes what was opened.
func (p *Operators) close() error {
	var errs []error
	for _, d := range p.doors {
		if d.listener == nil {
			continue
		}
		// The server behind it has closed it, unless nothing ever served.
		if err := d.listener.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
