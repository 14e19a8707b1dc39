// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/conch-serving/conch/sidecar/apply/mps"
)

// ProcessOptions of NewProcesses.
type ProcessOptions struct {
	// Server is the path of tritonserver, or of a script that execs it.
	Server string
	// BackendDir is --backend-directory. Empty: the directory "backends" beside
	// the server's own, where there is one, else whatever the server finds.
	BackendDir string
	// Credentials are how the servers' gRPC is reached; nil means in the clear.
	Credentials credentials.TransportCredentials
	// Arguments are added at the end of the server's command line, where they win.
	Arguments []string
	// Base is the environment that servers inherit; nil means this process's own.
	// Environment is added to it.
	Base        []string
	Environment map[string]string
	// Dir holds the servers' logs and the state that emulated GPUs share. One
	// driver at a time works in it.
	Dir string
	// AllowClientSharedMemory passes --allow-client-shm=true, which servers since
	// 2.69 want for shared-memory requests and older ones do not know.
	AllowClientSharedMemory bool
	// Stretch multiplies emulated times; 0 means 1.
	Stretch float64
	// MPS is the daemon of this machine, see mps.Detect.
	MPS mps.Daemon
	// StartTimeout bounds a start (0 means 30s), LoadTimeout one load (5m),
	// DrainTimeout the requests that a server that stops has accepted (30s), and
	// StopTimeout what it may take to end after them (10s).
	StartTimeout, LoadTimeout, DrainTimeout, StopTimeout time.Duration
	Backoff                                              Backoff
	// Health finds servers that hang; they are killed and started again.
	Health Health
	Logger *slog.Logger
}

// Processes runs one tritonserver for every partition. Each is a process group
// of its own, dies with this process, and leaves no shared memory behind.
type Processes struct {
	o     ProcessOptions
	owner string // marks our servers and their shared memory
	spawn *spawner

	fleet fleet
	lives atomic.Uint64
}

// NewProcesses makes the driver "process". It ends servers and removes shared
// memory that an earlier driver with the same Dir left behind.
func NewProcesses(o ProcessOptions) (*Processes, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Credentials == nil {
		o.Credentials = insecure.NewCredentials()
	}
	if o.Base == nil {
		o.Base = os.Environ()
	}
	for _, t := range []struct {
		timeout *time.Duration
		value   time.Duration
	}{{&o.StartTimeout, 30 * time.Second}, {&o.LoadTimeout, 5 * time.Minute}, {&o.DrainTimeout, 30 * time.Second}, {&o.StopTimeout, 10 * time.Second}} {
		if *t.timeout <= 0 {
			*t.timeout = t.value
		}
	}
	var err error
	if o.Server, err = executable(o.Server); err != nil {
		return nil, err
	}
	if o.BackendDir == "" {
		o.BackendDir = siblingBackends(o.Server)
	}
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, fmt.Errorf("process driver: %w", err)
	}
	for _, sub := range []string{"logs", "emulation"} {
		if err := os.MkdirAll(filepath.Join(o.Dir, sub), 0o755); err != nil {
			return nil, fmt.Errorf("process driver: %w", err)
		}
	}
	sum := sha256.Sum256([]byte(o.Dir))
	d := &Processes{o: o, owner: "conch-" + hex.EncodeToString(sum[:5])}
	if n, err := killOwned(d.owner); err != nil {
		return nil, fmt.Errorf("process driver: end the servers of an earlier conch: %w", err)
	} else if n > 0 {
		o.Logger.Warn("ended servers that an earlier conch left behind", "count", n)
	}
	if err := removeSharedMemory(d.owner + "-"); err != nil {
		return nil, fmt.Errorf("process driver: shared memory of an earlier conch: %w", err)
	}
	d.spawn = newSpawner()
	return d, nil
}

// executable checks the server's path.
func executable(path string) (string, error) {
	if path == "" {
		return "", errors.New("process driver: no tritonserver is configured; set driver.tritonserver to its path, or use driver kind embedded")
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("process driver: tritonserver: %w", err)
	}
	if info.IsDir() || info.Mode()&0o111 == 0 {
		return "", fmt.Errorf("process driver: %s is not an executable file", path)
	}
	return filepath.Abs(path)
}

// siblingBackends is ../backends of the server's real place, if it exists.
func siblingBackends(server string) string {
	place, err := filepath.EvalSymlinks(server)
	if err != nil {
		return ""
	}
	dir := filepath.Join(filepath.Dir(filepath.Dir(place)), "backends")
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return ""
	}
	return dir
}

// Kind is "process".
func (d *Processes) Kind() string { return "process" }

// Repository is empty: every partition gets a directory of its own.
func (d *Processes) Repository(string) string { return "" }

// Lasting is false: the servers end with conch.
func (d *Processes) Lasting() bool { return false }

// Start starts a tritonserver on free ports of the loopback interface.
func (d *Processes) Start(ctx context.Context, spec Spec) (Process, error) {
	if d.fleet.over() {
		return nil, ErrStopped // before there is a log
	}
	log, err := openLog(filepath.Join(d.o.Dir, "logs", fileName(spec.Partition.GetId())+".log"))
	if err != nil {
		return nil, fmt.Errorf("partition %s: %w", spec.Partition.GetId(), err)
	}
	l := &life{driver: d, spec: spec, log: log}
	p, err := d.fleet.start(ctx, spec, l.begin, d.o.Backoff, limits{load: d.o.LoadTimeout, drain: d.o.DrainTimeout, health: d.o.Health}, d.o.Logger, func() {
		if err := log.Close(); err != nil {
			d.o.Logger.Warn("close a server's log", "error", err)
		}
	})
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	return p, nil
}

// Close kills what still runs.
func (d *Processes) Close() error {
	if !d.fleet.close() {
		return nil
	}
	d.spawn.close()
	return removeSharedMemory(d.owner + "-")
}

// arguments is the command line of a server. What the operator adds comes last
// and wins.
func (d *Processes) arguments(spec Spec, at ports, sharedMemory string) []string {
	args := []string{
		"--model-repository=" + spec.RepositoryDir,
		"--model-control-mode=explicit",
		// Completing would load a model twice and add dynamic batching.
		"--disable-auto-complete-config",
		// Otherwise one model that fails to load makes the server unready for good.
		"--strict-readiness=false",
		"--http-address=127.0.0.1", "--http-port=" + strconv.Itoa(at.http),
		"--grpc-address=127.0.0.1", "--grpc-port=" + strconv.Itoa(at.grpc),
		"--metrics-address=127.0.0.1", "--metrics-port=" + strconv.Itoa(at.metrics),
		// What a crash leaves in /dev/shm can be found by this name.
		"--backend-config=python,shm-region-prefix-name=" + sharedMemory,
		// gRPC's own five minutes end an idle connection that pings to stay alive.
		"--grpc-http2-min-recv-ping-interval-without-data=5000",
		"--exit-timeout-secs=" + strconv.Itoa(int(max(d.o.StopTimeout, time.Second)/time.Second)),
	}
	if d.o.BackendDir != "" {
		args = append(args, "--backend-directory="+d.o.BackendDir)
	}
	if d.o.AllowClientSharedMemory {
		args = append(args, "--allow-client-shm=true")
	}
	return append(args, d.o.Arguments...)
}

// environment is a server's environment: what it inherits without what only we
// may say, where it is, its share, and what the operator adds.
func (d *Processes) environment(spec Spec) []string {
	share := mps.Of(spec.Partition, spec.GPU, d.o.MPS)
	ours := append(share.Environment,
		"CONCH_OWNER="+d.owner,
		"CONCH_PARTITION="+spec.Partition.GetId(),
		"CONCH_GPU="+spec.GPU.GetId(),
		"CONCH_SHARE="+strconv.FormatUint(uint64(spec.Partition.GetThreadPercentage()), 10),
		"CONCH_EMULATION_DIR="+filepath.Join(d.o.Dir, "emulation"),
	)
	if d.o.Stretch > 0 {
		ours = append(ours, "CONCH_EMULATION_STRETCH="+strconv.FormatFloat(d.o.Stretch, 'g', -1, 64))
	}
	var env []string
	for _, e := range d.o.Base {
		name, _, _ := strings.Cut(e, "=")
		if strings.HasPrefix(name, "CONCH_") || strings.HasPrefix(name, "CUDA_MPS_ACTIVE") || strings.HasPrefix(name, "CUDA_MPS_PINNED") {
			continue
		}
		env = append(env, e)
	}
	env = append(env, ours...)
	for name, value := range d.o.Environment {
		env = append(env, name+"="+value)
	}
	return env
}

// fileName makes a partition's id safe as part of a file's name.
func fileName(id string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '.':
			return r
		}
		return '_'
	}, id)
}
