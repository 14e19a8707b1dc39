// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Label is the label with a partition's id.
const Label = "partition"

// Partition is one Triton process and the endpoint of its metrics.
type Partition struct {
	ID       string
	Endpoint string // "host:port" or "unix:path" of its /metrics; empty if it has none
}

// Partitions lists the partitions that are up.
type Partitions interface {
	MetricsPartitions() []Partition
}

// Options are what a Handler needs.
type Options struct {
	Partitions Partitions
	// Requests has the requests of clients; nil leaves the partitions' own numbers, which count a batch as one request.
	Requests Requests
	// Conch has the metrics of Conch itself; nil means none.
	Conch prometheus.Gatherer
	// Registerer takes the counter of failed scrapes, conch_partition_scrape_failures_total; nil leaves it out.
	Registerer prometheus.Registerer
	// Timeout bounds the scrape of all partitions, which runs in parallel; zero means two seconds.
	Timeout time.Duration
	// MaxBytes bounds one partition's exposition; zero means 16 MiB.
	MaxBytes int64
	// Logger logs failed scrapes; nil discards.
	Logger *slog.Logger
}

// Defaults of Options.
const (
	DefaultTimeout  = 2 * time.Second
	DefaultMaxBytes = 16 << 20
)

// Handler answers GET /metrics.
type Handler struct {
	o        Options
	serve    http.Handler
	failures *prometheus.CounterVec
}

// New makes a Handler. The error is of registering its counter.
func New(o Options) (*Handler, error) {
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	o.MaxBytes = cmp.Or(o.MaxBytes, DefaultMaxBytes)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Conch == nil {
		o.Conch = prometheus.Gatherers{}
	}
	h := &Handler{o: o,
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "conch_partition_scrape_failures_total",
			Help: "Times that a partition's own metrics could not be read and were left out.",
		}, []string{Label}),
	}
	h.serve = promhttp.HandlerFor(h, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, ErrorLog: slog.NewLogLogger(o.Logger.Handler(), slog.LevelDebug), DisableCompression: true,
	})
	if o.Registerer != nil {
		if err := o.Registerer.Register(h.failures); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	return h, nil
}

// ServeHTTP writes our own metrics and those of all partitions.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		http.Error(w, `{"error":"Method Not Allowed"}`, http.StatusMethodNotAllowed)
		return
	}
	h.serve.ServeHTTP(w, r)
}

// Gather implements prometheus.Gatherer: it reads the metrics of all partitions at once and merges them with our own. What
// contradicts something before it, such as a partition's family of another type than ours, is left out and in the error.
func (h *Handler) Gather() ([]*dto.MetricFamily, error) {
	scraped := h.scrapeAll()
	all := prometheus.Gatherers{h.o.Conch}
	if h.o.Requests != nil {
		described := map[string]*dto.MetricFamily{}
		for _, families := range scraped {
			for name, family := range families {
				switch {
				case counted(name):
					delete(families, name)
					fallthrough
				case name == familyPending:
					described[name] = &dto.MetricFamily{Name: family.Name, Type: family.Type, Help: family.Help}
				}
			}
		}
		fill(described, h.o.Requests.MetricsRequests())
		scraped = append(scraped, described)
	}
	for _, families := range scraped {
		all = append(all, prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
			return slices.Collect(maps.Values(families)), nil
		}))
	}
	return all.Gather()
}

// scrapeAll reads the metrics of every partition that has some.
func (h *Handler) scrapeAll() []map[string]*dto.MetricFamily {
	ctx, cancel := context.WithTimeout(context.Background(), h.o.Timeout)
	defer cancel()
	partitions := h.o.Partitions.MetricsPartitions()
	scraped := make([]map[string]*dto.MetricFamily, len(partitions))
	var wg sync.WaitGroup
	for i, p := range partitions {
		if p.Endpoint == "" {
			continue
		}
		wg.Go(func() {
			families, err := h.scrape(ctx, p)
			if err != nil {
				h.failures.WithLabelValues(p.ID).Inc()
				h.o.Logger.Debug("a partition's metrics could not be read", "partition", p.ID, "error", err)
				return
			}
			for _, family := range families {
				for _, m := range family.GetMetric() {
					label(m, p.ID)
				}
			}
			scraped[i] = families
		})
	}
	wg.Wait()
	return scraped
}

// label adds the partition. A label of that name that the server itself set is kept as `exported_partition`, as
// Prometheus does it.
func label(m *dto.Metric, partition string) {
	name, exported := Label, "exported_"+Label
	for _, pair := range m.GetLabel() {
		if pair.GetName() == Label {
			pair.Name = &exported
		}
	}
	m.Label = append(m.Label, &dto.LabelPair{Name: &name, Value: &partition})
	slices.SortFunc(m.Label, func(x, y *dto.LabelPair) int { return strings.Compare(x.GetName(), y.GetName()) })
}

var errTooMuch = errors.New("the exposition is too large")

func (h *Handler) scrape(ctx context.Context, p Partition) (map[string]*dto.MetricFamily, error) {
	network, address, host := "tcp", p.Endpoint, p.Endpoint
	if path, ok := strings.CutPrefix(p.Endpoint, "unix:"); ok {
		network, address, host = "unix", path, "localhost"
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true, // Triton does not end while a connection is open, so none is kept
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
	}}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s/metrics: %s", p.Endpoint, response.Status)
	}
	body := &io.LimitedReader{R: response.Body, N: h.o.MaxBytes + 1}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(body)
	if body.N <= 0 {
		err = errTooMuch
	}
	if err != nil {
		return nil, fmt.Errorf("GET %s/metrics: %w", p.Endpoint, err)
	}
	return families, nil
}
