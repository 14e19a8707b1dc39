// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"

	"github.com/conch-serving/conch/internal/clock"
)

// Control is Triton's --model-control-mode: who decides which models are loaded.
type Control int

const (
	// ControlExplicit loads what Options.Load names and then what the repository API is asked to load.
	ControlExplicit Control = iota
	// ControlNone loads every model of the repository at start and refuses the repository API's load and unload.
	ControlNone
)

// Partition is the share of a GPU that one minitriton serves.
type Partition struct {
	// ID names the partition. Empty means the GPU's own name.
	ID string
	// GPU is shared by all partitions of one emulated GPU, which slow each other while they run. Nil means a GPU of its own.
	GPU *GPU
	// Share is the thread percentage, 1 to 100. 0 means 100.
	Share int
}

// Options configure a Server. The zero value of every field except Repository is usable.
type Options struct {
	// Repository is the model repository directory, in Triton's layout. It is only read.
	Repository string
	// Control is the model control mode; Load names the models loaded at start in explicit mode.
	Control Control
	Load    []string
	// Partition says where the server is.
	Partition Partition
	// Stretch multiplies all emulated times; 0 means 1.
	Stretch float64
	// Clock is clock.System() unless given.
	Clock clock.Clock
	// Rand draws the jitter of emulated times; a fixed seed unless given.
	Rand rand.Source
	// Logger receives loads, unloads and faults; discarded unless given.
	Logger *slog.Logger
}

// Listeners are the sockets of a Server. A nil one is not served.
type Listeners struct {
	GRPC, HTTP, Metrics net.Listener
}

// Endpoint is where a running Server is reached, as host:port. A part that is not served is empty.
type Endpoint struct {
	GRPC, HTTP, Metrics string
}

// Loopback opens a set of listeners on free ports of 127.0.0.1.
func Loopback() (Listeners, error) {
	return Listen("127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0")
}

// Listen opens listeners on the given addresses, host:port or unix:PATH; an empty address gives no listener. On error none stays open.
func Listen(grpc, http, metrics string) (Listeners, error) {
	var l Listeners
	for _, p := range []struct {
		name, addr string
		into       *net.Listener
	}{{"gRPC", grpc, &l.GRPC}, {"HTTP", http, &l.HTTP}, {"metrics", metrics, &l.Metrics}} {
		if p.addr == "" {
			continue
		}
		network, addr := "tcp", p.addr
		if path, ok := strings.CutPrefix(addr, "unix:"); ok {
			network, addr = "unix", path
		}
		ln, err := (&net.ListenConfig{}).Listen(context.Background(), network, addr)
		if err != nil {
			l.Close()
			return Listeners{}, fmt.Errorf("listen for %s on %q: %w", p.name, p.addr, err)
		}
		*p.into = ln
	}
	return l, nil
}

// Close closes every listener of the set.
func (l Listeners) Close() {
	for _, ln := range []net.Listener{l.GRPC, l.HTTP, l.Metrics} {
		if ln != nil {
			_ = ln.Close() // the only error is "already closed", which is what was asked for
		}
	}
}

func (l Listeners) endpoint() Endpoint {
	addr := func(ln net.Listener) string {
		if ln == nil {
			return ""
		}
		return ln.Addr().String()
	}
	return Endpoint{GRPC: addr(l.GRPC), HTTP: addr(l.HTTP), Metrics: addr(l.Metrics)}
}
