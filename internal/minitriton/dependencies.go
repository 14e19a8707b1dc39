// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"context"
	"maps"
	"slices"
	"strconv"

	"google.golang.org/grpc/codes"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// loadMembers loads the models that an ensemble calls and that do not serve yet. They are not asked for by name, so that they go with the
// ensemble's dependents.
func (r *repository) loadMembers(ctx context.Context, c *pb.ModelConfig, callers []string) *Error {
	name := c.Name
	for _, step := range c.GetEnsembleScheduling().GetStep() {
		if _, err := r.find(step.ModelName, ""); err == nil {
			continue
		}
		if err := r.loadNamed(ctx, step.ModelName, loadRequest{callers: callers}); err != nil {
			if err.Code == codes.Internal { // it could not even be polled
				return invalid("load failed for model '%s': ensemble %s contains models that are not available or ambiguous: %s\n", name, name, step.ModelName)
			}
			return invalid("load failed for model '%s': ensemble '%s' depends on '%s' which has no loaded version. Model '%s' loading failed with error: %s\n",
				name, name, step.ModelName, step.ModelName, err.Message)
		}
	}
	return nil
}

// checkSteps checks the steps of an ensemble against the models that they call, with Triton's words.
func (r *repository) checkSteps(c *pb.ModelConfig) *Error {
	fail := func(format string, args ...any) *Error {
		return invalid("load failed for model '%s': %s\n", c.Name, invalid(format, args...).Message)
	}
	types := map[string]tensorType{}
	for _, in := range c.Input {
		types[in.Name] = tensorType{in.DataType, c.Name}
	}
	for _, out := range c.Output {
		types[out.Name] = tensorType{out.DataType, c.Name}
	}
	decoupled := false
	for _, step := range c.GetEnsembleScheduling().GetStep() {
		version := ""
		if step.ModelVersion >= 0 {
			version = strconv.FormatInt(step.ModelVersion, 10)
		}
		m, err := r.find(step.ModelName, version)
		if err != nil {
			return fail("ensemble '%s' depends on '%s' whose required version %d is not loaded.", c.Name, step.ModelName, step.ModelVersion)
		}
		decoupled = decoupled || m.decoupled
		if c.MaxBatchSize > m.config.MaxBatchSize {
			return fail("ensemble %s allows maximum batch size %d, but it contains model %s which only allows maximum batch size to be %d",
				c.Name, c.MaxBatchSize, m.name, m.config.MaxBatchSize)
		}
		if err := checkStep(c, step, m, types, fail); err != nil {
			return err
		}
	}
	c.ModelTransactionPolicy = &pb.ModelTransactionPolicy{Decoupled: decoupled}
	return nil
}

// tensorType is the type of an ensemble's tensor and the model that says so.
type tensorType struct {
	dtype pb.DataType
	model string
}

func checkStep(c *pb.ModelConfig, step *pb.ModelEnsembling_Step, m *model, types map[string]tensorType, fail func(string, ...any) *Error) *Error {
	check := func(kind, own, shared string, dtype pb.DataType) *Error {
		if dtype == pb.DataType_TYPE_INVALID {
			return fail("in ensemble %s, ensemble tensor %s is mapping to non-existing %s %s in model %s", c.Name, shared, kind, own, m.name)
		}
		known, ok := types[shared]
		if ok && known.dtype != dtype {
			return fail("in ensemble %s, ensemble tensor %s: inconsistent data type: %s is inferred from model %s while %s is inferred from model %s",
				c.Name, shared, known.dtype, known.model, dtype, m.name)
		}
		if !ok {
			types[shared] = tensorType{dtype, m.name}
		}
		return nil
	}
	for _, own := range slices.Sorted(maps.Keys(step.InputMap)) {
		if err := check("input", own, step.InputMap[own], m.inputs[own].GetDataType()); err != nil {
			return err
		}
	}
	for _, own := range slices.Sorted(maps.Keys(step.OutputMap)) {
		dtype := pb.DataType_TYPE_INVALID
		for _, out := range m.config.Output {
			if out.Name == own {
				dtype = out.DataType
			}
		}
		if err := check("output", own, step.OutputMap[own], dtype); err != nil {
			return err
		}
	}
	return nil
}

// ensemblesOf lists the ensembles that were loaded and call a model, in order of their names.
func (r *repository) ensemblesOf(member string) []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out []string
	for name, e := range r.entries {
		if e.explicit && slices.ContainsFunc(e.members, func(m string) bool { return m == member }) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// revive loads the ensembles that lost a model which is back.
func (r *repository) revive(ctx context.Context, member string) {
	for _, name := range r.ensemblesOf(member) {
		if _, err := r.find(name, ""); err == nil {
			continue
		}
		if err := r.loadNamed(ctx, name, loadRequest{}); err != nil {
			r.log.Error("load of an ensemble whose model is back", "model", name, "error", err)
		}
	}
}

// orphans lists the models that an ensemble calls, no other ensemble does, and no caller has loaded by name.
func (r *repository) orphans(ensemble string) []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	e := r.entries[ensemble]
	if e == nil {
		return nil
	}
	var out []string
	for _, member := range e.members {
		m := r.entries[member]
		used := m == nil || m.explicit
		for name, other := range r.entries {
			used = used || name != ensemble && other.serves() && slices.Contains(other.members, member)
		}
		if !used && !slices.Contains(out, member) {
			out = append(out, member)
		}
	}
	return out
}

// serves says whether any version takes requests. The repository's lock is held.
func (e *entry) serves() bool {
	for _, v := range e.versions {
		if v.model != nil {
			return true
		}
	}
	return false
}
