// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"encoding/hex"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/conch-serving/conch/plugins/policy"
)

// Validate checks a provisioned configuration. It returns an *InvalidError with
// every problem, or nil.
func (c *Config) Validate(env Environment) error {
	v := &validator{lines: c.lines, env: env}
	v.oneOf("apiVersion", c.APIVersion, APIVersion)
	v.oneOf("mode", string(c.Mode), string(ModeObserve), string(ModeAdvise), string(ModeControl))
	v.listen(c.Listen)
	v.serverTLS(c.Listen.TLS)
	v.admin(c.Listen)
	v.ui(c.Listen.UI)
	v.driverTLS(c.Driver)
	if c.Repository == "" && c.Driver.Kind != DriverAttach {
		v.problem("repository", "is missing; name the directory of the model repository (or use --repository)")
	}
	v.driver(c)
	v.gpus(c.GPUs)
	v.oneOf("objective", c.Objective, "max-goodput", "min-cost")
	v.oneOf("wire", string(c.Wire), string(WireOwn), string(WireGRPC))
	v.policy(c.Policy)
	v.positive("defaults.slo", c.Defaults.SLO)
	v.dispatch("defaults", c.Defaults.Late, c.Defaults.Discipline, c.Defaults.Parameters, c.Defaults.DropPolicy)
	v.demand(c)
	v.oneOf("modelControl.clients", c.ModelControl.Clients, ClientsOff, ClientsOn, ClientsFiles)
	names := make([]string, 0, len(c.Models))
	for name := range c.Models {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		v.model("models."+name, c.Models[name], c.GPUs)
	}
	v.world(c)
	v.positive("interval", c.Interval)
	v.fraction("triggers.rateUp", c.Triggers.RateUp, 100)
	v.fraction("triggers.rateDown", c.Triggers.RateDown, 1)
	v.fraction("triggers.badRate", c.Triggers.BadRate, 1)
	if c.Triggers.RateUpBy < 0 {
		v.problem("triggers.rateUpBy", "is negative")
	}
	v.fraction("changes.loss", c.Changes.Loss, 1)
	v.positive("changes.horizon", c.Changes.Horizon)
	if c.Changes.Payoff < 0 {
		v.problem("changes.payoff", "is negative")
	}
	v.positive("triggers.hold", c.Triggers.Hold)
	v.positive("triggers.cooldown", c.Triggers.Cooldown)
	if c.Limits.QueueRequests < 0 {
		v.problem("limits.queueRequests", "is negative")
	}
	if c.Limits.MessageBytes > 1<<31-1 {
		v.problem("limits.messageBytes", "is above 2147483647, the most that a gRPC message of Triton may have")
	}
	if c.Limits.Connections < 1 {
		v.problem("limits.connections", "%d is less than one", c.Limits.Connections)
	}
	v.positive("limits.stall", c.Limits.Stall)
	v.positive("limits.drain", c.Limits.Drain)
	if *c.Limits.Hang < 0 {
		v.problem("limits.hang", "is negative; 0 means that no execution is taken for one that hangs")
	}
	v.tracing(c.Tracing)
	v.oneOf("log.level", c.Log.Level, "debug", "info", "warn", "error")
	v.oneOf("log.format", c.Log.Format, "auto", "json", "text")
	if len(v.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(v.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Path, b.Path))
	})
	return &InvalidError{Problems: v.problems}
}

type validator struct {
	env      Environment
	lines    map[string]int
	problems []Problem
}

func (v *validator) problem(path, format string, args ...any) {
	v.problems = append(v.problems, Problem{Path: path, Line: v.lines[path], Text: fmt.Sprintf(format, args...)})
}

func (v *validator) oneOf(path, value string, allowed ...string) {
	if !slices.Contains(allowed, value) {
		v.problem(path, "%q is not known%s", value, suggest(value, allowed))
	}
}

func (v *validator) positive(path string, d Duration) {
	if d <= 0 {
		v.problem(path, "%v is not longer than zero", d)
	}
}

func (v *validator) fraction(path string, f, most float64) {
	if f < 0 || f > most {
		v.problem(path, "%v is outside 0 to %v", f, most)
	}
}

func (v *validator) listen(l Listen) {
	if l.MaxConnectionAge < 0 {
		v.problem("listen.maxConnectionAge", "is negative; 0 means that there is no limit")
	}
	if l.MaxConnectionAgeGrace < 0 {
		v.problem("listen.maxConnectionAgeGrace", "is negative; 0 means that calls take as long as they need")
	}
	if l.GRPC == Off && l.HTTP == Off {
		v.problem("listen", "grpc and http are both off: nobody could send a request")
	}
	if _, port, err := net.SplitHostPort(l.GRPC); l.ReusePort && err == nil && port == "0" {
		v.problem("listen.grpc", "port 0 is a free one, and listen.reusePort is for one that another conch has too")
	}
	if _, port, err := net.SplitHostPort(l.HTTP); l.ReusePort && err == nil && port == "0" {
		v.problem("listen.http", "port 0 is a free one, and listen.reusePort is for one that another conch has too")
	}
	seen := map[string]string{}
	for _, a := range []struct{ path, address string }{
		{"listen.grpc", l.GRPC}, {"listen.http", l.HTTP}, {"listen.metrics", l.Metrics}, {"listen.admin", l.Admin}, {"listen.ui.address", l.UI.Address},
	} {
		if a.address == Off {
			continue
		}
		if socket, ok := strings.CutPrefix(a.address, "unix://"); ok {
			switch {
			case a.path != "listen.admin":
				v.problem(a.path, "%q is a unix socket; only listen.admin may be one", a.address)
			case !filepath.IsAbs(socket):
				v.problem(a.path, "%q has no absolute path", a.address)
			case len(socket) > 100:
				v.problem(a.path, "%q is longer than the 100 bytes that fit the path of a unix socket", a.address)
			}
			continue
		}
		_, port, err := net.SplitHostPort(a.address)
		if err != nil {
			v.problem(a.path, "%q is neither host:port nor off; :8001 is port 8001 of every address", a.address)
			continue
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil {
			v.problem(a.path, "port %q is not a number from 0 to 65535", port)
		} else if n == 0 {
			continue
		}
		if other, twice := seen[a.address]; twice {
			v.problem(a.path, "%s is the address of %s too", a.address, other)
		}
		seen[a.address] = a.path
	}
}

func (v *validator) driver(c *Config) {
	d := c.Driver
	v.oneOf("driver.kind", d.Kind, DriverEmbedded, DriverProcess, DriverAttach, DriverKubernetes)
	v.kubernetes(c)
	v.positive("driver.startTimeout", d.StartTimeout)
	v.positive("driver.loadTimeout", d.LoadTimeout)
	v.positive("driver.orphanGrace", d.OrphanGrace)
	v.positive("driver.probe.period", d.Probe.Period)
	v.positive("driver.probe.deadline", d.Probe.Deadline)
	if d.Kind == DriverAttach {
		v.attach(c)
	} else if len(d.Endpoints) > 0 {
		v.problem("driver.endpoints", "are servers that others run; they belong to driver.kind attach, not %s", d.Kind)
	}
	if d.Kind != DriverAttach && d.Service != (Service{}) {
		v.problem("driver.service", "are servers that others run; they belong to driver.kind attach, not %s", d.Kind)
	}
	if d.Kind != DriverAttach && d.SharedMemory {
		v.problem("driver.sharedMemory", "is for servers that others run, driver.kind attach; limits.sharedMemory is what conch's own get")
	}
	if d.Kind == DriverEmbedded {
		for path, set := range map[string]bool{
			"driver.tritonserver": d.TritonServer != "", "driver.backendDirectory": d.BackendDirectory != "",
			"driver.arguments": len(d.Arguments) > 0, "driver.environment": len(d.Environment) > 0,
		} {
			if set {
				v.problem(path, "has no meaning for the embedded driver, which starts no tritonserver")
			}
		}
	}
	if d.Stretch <= 0 || d.Stretch > 1000 {
		v.problem("driver.stretch", "%v is outside 0 to 1000", d.Stretch)
	}
	switch n := d.Executions; {
	case d.Kind == DriverAttach && n != 1:
		v.problem("driver.executions", "is of servers of Conch's own; driver.endpoints[].executions and driver.service.executions are of those that others run")
	case n < 1 || n > policy.MostExecutions:
		v.problem("driver.executions", "%d is not from 1 to %d", n, policy.MostExecutions)
	}
	for name := range d.Environment {
		if name == "" || strings.ContainsAny(name, "= ") {
			v.problem("driver.environment."+name, "is not the name of an environment variable")
		}
		if strings.HasPrefix(name, "CUDA_MPS_") || slices.Contains([]string{
			"CUDA_VISIBLE_DEVICES", "CONCH_PARTITION", "CONCH_GPU", "CONCH_SHARE", "CONCH_EMULATION_DIR", "CONCH_EMULATION_STRETCH",
		}, name) {
			v.problem("driver.environment."+name, "is set by conch for every partition")
		}
	}
}

func (v *validator) gpus(g GPUs) {
	if !g.Auto && len(g.List) == 0 {
		v.problem("gpus", "is an empty list; write auto or name at least one")
	}
	for i, gpu := range g.List {
		path := fmt.Sprintf("gpus[%d]", i)
		if gpu.Type == "" {
			v.problem(path+".type", "is missing, for example A100-80GB")
		}
		if strings.ContainsAny(gpu.Type, "/ \n") {
			v.problem(path+".type", "%q holds a space or a slash", gpu.Type)
		}
		if gpu.Count < 1 || gpu.Count > 4096 {
			v.problem(path+".count", "%d is outside 1 to 4096", gpu.Count)
		}
		if gpu.Emulated && gpu.Memory == 0 {
			v.problem(path+".memory", "is missing; an emulated GPU has only what is set here")
		}
		if gpu.Cost < 0 {
			v.problem(path+".costPerHour", "is negative")
		}
	}
}

func (v *validator) policy(p Policy) {
	v.positive("policy.deadline", p.Deadline)
	if p.Executable == "" && v.env.CheckPolicy != nil {
		if err := v.env.CheckPolicy(p.Name); err != nil {
			v.problem("policy.name", "%v", err)
		}
	}
	if p.Executable != "" && !filepath.IsAbs(p.Executable) {
		v.problem("policy.executable", "%q is not an absolute path", p.Executable)
	}
	if p.Checksum != "" {
		if sum, err := hex.DecodeString(p.Checksum); err != nil || len(sum) != 32 {
			v.problem("policy.checksum", "is not a SHA-256 in hexadecimal (64 characters, as sha256sum prints)")
		}
		if p.Executable == "" {
			v.problem("policy.checksum", "pins policy.executable, which is not set")
		}
	}
}

func (v *validator) dispatch(path, late, discipline string, parameters map[string]string, drop string) {
	if late != "" {
		v.oneOf(path+".late", late, "serve", "drop")
	}
	if discipline == "" && len(parameters) > 0 {
		v.problem(path+".parameters", "belong to a discipline, and %s.discipline is not set", path)
		return
	}
	if v.env.CheckDiscipline == nil {
		return
	}
	if err := v.env.CheckDiscipline(discipline, parameters, ""); err != nil && discipline != "" {
		v.problem(path+".discipline", "%v", err)
	}
	if err := v.env.CheckDiscipline("", nil, drop); err != nil && drop != "" {
		v.problem(path+".dropPolicy", "%v", err)
	}
}

func (v *validator) model(path string, m Model, gpus GPUs) {
	if m.SLO < 0 {
		v.problem(path+".slo", "%v is negative", m.SLO)
	}
	v.dispatch(path, m.Late, m.Discipline, m.Parameters, m.DropPolicy)
	if m.Ensemble != "" {
		v.oneOf(path+".ensemble", m.Ensemble, EnsembleSplit, EnsemblePass)
	}
	if m.MaxInstances > 0 && m.MinInstances > m.MaxInstances {
		v.problem(path+".minInstances", "%d is above maxInstances, %d", m.MinInstances, m.MaxInstances)
	}
	for _, share := range []struct {
		key   string
		value uint32
	}{{"minThreadPercentage", m.MinThreadPercentage}, {"maxThreadPercentage", m.MaxThreadPercentage}} {
		if share.value > 100 {
			v.problem(path+"."+share.key, "%d is above 100", share.value)
		}
	}
	if m.MaxThreadPercentage > 0 && m.MinThreadPercentage > m.MaxThreadPercentage {
		v.problem(path+".minThreadPercentage", "%d is above maxThreadPercentage, %d", m.MinThreadPercentage, m.MaxThreadPercentage)
	}
	if p := m.Profile; p != nil {
		if p.Alpha < 0 {
			v.problem(path+".profile.alpha", "%v is negative", p.Alpha)
		}
		if p.Beta < 0 {
			v.problem(path+".profile.beta", "%v is negative", p.Beta)
		}
		if p.Alpha == 0 && p.Beta == 0 {
			v.problem(path+".profile", "says that a batch takes no time; give alpha and beta")
		}
	}
	if gpus.Auto {
		return
	}
	known := map[string]bool{}
	for i := range gpus.Total() {
		known[GPUID(i)] = true
	}
	for i, id := range m.GPUs {
		if !known[id] {
			v.problem(fmt.Sprintf("%s.gpus[%d]", path, i), "no GPU is called %q; they are %s to %s", id, GPUID(0), GPUID(gpus.Total()-1))
		}
	}
}

// Total is the number of GPUs of the list.
func (g GPUs) Total() int {
	n := 0
	for _, gpu := range g.List {
		n += max(0, gpu.Count)
	}
	return n
}

// GPUID is the id of the GPU at index i, in the order of conch.yaml or of the
// driver.
func GPUID(i int) string { return "gpu" + strconv.Itoa(i) }
