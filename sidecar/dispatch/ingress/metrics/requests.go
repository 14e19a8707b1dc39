// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"maps"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// Series counts what clients asked of one version of a model, by the partition that their requests ran on. Requests that
// never reached a partition are in a Series without a Partition. All but Waiting only grow.
type Series struct {
	Model, Version, Partition string
	Success                   uint64
	SuccessTime, QueueTime    time.Duration
	Failed                    map[string]uint64 // by Triton's reason
	// Waiting counts requests that wait in Conch; only without a Partition.
	Waiting int
}

// Requests has the requests of clients.
type Requests interface {
	MetricsRequests() []Series
}

// The families of Triton that count requests. A partition gets a batch of eight requests as one, so that its own numbers
// would show an eighth of the load: these are replaced by the requests of clients.
const (
	familySuccess  = "nv_inference_request_success"
	familyFailure  = "nv_inference_request_failure"
	familyDuration = "nv_inference_request_duration_us"
	familyQueue    = "nv_inference_queue_duration_us"
	// familyPending is a partition's own queue; the requests that wait in Conch are added as a series without a
	// partition.
	familyPending = "nv_inference_pending_request_count"
)

// counted reports whether a partition's series of the family are replaced.
func counted(family string) bool {
	switch family {
	case familySuccess, familyFailure, familyDuration, familyQueue:
		return true
	}
	return false
}

// fill writes the series into the families that a partition showed. A family without series has no use.
func fill(described map[string]*dto.MetricFamily, all []Series) {
	counter := func(family string, s Series, value float64, more ...string) {
		if f := described[family]; f != nil && f.GetType() == dto.MetricType_COUNTER {
			f.Metric = append(f.Metric, &dto.Metric{Label: labels(s, more...), Counter: &dto.Counter{Value: &value}})
		}
	}
	for _, s := range all {
		here := s.Partition != ""
		if here {
			counter(familySuccess, s, float64(s.Success))
			counter(familyDuration, s, float64(s.SuccessTime.Microseconds()))
			counter(familyQueue, s, float64(s.QueueTime.Microseconds()))
		}
		for _, reason := range slices.Sorted(maps.Keys(s.Failed)) {
			if n := s.Failed[reason]; here || n > 0 {
				counter(familyFailure, s, float64(n), "reason", reason)
			}
		}
		if f := described[familyPending]; !here && f != nil && f.GetType() == dto.MetricType_GAUGE {
			waiting := float64(s.Waiting)
			f.Metric = append(f.Metric, &dto.Metric{Label: labels(s), Gauge: &dto.Gauge{Value: &waiting}})
		}
	}
	maps.DeleteFunc(described, func(_ string, f *dto.MetricFamily) bool { return len(f.Metric) == 0 })
}

func labels(s Series, more ...string) []*dto.LabelPair {
	pairs := append([]string{"model", s.Model, "version", s.Version}, more...)
	if s.Partition != "" {
		pairs = append(pairs, Label, s.Partition)
	}
	var list []*dto.LabelPair
	for i := 0; i+1 < len(pairs); i += 2 {
		list = append(list, &dto.LabelPair{Name: &pairs[i], Value: &pairs[i+1]})
	}
	slices.SortFunc(list, func(x, y *dto.LabelPair) int { return strings.Compare(x.GetName(), y.GetName()) })
	return list
}
