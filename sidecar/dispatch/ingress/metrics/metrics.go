// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
	// Own is our own registry; nil means none.
	Own prometheus.Gatherer
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
	client   *http.Client
	failures *prometheus.CounterVec
}

// New makes a Handler; Close it. The error is of registering its counter.
func New(o Options) (*Handler, error) {
	o.Timeout = cmp.Or(o.Timeout, DefaultTimeout)
	o.MaxBytes = cmp.Or(o.MaxBytes, DefaultMaxBytes)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	h := &Handler{o: o,
		// Triton does not end while a connection is open, so none is kept.
		client: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}},
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "conch_partition_scrape_failures_total",
			Help: "Times that a partition's own metrics could not be read and were left out.",
		}, []string{Label}),
	}
	if o.Registerer != nil {
		if err := o.Registerer.Register(h.failures); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	return h, nil
}

// Close closes the idle connections.
func (h *Handler) Close() { h.client.CloseIdleConnections() }

// ServeHTTP writes our own metrics and those of all partitions.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		http.Error(w, `{"error":"Method Not Allowed"}`, http.StatusMethodNotAllowed)
		return
	}
	families, err := h.Gather(r.Context())
	if err != nil {
		h.o.Logger.Warn("some of our own metrics could not be gathered", "error", err)
	}
	format := expfmt.Negotiate(r.Header)
	w.Header().Set("Content-Type", string(format))
	encoder := expfmt.NewEncoder(w, format)
	for _, family := range families {
		if err := encoder.Encode(family); err != nil {
			return // the scraper has gone
		}
	}
	if closer, ok := encoder.(expfmt.Closer); ok {
		_ = closer.Close() // writes OpenMetrics' end; a scraper that has gone misses nothing
	}
}

// Gather reads the metrics of all partitions at once and merges them with our own, sorted by name. The error is of our
// own registry; the metrics that it could gather are in the result all the same.
func (h *Handler) Gather(ctx context.Context) ([]*dto.MetricFamily, error) {
	ctx, cancel := context.WithTimeout(ctx, h.o.Timeout)
	defer cancel()
	partitions := slices.DeleteFunc(slices.Clone(h.o.Partitions.MetricsPartitions()),
		func(p Partition) bool { return p.Endpoint == "" })
	scraped := make([]map[string]*dto.MetricFamily, len(partitions))
	var wg sync.WaitGroup
	for i, p := range partitions {
		wg.Go(func() {
			families, err := h.scrape(ctx, p)
			if err != nil {
				h.failures.WithLabelValues(p.ID).Inc()
				h.o.Logger.Debug("a partition's metrics could not be read", "partition", p.ID, "error", err)
				return
			}
			scraped[i] = families
		})
	}
	wg.Wait()

	merged := make(map[string]*dto.MetricFamily)
	var err error
	if h.o.Own != nil {
		var own []*dto.MetricFamily
		own, err = h.o.Own.Gather()
		for _, family := range own {
			merged[family.GetName()] = family
		}
	}
	var series []Series
	if h.o.Requests != nil {
		series = h.o.Requests.MetricsRequests()
	}
	for i, families := range scraped {
		for name, family := range families {
			if h.o.Requests != nil && counted(name) {
				describe(merged, family)
				continue
			}
			merge(merged, family, partitions[i].ID)
		}
	}
	fill(merged, series)
	list := make([]*dto.MetricFamily, 0, len(merged))
	for _, family := range merged {
		list = append(list, family)
	}
	slices.SortFunc(list, func(x, y *dto.MetricFamily) int { return strings.Compare(x.GetName(), y.GetName()) })
	return list, err
}

// merge adds a partition's family. A family whose type contradicts one that is already there, such as one of our own, is
// left out: an exposition must have one type a name.
func merge(merged map[string]*dto.MetricFamily, family *dto.MetricFamily, partition string) {
	for _, m := range family.GetMetric() {
		label(m, partition)
	}
	have, ok := merged[family.GetName()]
	switch {
	case !ok:
		merged[family.GetName()] = family
	case have.GetType() == family.GetType():
		have.Metric = append(have.Metric, family.GetMetric()...)
	}
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
	host := p.Endpoint
	if path, ok := strings.CutPrefix(p.Endpoint, "unix:"); ok {
		host = hex.EncodeToString([]byte(path)) + socketSuffix
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := h.client.Do(request)
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

const socketSuffix = ".unix"

// dial connects to "unix:path" endpoints too, whose path scrape put into the host in hexadecimal.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	if host, _, err := net.SplitHostPort(address); err == nil && strings.HasSuffix(host, socketSuffix) {
		if path, err := hex.DecodeString(strings.TrimSuffix(host, socketSuffix)); err == nil {
			return d.DialContext(ctx, "unix", string(path))
		}
	}
	return d.DialContext(ctx, network, address)
}
