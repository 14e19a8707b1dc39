// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"log/slog"
	"time"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/sidecar/dispatch/forward"
	"github.com/conch-serving/conch/sidecar/dispatch/names"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
	"github.com/conch-serving/conch/sidecar/dispatch/spans"
)

// Options of New. The zero value is usable.
type Options struct {
	// Clock is clock.System() unless given.
	Clock clock.Clock
	// Observer may be nil. A panic of its methods is logged, and the request goes
	// on.
	Observer Observer
	// Recorder may be nil.
	Recorder Recorder
	Logger   *slog.Logger

	// MaxQueuedRequests and MaxQueuedBytes bound what waits and runs, over all
	// models. Beyond them requests are refused with UNAVAILABLE. Zero means
	// 100,000 requests and 4 GiB.
	MaxQueuedRequests int
	MaxQueuedBytes    int64

	// OutageWait is how long an accepted request may wait for a model none of
	// whose partitions is up. Zero means 30 seconds.
	OutageWait time.Duration
	// LoadWait is how long a request may wait for a model that loads on demand, and
	// MaxLoadWaiters how many requests may, over all models. Zero means a minute and
	// 1,000 requests.
	LoadWait       time.Duration
	MaxLoadWaiters int
	// LoadWanted may be nil. It is called with a model that loads on demand each
	// time that requests begin to wait for it; Dispatcher.Wanted lists all such
	// models. It must not block.
	LoadWanted func(model string)
	// SharedMemoryBytes is the most memory that each partition on the same host
	// may share with Conch; large tensors then cross no socket. Zero means none.
	SharedMemoryBytes int64
	// Spans may be nil: then nothing is traced.
	Spans *spans.Tracer
	// Regions may be nil: then nothing is known of clients' shared memory.
	Regions Regions
	// Wanted is called for a request before it waits for a model that does not
	// run, and again for each route table that still lacks the model. A gRPC
	// status error refuses the request: the model will not be started. It must not
	// block and must not call the Dispatcher. Nil: no request is refused.
	Wanted func(names.InactiveError) error
	// PlaceChanged is called when a place was ejected, because its executions fail, when it is on probation, and when it is healthy again. A place of
	// a merge group (PlaceHealth.Group) that is ejected is to be taken out of the table, so that the group's members serve: the requests that have
	// failed there wait for that, or for the end of the ejection. If it is Excused after that, the group may serve again. It must not block.
	// It may be nil.
	PlaceChanged func(router.PlaceHealth)
	// HangFloor is the least time after which an execution is taken for one that hangs; it also has to take hangFactor times as long as predicted, or as this where nothing is.
	// Zero means 30 seconds, a negative time that none is.
	HangFloor time.Duration
	// Hung is called with a partition on which an execution hangs, after its places were ejected and its connections closed. It is to have the server
	// started again, if it can be. It must not block. It may be nil.
	Hung func(partition string, cause error)
	// Swapped is called after a route table came into force, with how long no request could be queued meanwhile. It must not block. It may be nil.
	Swapped func(held time.Duration)
	// Brief is how long the executions of a model may take whose requests over HTTP go on to a server's HTTP port, if they run alone. Outside the
	// queue an execution has its part of the time that it and those of its model took that were at the server before. Zero means 10 milliseconds.
	Brief time.Duration
	// Forward is how partitions are connected to.
	Forward forward.Options
	// Right may be nil: nobody else has the partitions.
	Right Right
}

func (o Options) withDefaults() Options {
	if o.Clock == nil {
		o.Clock = clock.System()
	}
	if o.Observer == nil {
		o.Observer = nobody{}
	}
	if o.Wanted == nil {
		o.Wanted = func(names.InactiveError) error { return nil }
	}
	if o.Recorder == nil {
		o.Recorder = nobody{}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Observer = guarded{o.Observer, o.Logger}
	if o.MaxQueuedRequests <= 0 {
		o.MaxQueuedRequests = 100_000
	}
	if o.MaxQueuedBytes <= 0 {
		o.MaxQueuedBytes = 4 << 30
	}
	if o.PlaceChanged == nil {
		o.PlaceChanged = func(router.PlaceHealth) {}
	}
	if o.Swapped == nil {
		o.Swapped = func(time.Duration) {}
	}
	if o.Hung == nil {
		o.Hung = func(string, error) {}
	}
	if o.HangFloor == 0 {
		o.HangFloor = 30 * time.Second
	}
	if o.Brief == 0 {
		o.Brief = brief
	}
	if o.OutageWait <= 0 {
		o.OutageWait = 30 * time.Second
	}
	if o.LoadWait <= 0 {
		o.LoadWait = time.Minute
	}
	if o.MaxLoadWaiters <= 0 {
		o.MaxLoadWaiters = 1000
	}
	return o
}

// nobody observes and records nothing.
type nobody struct{}

func (nobody) Arrived(string, int, time.Time) {}
func (nobody) Asked(Asked)                    {}
func (nobody) Executed(Execution)             {}

func (nobody) Busy(string, time.Time, time.Time) {}

func (nobody) Finished(Outcome) {}
func (nobody) Walked(Walk)      {}
func (nobody) Recording() bool  { return false }
func (nobody) Record(Arrival)   {}
