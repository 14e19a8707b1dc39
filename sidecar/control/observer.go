// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"time"

	"github.com/conch-serving/conch/sidecar/apply/warmup"
	"github.com/conch-serving/conch/sidecar/dispatch"
	"github.com/conch-serving/conch/sidecar/observe"
	"github.com/conch-serving/conch/sidecar/observe/recent"
)

// Observer makes recorders the listeners of the request path. It exists because
// neither may know the other.
func Observer(r *observe.Recorder, last *recent.Recorder) dispatch.Observer {
	return observer{r, last}
}

type observer struct {
	recorder *observe.Recorder
	recent   *recent.Recorder
}

// Arrived implements dispatch.Observer.
func (o observer) Arrived(model string, rows int, at time.Time) { o.recorder.Arrived(model, rows, at) }

// Asked implements dispatch.Observer.
func (o observer) Asked(a dispatch.Asked) {
	if a.Again {
		o.recorder.Routed(a.Model, a.Rows, a.At)
		return
	}
	o.recorder.Asked(a.Name, a.Model, observe.Wish(a.Wish), a.Rows, a.At)
}

// Executed implements dispatch.Observer.
func (o observer) Executed(e dispatch.Execution) {
	o.recorder.Executed(observe.Execution{
		Model: e.Model, Partition: e.Partition, GPUType: e.GPUType, ThreadPercentage: e.ThreadPercentage, Rows: e.Rows, Requests: e.Requests,
		Start: e.Start, End: e.End, Err: e.Err, Lent: e.Lent, Between: observe.Between(e.Between), Shared: e.Shared,
	})
	o.recent.Executed(recent.Execution{
		Model: e.Model, Partition: e.Partition, Start: e.Start, End: e.End, Rows: e.Rows, Requests: e.Requests, Deadline: e.Deadline, Failed: e.Err != nil,
	})
}

// Busy implements dispatch.Observer.
func (o observer) Busy(partition string, from, to time.Time) { o.recorder.Busy(partition, from, to) }

// Walked implements dispatch.Observer.
func (o observer) Walked(w dispatch.Walk) {
	steps := make([]observe.WalkStep, len(w.Steps))
	for i := range w.Steps {
		s := &w.Steps[i]
		steps[i] = observe.WalkStep{
			Ran: s.Ran, Rows: s.Rows, Queue: s.Queue, Execution: s.Execution, HandOver: s.HandOver, Critical: s.Critical, Taken: s.Taken,
		}
	}
	o.recorder.Walked(observe.Walk{Ensemble: w.Ensemble, Rows: w.Rows, Ended: w.Ended, Took: w.Took, Steps: steps})
}

// Finished implements dispatch.Observer.
func (o observer) Finished(f dispatch.Outcome) {
	left := f.Result == dispatch.Cancelled && f.Reason != dispatch.GoneDeadline
	o.recorder.Finished(observe.Outcome{
		Model: f.Model, Early: f.Early, Name: f.Name, Result: observe.Result(f.Result.String()), Latency: f.Latency, Queued: f.Queued,
		Rows: f.Rows, Batch: f.Batch, PassedThrough: f.PassedThrough, Retried: f.Retried, Reason: f.Reason, Left: left, At: f.Ended,
	})
	o.recent.Finished(&recent.Request{
		Model: f.Model, Result: f.Result.String(), Reason: f.Reason,
		InTime:   f.Result == dispatch.OK,
		Answered: f.Result == dispatch.OK || f.Result == dispatch.Late || f.Result == dispatch.Cold,
		Left:     left,
		Cold:     f.Result == dispatch.Cold,
		Ended:    f.Ended, Latency: f.Latency, Wait: f.Wait, Gather: f.Gather, Execute: f.Execute, Deadline: f.Deadline,
		Partition: f.Partition, Rows: f.Rows, BatchRows: f.Batch, Retried: f.Retried, Identity: f.Identity,
	})
}

// Samples makes a recorder take what warm-ups measured: it is the
// apply.Recorder of the recorder.
func Samples(r *observe.Recorder) SampleRecorder { return SampleRecorder{r} }

// SampleRecorder implements apply.Recorder.
type SampleRecorder struct{ recorder *observe.Recorder }

// Record implements apply.Recorder.
func (s SampleRecorder) Record(model, gpuType string, threadPercentage uint32, samples []warmup.Sample) {
	all := make([]observe.Sample, len(samples))
	for i, sample := range samples {
		all[i] = observe.Sample(sample)
	}
	s.recorder.Calibrated(model, gpuType, threadPercentage, all)
}
