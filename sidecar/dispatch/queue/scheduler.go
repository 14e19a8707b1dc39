// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue

import "errors"

// Errors of RemovePartition and its kin.
var (
	// ErrUnknownPartition: no partition has that identifier (any more).
	ErrUnknownPartition = errors.New("no such partition")
	// ErrBusy: the partition still runs a batch; drain it and Complete first.
	ErrBusy = errors.New("partition is running a batch")
)

// Options tune a Scheduler; the zero value is what the papers use.
type Options struct {
	// RateWindow is the time over which arrival rates are averaged; zero means 5 s.
	RateWindow Time
}

// Stats are totals since New, and gauges.
type Stats struct {
	Enqueued, Requeued, Cancelled uint64
	// Dispatched and Batches count requests and batches; LateDispatched and
	// LateBatches are the part of them that had been given up before.
	Dispatched, Batches         uint64
	LateDispatched, LateBatches uint64
	// Hurried counts batches that started before their exec.
	Hurried uint64
	// Dropped counts Sink.Drop calls by reason.
	Dropped [dropReasons]uint64
	// Waiting lanes, requests that are queued on time and late, free partitions.
	WaitingLanes, QueuedRequests, LateRequests, FreePartitions int
}

// ModelStats are a model's gauges.
type ModelStats struct {
	// Rate is rows per second over the rate window.
	Rate float64
	// Target is the window drop's target batch, in rows, per profile class.
	Target []int
	// Requests and Rows wait and can still make it; Late were given up and wait
	// for an idle partition.
	Requests, Rows, Late int
}

// Scheduler holds the queues of all models and the state of all partitions. It
// is not safe for concurrent use: the caller serialises calls.
type Scheduler struct{}

func New(sink Sink, o Options) *Scheduler { return nil }

func (s *Scheduler) AddModel(now Time, spec ModelSpec) ModelID                       { return 0 }
func (s *Scheduler) SetModel(now Time, id ModelID, spec ModelSpec)                   {}
func (s *Scheduler) RemoveModel(now Time, id ModelID)                                {}
func (s *Scheduler) AddPartition(now Time, spec PartitionSpec) PartitionID           { return 0 }
func (s *Scheduler) SetPartition(now Time, id PartitionID, spec PartitionSpec) error { return nil }
func (s *Scheduler) DrainPartition(now Time, id PartitionID) error                   { return nil }
func (s *Scheduler) RemovePartition(now Time, id PartitionID) error                  { return nil }
func (s *Scheduler) SetUp(now Time, id PartitionID, up bool) error                   { return nil }
func (s *Scheduler) Enqueue(now Time, id ModelID, r *Request)                        {}
func (s *Scheduler) Requeue(now Time, id ModelID, r *Request)                        {}
func (s *Scheduler) Cancel(now Time, r *Request) bool                                { return false }
func (s *Scheduler) Complete(now Time, id PartitionID)                               {}
func (s *Scheduler) Next() Time                                                      { return Never }
func (s *Scheduler) Advance(now Time)                                                {}
func (s *Scheduler) Queued(id ModelID) (requests, rows int)                          { return 0, 0 }
func (s *Scheduler) Stats() Stats                                                    { return Stats{} }
func (s *Scheduler) ModelStats(id ModelID) ModelStats                                { return ModelStats{} }
