// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/conch-serving/conch/internal/zoo"
)

// ConchOptions say how to start conch.
type ConchOptions struct {
	// Bin is the directory with the programs conch and conch-policies.
	Bin string
	// Server is the path of tritonserver (driver process), or empty for the embedded driver.
	Server string
	// Models are the emulated models to serve, each on every one of GPUs emulated GPUs. With Repository set, that directory is served
	// instead.
	Models     Models
	Repository string
	// Dynamic is the dynamic_batching of the models' files, whose queue policy Conch keeps; nil: none.
	Dynamic *zoo.DynamicBatching
	// Executions is driver.executions; 0 is conch's default.
	Executions int
	// Await are the names that have to be ready before conch counts as started; empty: every model.
	Await   []string
	GPUs    int
	GPUType string
	// Attach are servers that others run, in front of which conch stands (driver attach). Without a Repository it only passes on what
	// they serve; with one it serves that, through their own repositories.
	Attach []*Server
	// Mode is conch's mode; empty means conch's default.
	Mode string
	// Late is what becomes of a request that can no longer make its deadline, "serve" or "drop"; empty means conch's default.
	Late string
	// Settings are further keys of conch.yaml; they win.
	Settings map[string]any
	// State is the directory of conch's state; empty: one that goes with the test.
	State string
	// Listen are further keys of listen.
	Listen map[string]any
	// Ports of the gRPC, HTTP and metrics doors; 0 takes a free one.
	Ports [3]int
}

// orphanGrace is how long servers wait for the next conch: long enough for any Restart, and short enough that a test that dies leaves
// nothing for long.
const orphanGrace = 30 * time.Second

// Conch is a running conch.
type Conch struct {
	// GRPC, HTTP and Metrics are its addresses, host:port; Admin is the address for tritonctl.
	GRPC, HTTP, Metrics, Admin string
	// Config is the path of its conch.yaml, State the directory of its state.
	Config, State string

	models Models
	names  []string // of all models that are to be served
	gpus   int
	dir    string
	bin    string
	child  *child
	ports  *ports
	also   string // a directory that goes with it; empty: none
}

// StartConch starts conch and returns once it is ready and serves the models. Close it.
func StartConch(ctx context.Context, o ConchOptions) (*Conch, error) {
	dir, err := os.MkdirTemp("", "conch-rig-")
	if err != nil {
		return nil, fmt.Errorf("rig: %w", err)
	}
	c := &Conch{models: o.Models, names: o.Models.Names(), gpus: o.GPUs, dir: dir, bin: o.Bin, State: o.State, Config: filepath.Join(dir, "conch.yaml")}
	if c.State == "" {
		c.State = filepath.Join(dir, "state")
	}
	if err := c.start(ctx, o); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Conch) start(ctx context.Context, o ConchOptions) error {
	switch {
	case o.Repository == "" && len(o.Attach) > 0:
	case o.Repository == "":
		o.Repository = filepath.Join(c.dir, "models")
		if err := o.Models.write(o.Repository, nil, batching{dynamic: o.Dynamic}); err != nil {
			return err
		}
	default:
		entries, err := os.ReadDir(o.Repository)
		if err != nil {
			return fmt.Errorf("rig: %w", err)
		}
		for _, e := range entries {
			c.names = append(c.names, e.Name())
		}
	}
	if len(o.Await) > 0 {
		c.names = o.Await
	}
	if err := c.configure(o); err != nil {
		return err
	}
	return c.Restart(ctx)
}

// Restart starts conch again on its configuration and state, after it has ended, and returns once it is ready.
func (c *Conch) Restart(ctx context.Context) error {
	if err := c.Launch(); err != nil {
		return err
	}
	return c.child.await(ctx, func(ctx context.Context) error {
		if err := c.ready(ctx); err != nil {
			return err
		}
		return modelsReady(ctx, c.GRPC, c.names)
	})
}

// Launch is Restart that returns at once.
func (c *Conch) Launch() error {
	child, err := start("conch", filepath.Join(c.dir, "conch.log"), filepath.Join(c.bin, "conch"), []string{"--config", c.Config}, nil)
	if err != nil {
		return err
	}
	c.child = child
	return nil
}

// configure chooses ports and writes conch.yaml.
func (c *Conch) configure(o ConchOptions) error {
	free, err := freePorts(3)
	if err != nil {
		return err
	}
	c.ports = free
	var addresses [3]string
	for i, port := range o.Ports {
		if port == 0 {
			port = free.numbers[i]
		}
		addresses[i] = "127.0.0.1:" + strconv.Itoa(port)
	}
	c.GRPC, c.HTTP, c.Metrics = addresses[0], addresses[1], addresses[2]
	c.Admin = "unix://" + filepath.Join(c.dir, "admin.sock")
	driver := map[string]any{"kind": "embedded"}
	if o.Server != "" {
		driver = map[string]any{"kind": "process", "tritonserver": o.Server, "orphanGrace": orphanGrace.String()}
	}
	if o.Executions > 0 {
		driver["executions"] = o.Executions
	}
	if len(o.Attach) > 0 {
		var endpoints []map[string]any
		for _, s := range o.Attach {
			endpoint := map[string]any{"grpc": s.GRPC, "http": s.HTTP, "metrics": s.Metrics}
			if o.Repository != "" {
				endpoint["repository"] = s.repository
			}
			endpoints = append(endpoints, endpoint)
		}
		driver = map[string]any{"kind": "attach", "endpoints": endpoints}
	}
	gpuType := o.GPUType
	if gpuType == "" {
		gpuType = zoo.A100
	}
	settings := map[string]any{
		"apiVersion": "conch/v1",
		"listen":     map[string]any{"grpc": c.GRPC, "http": c.HTTP, "metrics": c.Metrics, "admin": c.Admin},
		"repository": o.Repository,
		"state":      c.State,
		"driver":     driver,
		"gpus":       []map[string]any{{"type": gpuType, "count": o.GPUs, "emulated": true}},
	}
	if len(o.Attach) > 0 {
		delete(settings, "gpus") // one for each endpoint
		if o.Repository == "" {
			delete(settings, "repository")
		}
	}
	if o.Mode != "" {
		settings["mode"] = o.Mode
	}
	if o.Late != "" {
		settings["defaults"] = map[string]any{"late": o.Late}
	}
	for key, value := range o.Listen {
		settings["listen"].(map[string]any)[key] = value
	}
	for key, value := range o.Settings {
		settings[key] = value
	}
	data, err := yaml.Marshal(settings)
	if err != nil {
		return fmt.Errorf("rig: conch.yaml: %w", err)
	}
	if err := os.WriteFile(c.Config, data, 0o600); err != nil {
		return fmt.Errorf("rig: %w", err)
	}
	return nil
}

// ready is nil once /readyz says so.
func (c *Conch) ready(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+c.Metrics+"/readyz", nil)
	if err != nil {
		return fmt.Errorf("rig: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("rig: conch: %w", err)
	}
	defer response.Body.Close()
	reasons, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("rig: conch: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("rig: conch is not ready: %s", reasons)
	}
	return nil
}

// settleWithin is how long servers of all GPUs may take to load their models.
const settleWithin = 3 * time.Minute

// Settle returns once what is observed of servers and models is what the plan asks for: conch serves as soon as every model is on one GPU.
func (c *Conch) Settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settleWithin)
	defer cancel()
	for {
		differs, err := gauge(ctx, c.Metrics, "conch_observed_differs")
		if err != nil {
			return fmt.Errorf("rig: conch: %w", err)
		}
		if differs == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("rig: what conch observes is not what its plan asks for, after %v (%w)\n%s", settleWithin, ctx.Err(), c.LogTail())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// Usage reads the counters of conch's partitions.
func (c *Conch) Usage(ctx context.Context) (Usage, error) { return readUsage(ctx, c.Metrics) }

// BusyShare is the part of the time that the GPUs executed something, on average.
func (c *Conch) BusyShare(u Usage, over time.Duration) float64 {
	return c.models.busy(u).Seconds() / over.Seconds() / float64(c.gpus)
}

// Endpoints is the one address that clients call, host:port.
func (c *Conch) Endpoints() []string { return []string{c.GRPC} }

// Serving is nil: every model is served at the one address.
func (c *Conch) Serving() [][]int { return nil }

// Died says that the process has ended.
func (c *Conch) Died() bool {
	select {
	case <-c.child.done:
		return true
	default:
		return false
	}
}

// Affine is false.
func (c *Conch) Affine() bool { return false }

// Pid is the process id of conch.
func (c *Conch) Pid() int { return c.child.cmd.Process.Pid }

// Exited is closed once the process has ended.
func (c *Conch) Exited() <-chan struct{} { return c.child.done }

// ExitError says how the process ended: nil for status 0. Wait for Exited first.
func (c *Conch) ExitError() error { return c.child.err }

// Log is the path of its output.
func (c *Conch) Log() string { return filepath.Join(c.dir, "conch.log") }

// LogTail is the end of its output.
func (c *Conch) LogTail() string { return c.child.tail() }

// Close ends conch, drained, and removes its files.
func (c *Conch) Close() error {
	var err error
	if c.child != nil {
		err = c.child.stop(40 * time.Second)
	}
	if c.ports != nil {
		c.ports.release()
	}
	if c.also != "" {
		err = errors.Join(err, os.RemoveAll(c.also))
	}
	return errors.Join(err, os.RemoveAll(c.dir))
}
