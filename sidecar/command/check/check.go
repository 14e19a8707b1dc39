// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package check holds a valid configuration against the machine that it is on: the files and programs that it names, the models of its repository,
// and what the policy answers for these models and this machine's GPUs. It starts the policy, and nothing else.
package check

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/apply/mps"
	"github.com/conch-serving/conch/sidecar/component/credentials"
	"github.com/conch-serving/conch/sidecar/component/machine"
	"github.com/conch-serving/conch/sidecar/component/servers"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control/snapshot"
	"github.com/conch-serving/conch/sidecar/policyhost"
)

// Ask asks a policy for one plan, as policyhost.Host.Try does.
type Ask func(ctx context.Context, ref policyhost.Ref, s *policy.Snapshot) (*policy.Plan, error)

// Findings are what a configuration meets on a machine.
type Findings struct {
	// Problems are mistakes of the file: conch would not start with it. Warnings depend on the machine, or cost a model its place or its
	// settings.
	Problems, Warnings []config.Problem
	// Notes are what the policy says of its plan besides.
	Notes []string
}

// Machine looks at this machine. What it cannot know, since servers or nodes are elsewhere or files cannot be read, it says nothing of.
func Machine(ctx context.Context, c *config.Config, ask Ask) Findings {
	f := &findings{config: c}
	own := c.Driver.Kind == config.DriverProcess || c.Driver.Kind == config.DriverEmbedded
	if c.Driver.Kind == config.DriverProcess {
		if _, err := driver.FindServer(c.Driver.TritonServer); err != nil {
			f.warn("driver.tritonserver", "%v", err)
		}
	}
	if c.Driver.Kind == config.DriverKubernetes {
		for _, problem := range servers.PodOptions(c).Problems() {
			f.Problems = append(f.Problems, c.Problem("driver.kubernetes", problem.Error()))
		}
	}
	files := credentials.Check(c)
	for _, section := range slices.Sorted(maps.Keys(files)) {
		f.warn(section, "%v", files[section])
	}
	models := f.repository()
	if models != nil && own {
		f.Warnings = append(f.Warnings, c.UnknownModels(slices.Collect(maps.Keys(models)))...)
	}
	s := &policy.Snapshot{Revision: 1, Seed: c.Seed, Objective: snapshot.Objective(c.Objective), Current: &policy.Plan{}}
	if own {
		f.world(s, models)
	}
	f.policy(ctx, s, ask, slices.Collect(maps.Keys(models)))
	return f.Findings
}

type findings struct {
	Findings
	config *config.Config
}

func (f *findings) warn(path, format string, args ...any) {
	f.Warnings = append(f.Warnings, f.config.Problem(path, fmt.Sprintf(format, args...)))
}

// repository are the configurations of the repository's models by name; nil where there is none that can be read.
func (f *findings) repository() map[string]*tritonpb.ModelConfig {
	dir := f.config.Repository
	if dir == "" {
		return nil
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		f.warn("repository", "%v; name the directory of the model repository", err)
		return nil
	}
	models := map[string]*tritonpb.ModelConfig{}
	for _, e := range entries {
		info, err := os.Stat(filepath.Join(dir, e.Name()))
		if err != nil || !info.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		models[e.Name()] = nil
		if text, err := os.ReadFile(filepath.Join(dir, e.Name(), repo.ConfigFile)); err == nil {
			if m, err := repo.ReadConfig(text); err == nil {
				models[e.Name()] = m
			}
		}
	}
	if len(models) == 0 {
		f.warn("repository", "%s has no model directory", dir)
	}
	return models
}

// world puts this machine and the models that are kept loaded into a snapshot, as far as that is known without importing them.
func (f *findings) world(s *policy.Snapshot, models map[string]*tritonpb.ModelConfig) {
	node, err := machine.Node(f.config, mps.Daemon{}, slog.New(slog.DiscardHandler))
	if err != nil {
		f.warn("gpus", "%v", err)
		return
	}
	s.Nodes = []*policy.Node{node}
	var gpus []string
	for _, g := range node.GetGpus() {
		gpus = append(gpus, g.GetId())
	}
	for _, name := range slices.Sorted(maps.Keys(models)) {
		load, _ := f.config.LoadOf(name)
		if models[name] == nil || load != config.LoadKeep {
			continue // what is wrong with it is tritonctl repo validate's to say
		}
		s.Models = append(s.Models, snapshot.Model(&repo.Model{Name: name, Config: models[name]}, f.config, nil))
		for _, gpu := range f.config.Models[name].GPUs {
			if !slices.Contains(gpus, gpu) {
				f.warn("models."+name+".gpus", "no GPU is called %q here; there are %s", gpu, strings.Join(gpus, ", "))
			}
		}
	}
	known := func(name string) bool {
		return slices.ContainsFunc(s.Models, func(m *policy.Model) bool { return m.GetName() == name })
	}
	s.Models = slices.DeleteFunc(s.Models, func(m *policy.Model) bool {
		return slices.ContainsFunc(m.GetDependsOn(), func(step string) bool { return !known(step) })
	})
	s.Constraints = slices.DeleteFunc(snapshot.Constraints(f.config.Models), func(c *policy.Constraint) bool { return !known(c.GetModel()) })
}

// policy asks it for a plan: it judges its parameters, and says what has no place. Models are those of the repository.
func (f *findings) policy(ctx context.Context, s *policy.Snapshot, ask Ask, models []string) {
	own := f.config.Policy
	ref := policyhost.Ref{Name: own.Name, Parameters: own.Parameters}
	if own.Executable != "" {
		ref.Executable = &policyhost.Executable{Path: own.Executable, SHA256: own.Checksum}
	}
	answer, err := ask(ctx, ref, s)
	switch {
	case errors.Is(err, policyhost.ErrParameter):
		f.Problems = append(f.Problems, f.config.Problem("policy.parameters", err.Error()))
	case errors.Is(err, policyhost.ErrNeeds): // measurements, which there are none of yet
	case err != nil && own.Executable != "":
		f.warn("policy.executable", "%v", err)
	case err != nil:
		f.warn("policy.name", "%v", err)
	}
	for _, u := range answer.GetUnplaced() {
		f.warn("models", "%s would have no place, or fewer than it needs: %s", u.GetModel(), u.GetText())
	}
	for _, r := range answer.GetReasons() {
		if _, model := r.UnknownModel(); model != "" {
			// A repository that cannot be read has been said already. The snapshot lacks models that load on demand, and broken ones.
			if len(models) > 0 && !slices.Contains(models, model) {
				f.Warnings = append(f.Warnings, f.config.UnknownModel("policy.parameters", r.GetText(), model, models))
			}
			continue
		}
		if r.GetModel() == "" {
			f.Notes = append(f.Notes, r.GetText())
		}
	}
}
