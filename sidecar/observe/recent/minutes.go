// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package recent

import (
	"time"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// minuteSettles is how long after its end a minute is counted: requests that ended in its last moments are taken in by then.
const minuteSettles = time.Second

// Minutes are those that ended in the last hour and have a larger number than after, oldest first, from the first in which a request of a model
// that is still known ended. Numbers are consecutive: minutes since 1970, by the clock
// that the machine had when the recorder began. The first has the number first. Where the clock was set since, Start is by the clock of now.
func (r *Recorder) Minutes(after uint64, now time.Time) (all []api.Minute, first uint64) {
	steady := r.steady(now)
	set := now.Round(0).Sub(steady).Round(time.Minute)
	last := minuteOf(slotOf(steady.Add(-minuteSettles))) - 1
	oldest := last + 1
	r.models.Range(func(_, found any) bool {
		oldest = min(oldest, minuteOf(slotOf(found.(*model).since)))
		return true
	})
	from := max(oldest, last-MinutesKept+1, int64(after)+1) //nolint:gosec // minutes since 1970
	if from > last {
		return nil, 0
	}
	all = make([]api.Minute, last-from+1)
	for i := range all {
		all[i] = api.Minute{Start: (from+int64(i))*60 + int64(set/time.Second), Models: map[string]api.Counted{}}
	}
	r.models.Range(func(name, found any) bool {
		m := found.(*model)
		m.mu.Lock()
		defer m.mu.Unlock()
		count := func(minute int64, t *tally) {
			if t.requests == 0 || minute < from || minute > last {
				return
			}
			into := all[minute-from].Models
			before := into[name.(string)]
			into[name.(string)] = api.Counted{before.Requests() + t.requests, before.InTime() + t.inTime}
		}
		for i := range m.hour {
			count(m.hour[i].at, &m.hour[i])
		}
		for i := range m.slots { // those that are not added to their minute yet
			count(minuteOf(m.slots[i].at), &m.slots[i])
		}
		return true
	})
	return all, uint64(from) //nolint:gosec // minutes since 1970
}
