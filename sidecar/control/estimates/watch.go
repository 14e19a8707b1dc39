// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package estimates

import (
	"fmt"
	"maps"
	"math"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
)

const (
	// again is how long nothing is reported of a model and place after something was.
	again = 10 * time.Minute
	// further is the factor by which a ratio must have changed to be reported again after that time.
	further = 1.25
	// forgotten is the age at which the report of a model that is gone is dropped.
	forgotten = 24 * time.Hour
	// executions of a batch size count from here on.
	executions = 16
)

// Watch holds what is observed against estimates, and reports once where an estimate is off by more than its bound. The zero value has reported nothing. It is
// not safe for concurrent use.
type Watch struct{ reported map[key]report }

type report struct {
	at    time.Time
	ratio float64
}

// Compare gives a sentence where the sizes that were observed often enough take, all together, more than the estimate and its bound, or less. The same
// is reported again only after ten minutes, and if it has changed by a quarter.
func (w *Watch) Compare(now time.Time, e *Estimate, p *policy.Profile) (message string, off bool) {
	if e == nil || e.Estimate == nil || len(e.Points) == 0 || p.GetSource() != policy.ProfileSource_PROFILE_SOURCE_OBSERVED {
		return "", false
	}
	estimated := e.Policy(e.Model, e.Type)
	var sum, weights float64
	var batch, share uint32
	var most uint64
	for _, q := range p.GetPoints() {
		b, s, n := q.GetBatch(), q.GetThreadPercentage(), q.GetObservations()
		was, ok := estimated.Latency(b, s)
		if n < executions || !ok || !(was > 0) || !(q.GetLatencyUs().GetValue() > 0) {
			continue
		}
		sum += math.Log(q.GetLatencyUs().GetValue()/was) * float64(n)
		weights += float64(n)
		if n > most {
			most, batch, share = n, b, s
		}
	}
	if weights == 0 {
		return "", false
	}
	ratio := math.Exp(sum / weights)
	k := key{e.Model, e.Digest, e.Type}
	if within := 1 + e.Bound; ratio <= within && ratio >= 1/within {
		delete(w.reported, k)
		return "", false
	}
	if before, ok := w.reported[k]; ok && (now.Sub(before.at) < again || math.Abs(math.Log(ratio/before.ratio)) < math.Log(further)) {
		return "", false
	}
	if w.reported == nil {
		w.reported = map[key]report{}
	}
	maps.DeleteFunc(w.reported, func(_ key, r report) bool { return now.Sub(r.at) > forgotten })
	w.reported[k] = report{now, ratio}
	return fmt.Sprintf("%s on %s takes %.2g times its estimate, whose error bound is %.0f%% (most often observed: batch %d at %d%%); plans go by what is observed",
		e.Model, e.Type, ratio, 100*e.Bound, batch, share), true
}
