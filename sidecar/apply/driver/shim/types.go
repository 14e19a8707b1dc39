// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"errors"
	"time"
)

// Spec says what a shim starts and how it keeps it.
type Spec struct {
	// Name is unique among all servers of a machine, over restarts. The
	// environment of the server holds it as NameVariable.
	Name string `json:"name"`
	// Label is what a conch that finds the shim wants to know of it. The shim only keeps it.
	Label map[string]string `json:"label"`
	// Command is the server's executable, Args its arguments without the name.
	Command string   `json:"command"`
	Args    []string `json:"args"`
	// Env is the server's whole environment but for NameVariable.
	Env []string `json:"env"`
	// Log is the file that takes the server's output. At LogBytes it is moved aside
	// as Log.1, what was Log.1 as Log.2, and so on up to LogFiles files in all.
	Log      string `json:"log"`
	LogBytes int64  `json:"log_bytes"`
	LogFiles int    `json:"log_files"`
	// SharedMemory is the prefix of the names in /dev/shm that the server's
	// processes make; what is left of them is removed. Empty: none.
	SharedMemory string `json:"shared_memory"`
	// OrphanGrace is how long the server goes on without a conch.
	OrphanGrace time.Duration `json:"orphan_grace"`
	// StopTimeout is how long the server may take to end after SIGTERM, when the
	// shim ends it by itself.
	StopTimeout time.Duration `json:"stop_timeout"`
}

// NameVariable is the environment variable that marks the processes of a server.
const NameVariable = "CONCH_SERVER"

// ErrGone says that the shim is not there any more.
var ErrGone = errors.New("the shim has ended")

// names of files in a shim's directory.
const (
	specFile   = "spec.json"
	stateFile  = "shim.json"
	socketFile = "sock"
	exitFile   = "exit.json"
)

// state is shim.json.
type state struct {
	Name         string            `json:"name"`
	Label        map[string]string `json:"label"`
	Shim         process           `json:"shim"`
	Server       process           `json:"server"`
	Boot         string            `json:"boot"`
	SharedMemory string            `json:"shared_memory"`
	Log          string            `json:"log"`
	Begin        time.Time         `json:"begin"`
}

// process is a process that no other can be mistaken for: an id and when it
// started, in clock ticks since the machine booted.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
}

// order is what conch tells a shim; report is what a shim tells conch.
type order struct {
	Do string `json:"do"`
}

// Orders: a server is asked to end, or it is killed with its whole group.
const (
	terminate = "terminate"
	kill      = "kill"
)

type report struct {
	// Ended says how the server ended. It is the shim's last message.
	Ended string `json:"ended"`
}
