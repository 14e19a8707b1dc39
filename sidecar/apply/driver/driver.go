// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/conch-serving/conch/plugins/policy"
)

// Driver starts the servers of partitions.
type Driver interface {
	// Kind is the name in conch.yaml.
	Kind() string
	// Start returns once the server of a partition answers, with no model loaded.
	// Where it cannot be started nothing is left behind.
	Start(ctx context.Context, s Spec) (Process, error)
	// Repository is the model repository that the server of a GPU has already and
	// conch may write; empty where every partition gets a directory of its own.
	Repository(gpu string) string
	// Lasting servers are run by others and go on without conch: what it staged and
	// loaded stays when conch stops, and they may have other callers.
	Lasting() bool
	// Close kills whatever still runs and is conch's own.
	Close() error
}

// Spec says what to start.
type Spec struct {
	Partition *policy.Partition
	GPU       *policy.GPU
	// RepositoryDir is the model repository of this partition alone. It exists.
	RepositoryDir string
	// Notify is told when the server dies and when it is back, from a goroutine
	// of the driver, in order, never after Stop has returned. It may be nil and
	// must not call the Process.
	Notify func(Event)
}

// Process is the server of one partition, restarts included.
type Process interface {
	// Endpoint is where the server is reached, or was before it died. It can change
	// with a restart.
	Endpoint() Endpoint
	// Load loads a model, or loads it again if its files changed. After a restart
	// the driver loads it by itself. The error is a *LoadError where the server
	// refused or hung.
	Load(ctx context.Context, model string) error
	// Adopt takes a model that others have loaded as one to serve: nothing is asked
	// of the server. Abandon is the opposite.
	Adopt(model string)
	Abandon(model string)
	// Unload returns once the requests that the model has accepted are answered.
	Unload(ctx context.Context, model string) error
	// Restart kills a server that has broken in a way that it does not notice. It is
	// reported down and up like one that died. A server that others run is not
	// touched: the error wraps ErrForeign.
	Restart(reason string) error
	// Stop ends the server: accepted requests are answered as long as ctx and the
	// driver allow, then it is killed. It always ends; its error says what was left
	// unclean.
	Stop(ctx context.Context) error
}

// Endpoint holds the addresses of a server, as host:port.
type Endpoint struct{ GRPC, HTTP, Metrics string }

// Event says that a server died or is back.
type Event struct {
	Partition string
	Up        bool
	Reason    string
	// Restarts counts those of this process since Start.
	Restarts int
	// Endpoint is where the server is reached once it is up.
	Endpoint Endpoint
	// Missing are models that would not load again after a restart.
	Missing []string
}

// Errors of drivers; test with errors.Is.
var (
	// ErrStopped: the process was stopped.
	ErrStopped = errors.New("the partition's server was stopped")
	// ErrDown: the server is dead at the moment and will be started again.
	ErrDown = errors.New("the partition's server is down")
)

// LoadError says why a model did not load.
type LoadError struct {
	Model string
	// Hung: no answer within the time allowed. Loading such a model again
	// restarts the server first, because Triton never gives up a load.
	Hung bool
	Err  error
}

// Error names the model and the reason.
func (e *LoadError) Error() string {
	if e.Hung {
		return fmt.Sprintf("model %q: the server did not finish loading it in time: %v", e.Model, e.Err)
	}
	return fmt.Sprintf("model %q: the server refused to load it: %v", e.Model, e.Err)
}

// Unwrap is the server's own error.
func (e *LoadError) Unwrap() error { return e.Err }
