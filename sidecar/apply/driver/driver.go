// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
)

// Driver starts and finds the servers of partitions.
type Driver interface {
	// Hash is a digest of everything that the server of a partition is started with:
	// where it differs, another process is needed.
	Hash(p *policy.Partition, g *policy.GPU) string
	// Find returns the servers of an earlier conch that still run, and removes what
	// is left of those that do not. It is called once, before Start.
	Find(ctx context.Context) ([]Server, error)
	// Start returns once the server of a partition answers, with no model loaded.
	// Where it cannot be started nothing is left behind.
	Start(ctx context.Context, s Spec) (Server, error)
	// Repository is the model repository that the server of a GPU has already and
	// conch may write; empty where every partition gets a directory of its own.
	Repository(gpu string) string
	// Lasting servers are run by others and go on without conch: what it staged and
	// loaded stays when conch stops, and they may have other callers.
	Lasting() bool
	// Close releases what the driver holds. Servers of conch's own were stopped or
	// left before.
	Close() error
}

// Particular is a Driver that cannot have every partition that a plan may ask for.
type Particular interface {
	// Refused says why a partition cannot be on a GPU; nil where it can.
	Refused(p *policy.Partition, g *policy.GPU) error
	// Whole reports that a server on such a GPU takes a whole one of its node, whichever that is: another one finds no place until a GPU of the node is free.
	Whole(g *policy.GPU) bool
	// Claim is how a GPU is claimed for its servers, as Spec has it; empty where it is not.
	Claim(g *policy.GPU) string
}

// Spec says what to start.
type Spec struct {
	// Partition without its instances, which come and go.
	Partition *policy.Partition
	// GPU is nil for a partition without one.
	GPU *policy.GPU
	// Hash is Driver.Hash of the two.
	Hash string
	// Claim is how the GPU is claimed for the server; empty: it is not. Two servers of a GPU whose claims differ cannot be there at once.
	Claim string
	// RepositoryDir is the model repository of this partition alone. It exists.
	RepositoryDir string
	// Untimed is a server of which only what comes out counts: emulated models on it take no time.
	Untimed bool
}

// Server is one process, from its start to its end. Its methods may be called at
// the same time.
type Server interface {
	// Spec is what it was started with, by this conch or an earlier one.
	Spec() Spec
	// Endpoint is where the server is reached.
	Endpoint() Endpoint
	// Begin is when it started; zero where that is not known.
	Begin() time.Time
	// Log is the file that holds its output; empty where it has none.
	Log() string
	// Done is closed when the server is dead and nothing is left of it, and after
	// Leave; Death says why then.
	Done() <-chan struct{}
	Death() string
	// Live returns an error where the server does not answer before ctx ends.
	Live(ctx context.Context) error
	// Models are the names of those that it has ready.
	Models(ctx context.Context) ([]string, error)
	// Parameter is a parameter of the configuration of a model that it has ready;
	// empty where it has none of that name.
	Parameter(ctx context.Context, model, name string) (string, error)
	// Load loads a model, or loads it again if its files changed. The error is a
	// *LoadError. A load that ctx cuts off may go on in the server.
	Load(ctx context.Context, model string) error
	// Unload returns once the requests that the model has accepted are answered.
	Unload(ctx context.Context, model string) error
	// Stop ends the server: accepted requests are answered as long as ctx and the
	// driver allow, then it is killed. It always ends; its error says what was left
	// unclean. An attached server keeps running.
	Stop(ctx context.Context) error
	// Kill ends it at once. An attached server is not touched: ErrForeign.
	Kill(ctx context.Context) error
	// Leave disconnects from the server, which keeps running for another conch to
	// find, if its driver can do that; else it ends.
	Leave() error
}

// Endpoint holds the addresses of a server: host:port or unix:PATH.
type Endpoint struct{ GRPC, HTTP, Metrics string }

// Event says that a partition's server died or is back.
type Event struct {
	Partition string
	Up        bool
	Reason    string
	// Restarts counts those of this partition's servers.
	Restarts int
	Endpoint Endpoint
	// Missing are models that it does not have yet.
	Missing []string
}

// Errors of drivers; test with errors.Is.
var (
	// ErrDown: the server is dead at the moment.
	ErrDown = errors.New("the partition's server is down")
	// ErrForeign: the server is not conch's to start or stop.
	ErrForeign = errors.New("the server is run by others")
)

// LoadError says why a model did not load.
type LoadError struct {
	Model string
	// Hung: no answer within the time allowed. Triton never gives up a load.
	Hung bool
	// Died: the server died in it, or where it is Hung, too, the model's own process:
	// the server has to be started again.
	Died bool
	Err  error
}

// Error names the model and the reason, without the ";" and the end of the line that Triton's ends with.
func (e *LoadError) Error() string {
	switch {
	case e.Hung && e.Died:
		return fmt.Sprintf("model %q: %v", e.Model, e.Err)
	case e.Hung:
		return fmt.Sprintf("model %q: the server did not finish loading it in time: %v", e.Model, e.Err)
	case e.Died:
		return fmt.Sprintf("model %q: the server died while it loaded it: %v", e.Model, e.Err)
	}
	return fmt.Sprintf("model %q: the server refused to load it: %s", e.Model, strings.TrimRight(fmt.Sprint(e.Err), "; \n"))
}

// Unwrap is the server's own error.
func (e *LoadError) Unwrap() error { return e.Err }
