// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

// target is deferred batching with a target size: Symphony's scheduler has it as
// another way to choose exec. A batch starts as soon as it has the size b within
// reach, the largest with l(b)(1+1/n) <= SLO, where n is the number of executors
// that the model keeps busy at its present rate (Symphony, equation 1; see reach in
// rate.go). A batch that does not reach that size starts as under deferred, when no
// further row could join it.
//
// It uses the rate of the last seconds and ignores other models: when requests come
// faster than before, it starts batches smaller than they could be.
type target struct{ deferred }

func targetKind() Kind {
	return Kind{
		Description: Description{
			Name:        "target",
			Help:        "wait for the batch size that rate and SLO allow, no longer than deferred (Symphony's target batch size)",
			DefaultDrop: "window",
		},
		New: func(map[string]string) (Discipline, error) { return target{}, nil },
	}
}

func (t target) Exec(now Time, l *Load) Time {
	if l.Rows >= l.Model.Reach {
		return now
	}
	return t.deferred.Exec(now, l)
}
