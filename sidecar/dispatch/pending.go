// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"google.golang.org/grpc"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

// Options of New. The zero value is usable.
type Options struct {
	// Clock is SystemClock() unless given.
	Clock Clock
	// Observer may be nil.
	Observer Observer
	Logger   *slog.Logger

	// MaxQueuedRequests and MaxQueuedBytes bound what waits and runs, over all
	// models. Beyond them requests are refused with UNAVAILABLE. Zero means
	// 100,000 requests and 4 GiB.
	MaxQueuedRequests int
	MaxQueuedBytes    int64

	// ResponseBudget is kept back from every deadline for the way from the
	// answer to the caller. Zero means 300 microseconds.
	ResponseBudget time.Duration
	// OutageWait is how long an accepted request may wait for a model none of
	// whose partitions is up. Zero means 30 seconds.
	OutageWait time.Duration
	// Connections per partition. Zero means one, which measured best.
	Connections int
	// DialOptions are added to every connection to a partition.
	DialOptions []grpc.DialOption
}

// Clock is the time the dispatcher lives in.
type Clock interface {
	Now() time.Time
	// Alarm returns an alarm that calls fire on a goroutine of its own.
	Alarm(fire func()) Alarm
}

// Alarm calls its function at or soon after the moment it was last set to.
type Alarm interface {
	// Set replaces the moment; the zero time means never.
	Set(at time.Time)
	// Stop ends the alarm and waits for a call under way.
	Stop()
}

// SystemClock is real time with an alarm accurate to some tens of microseconds
// on Linux, and to time.Timer's resolution elsewhere.
func SystemClock() Clock { return nil }

// TimerClock is real time with time.Timer, which is about a millisecond coarse on
// Linux but follows the virtual time of testing/synctest.
func TimerClock() Clock { return nil }

// Dispatcher is the request path. Make one with New, give it a route table with
// Swap and end it with Drain and Close.
type Dispatcher struct{}

// New starts a dispatcher without models.
func New(o Options) *Dispatcher { return &Dispatcher{} }

// Swap replaces the route table. It returns at once; requests that are queued
// stay queued and run under the new table, executions under way finish where
// they are. Use AwaitDrained before unloading or stopping what the new table no
// longer names.
func (d *Dispatcher) Swap(ctx context.Context, t *RouteTable) error { return errNotWritten }

// AwaitDrained waits until nothing runs for the model on the partition any more;
// an empty model means everything on the partition. Call it after the Swap
// that took the placement away and before unloading the model or stopping the
// process. It returns ctx's error if that ends first.
func (d *Dispatcher) AwaitDrained(ctx context.Context, partition, model string) error {
	return errNotWritten
}

// Routes returns the table in force, nil before the first Swap.
func (d *Dispatcher) Routes() *RouteTable { return nil }

// SetProfile replaces what is known about l(b) of one model on one GPU type.
func (d *Dispatcher) SetProfile(p *policy.Profile) {}

// SetPartitionState tells that a partition's process is up with its models
// loaded, or is not, and why.
func (d *Dispatcher) SetPartitionState(id string, up bool, reason string) {}

// Infer answers one request. It takes over one reference to r. Errors are gRPC
// status errors with Triton's text. The caller frees the response.
func (d *Dispatcher) Infer(ctx context.Context, r *batch.Request) (*batch.Response, error) {
	return nil, errNotWritten
}

// Call passes one unary gRPC method through: to the partition named, or else to
// a partition that serves the model, or else, with both empty, to any. The
// request frame is consumed; incoming metadata is passed on.
func (d *Dispatcher) Call(ctx context.Context, partition, model, method string, request *batch.Frame) (*batch.Frame, error) {
	return nil, errNotWritten
}

// Stream passes a gRPC stream of any unknown method through to one partition,
// until both sides have ended.
func (d *Dispatcher) Stream(method string, downstream grpc.ServerStream) error { return errNotWritten }

// InferStream serves ModelStreamInfer: every request of the stream goes to a
// partition that serves its model, and answers keep Triton's order.
func (d *Dispatcher) InferStream(downstream grpc.ServerStream) error { return errNotWritten }

// Pick chooses a partition for a request that runs outside the queue: the one
// that serves the model with the fewest calls under way, or any partition when
// model is empty. Release must be called when the request has ended. Errors
// are gRPC status errors in Triton's words.
func (d *Dispatcher) Pick(model string) (e Endpoint, release func(), err error) {
	return Endpoint{}, nil, errNotWritten
}

// PartitionState is what the dispatcher knows about a partition.
type PartitionState struct {
	Partition *Partition
	Up        bool
	Draining  bool
	// Reason says why it is down.
	Reason string
	// Running counts calls under way, in and outside the queue.
	Running int
	Conn    grpc.ClientConnInterface
}

// Partitions lists the partitions of the table in force and those that drain,
// in the table's order. Conn speaks Triton's gRPC to the partition with
// generated message types: for tritonpb.NewGRPCInferenceServiceClient.
func (d *Dispatcher) Partitions() []PartitionState { return nil }

// ModelCounts are what clients asked of a model, where Triton's own statistics
// count batches. Durations are sums over requests.
type ModelCounts struct {
	// Requests answered with success, and with an error of Triton's.
	Success, Failed uint64
	// Rows and executions of the successful ones.
	Rows, Executions         uint64
	SuccessTime, FailedTime  time.Duration
	QueueTime, ExecutionTime time.Duration
	LastInference            time.Time
	// Waiting counts requests that wait for a partition now.
	Waiting int
}

// Counts returns the counters of a model since its first route table entry.
func (d *Dispatcher) Counts(model string) (ModelCounts, bool) { return ModelCounts{}, false }

// Drain refuses new requests and waits until every accepted one has been
// answered, or ctx ends.
func (d *Dispatcher) Drain(ctx context.Context) error { return errNotWritten }

// Draining reports whether Drain was called.
func (d *Dispatcher) Draining() bool { return false }

// Close ends the dispatcher's goroutines and connections. Requests that still
// wait fail with UNAVAILABLE.
func (d *Dispatcher) Close() error { return nil }

var errNotWritten = errors.New("dispatch: being written")
