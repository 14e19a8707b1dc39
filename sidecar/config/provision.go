// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"path/filepath"
	"time"
)

// Environment is what defaults depend on outside the file.
type Environment struct {
	// UID of the process; 0 is root, which gets the system's directories.
	UID int
	// Getenv looks up HOME, XDG_STATE_HOME and XDG_RUNTIME_DIR.
	Getenv func(string) string
	// CheckDiscipline says why the request path would refuse a discipline, its
	// parameters or a drop policy, each of them empty where nothing was set. Nil
	// leaves them unchecked.
	CheckDiscipline func(discipline string, parameters map[string]string, dropPolicy string) error
	// CheckPolicy says why there is no policy of this name among those that came with
	// conch. Nil leaves the name unchecked.
	CheckPolicy func(name string) error
}

// hotSections change on SIGHUP; everything else needs a restart.
var hotSections = map[string]bool{
	"models": true, "defaults": true, "policy": true, "interval": true, "triggers": true, "mode": true, "seed": true,
	"apps": true, "interference": true, "offers": true, "changes": true, "merge": true,
}

// EmulatedGPU is the type of the GPUs of the embedded driver under gpus: auto.
const EmulatedGPU = "A100-80GB"

// Provision fills in every default that was not set.
func (c *Config) Provision(env Environment) {
	fill(&c.APIVersion, APIVersion)
	c.provisionAttach()
	fill(&c.Mode, ModeControl)
	fill(&c.Listen.GRPC, ":8001")
	fill(&c.Listen.HTTP, ":8000")
	fill(&c.Listen.Metrics, ":8002")
	fill(&c.Listen.Admin, "unix://"+filepath.Join(runtimeDirectory(env), "admin.sock"))
	fill(&c.Listen.UI.Address, Off)
	if c.Listen.TLS.ClientCA != "" {
		fill(&c.Listen.TLS.ClientCertificates, ClientCertificatesRequired)
	}
	if c.Listen.TLS.Enabled() {
		fill(&c.Listen.TLS.MinVersion, "1.2")
	}
	if c.Driver.TLS.Enabled() {
		fill(&c.Driver.TLS.MinVersion, "1.2")
	}
	fill(&c.State, stateDirectory(env))
	fill(&c.Driver.Kind, DriverProcess)
	if c.Driver.Kind == DriverProcess {
		fill(&c.Driver.TritonServer, "tritonserver")
	}
	for i := range c.Merge.List {
		fill(&c.Merge.List[i].Mode, MergeBackbone)
	}
	c.provisionKubernetes()
	fill(&c.Driver.Stretch, 1)
	fill(&c.Driver.Executions, 1)
	fill(&c.Driver.StartTimeout, Duration(30*time.Second))
	fill(&c.Driver.LoadTimeout, Duration(5*time.Minute))
	fill(&c.Driver.OrphanGrace, Duration(5*time.Minute))
	fill(&c.Driver.Probe.Period, Duration(time.Second))
	fill(&c.Driver.Probe.Deadline, Duration(5*time.Second))
	c.provisionGPUs()
	fill(&c.Objective, "max-goodput")
	fill(&c.Wire, WireOwn)
	fill(&c.Policy.Name, "static")
	fill(&c.Policy.Deadline, Duration(time.Second))
	if c.Policy.Evaluations == nil {
		c.Policy.Evaluations = new(uint32(256))
	}
	fill(&c.Policy.Traffic, Duration(10*time.Second))
	if c.CPUs.Cores > 0 {
		fill(&c.CPUs.Type, "cpu")
	}
	fill(&c.Defaults.SLO, Duration(100*time.Millisecond))
	fill(&c.Defaults.Late, "serve")
	fill(&c.Defaults.Load, LoadKeep)
	fill(&c.ModelControl.Clients, ClientsOff)
	fill(&c.Demand.Wait, Duration(time.Minute))
	fill(&c.Demand.Requests, 1000)
	fill(&c.Interval, Duration(30*time.Second))
	fill(&c.Triggers.RateUp, 0.05)
	fill(&c.Triggers.RateUpBy, 10)
	fill(&c.Triggers.RateDown, 0.10)
	fill(&c.Triggers.BadRate, 0.01)
	fill(&c.Triggers.Hold, Duration(3*time.Second))
	fill(&c.Triggers.Cooldown, Duration(10*time.Second))
	fill(&c.Changes.Loss, 0.1)
	fill(&c.Changes.Horizon, Duration(5*time.Minute))
	fill(&c.Changes.Payoff, 1.2)
	fill(&c.Limits.QueueRequests, 100_000)
	fill(&c.Limits.QueueBytes, 4<<30)
	if c.Limits.SharedMemory == nil {
		c.Limits.SharedMemory = new(Size(256 << 20))
	}
	fill(&c.Limits.MessageBytes, 256<<20)
	fill(&c.Limits.Connections, 16_384)
	fill(&c.Limits.Stall, Duration(20*time.Second))
	fill(&c.Limits.Drain, Duration(30*time.Second))
	if c.Limits.Hang == nil {
		c.Limits.Hang = new(Duration(30 * time.Second))
	}
	c.provisionTracing()
	fill(&c.Log.Level, "info")
	fill(&c.Log.Format, "auto")
}

func (c *Config) provisionGPUs() {
	if !c.GPUs.Auto && c.GPUs.List == nil {
		c.GPUs.Auto = true
	}
	if c.GPUs.Auto && c.Driver.Kind == DriverEmbedded {
		c.GPUs = GPUs{List: []GPU{{Type: EmulatedGPU, Count: 4, Emulated: true}}}
	}
	for i := range c.GPUs.List {
		g := &c.GPUs.List[i]
		fill(&g.Count, 1)
		// The embedded driver has no others.
		g.Emulated = g.Emulated || c.Driver.Kind == DriverEmbedded
		if sheet, ok := dataSheet(g.Type); ok {
			fill(&g.Memory, sheet.Memory)
			fill(&g.SMCount, sheet.SMCount)
			fill(&g.Bandwidth, sheet.Bandwidth)
		} else if g.Emulated {
			fill(&g.Memory, 16<<30)
		}
	}
}

// dataSheet is what NVIDIA's data sheets say of a type that an emulated GPU may
// borrow: memory, streaming multiprocessors and memory bandwidth a second.
func dataSheet(kind string) (GPU, bool) {
	sheet, ok := map[string]GPU{
		"A100-80GB": {Memory: 80 << 30, SMCount: 108, Bandwidth: 2039e9},
		"A100-40GB": {Memory: 40 << 30, SMCount: 108, Bandwidth: 1555e9},
		"A100":      {Memory: 40 << 30, SMCount: 108, Bandwidth: 1555e9},
		"H100-80GB": {Memory: 80 << 30, SMCount: 132, Bandwidth: 3350e9},
		"H200":      {Memory: 141 << 30, SMCount: 132, Bandwidth: 4800e9},
		"V100-16GB": {Memory: 16 << 30, SMCount: 80, Bandwidth: 900e9},
		"T4":        {Memory: 16 << 30, SMCount: 40, Bandwidth: 320e9},
		"1080Ti":    {Memory: 11 << 30, SMCount: 28, Bandwidth: 484e9},
		"2080Ti":    {Memory: 11 << 30, SMCount: 68, Bandwidth: 616e9},
	}[kind]
	return sheet, ok
}

func fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func stateDirectory(env Environment) string {
	if env.UID == 0 {
		return "/var/lib/conch"
	}
	if dir := env.get("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "conch")
	}
	return filepath.Join(env.get("HOME"), ".local", "state", "conch")
}

func runtimeDirectory(env Environment) string {
	if env.UID == 0 {
		return "/run/conch"
	}
	if dir := env.get("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "conch")
	}
	return stateDirectory(env)
}

func (e Environment) get(name string) string {
	if e.Getenv == nil {
		return ""
	}
	return e.Getenv(name)
}
