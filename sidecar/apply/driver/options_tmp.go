package driver

import (
	"errors"
	"log/slog"
	"time"

	"github.com/conch-serving/conch/sidecar/apply/mps"
)

// EmbeddedOptions of NewEmbedded.
type EmbeddedOptions struct {
	// Stretch multiplies emulated times; 0 means 1.
	Stretch float64
	// Logger is discarded unless given.
	Logger *slog.Logger
	// Backoff between restarts.
	Backoff Backoff
}

// Backoff is the delay before the n-th restart: Min, 2 Min, 4 Min, ... Max.
type Backoff struct {
	Min, Max time.Duration
	// Stable is how long a server must be up for the delay to start over.
	Stable time.Duration
}

// ProcessOptions of NewProcesses.
type ProcessOptions struct {
	// Server is the path of tritonserver or of a script that execs it.
	Server string
	// BackendDir is --backend-directory; empty: the server's sibling "backends", if any.
	BackendDir string
	// Arguments are appended to the server's command line.
	Arguments []string
	// Environment is added to conch's own.
	Environment map[string]string
	// Dir holds logs and the state of emulated GPUs. One driver at a time.
	Dir string
	// AllowClientSharedMemory passes --allow-client-shm=true.
	AllowClientSharedMemory bool
	// Stretch multiplies emulated times (CONCH_EMULATION_STRETCH); 0 means 1.
	Stretch float64
	// MPS is the daemon of this machine, see mps.Detect.
	MPS mps.Daemon
	// StartTimeout, LoadTimeout and StopTimeout bound one start (30s), one load (5m), and the end of a server after SIGTERM (10s).
	StartTimeout, LoadTimeout, StopTimeout time.Duration
	Backoff                                Backoff
	Logger                                 *slog.Logger
}

var errUnfinished = errors.New("being written")

// NewEmbedded makes the driver "embedded".
func NewEmbedded(o EmbeddedOptions) Driver { return nil }

// NewProcesses makes the driver "process". It ends servers that an earlier conch with the same Dir left behind.
func NewProcesses(o ProcessOptions) (Driver, error) { return nil, errUnfinished }
