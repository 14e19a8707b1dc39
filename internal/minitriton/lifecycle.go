// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// loadVersions builds the versions that the config selects and puts them in place of those that serve. When one fails, what served
// before goes on serving. The entry's token is held.
func (r *repository) loadVersions(dir string, e *entry, config *pb.ModelConfig) *Error {
	name := config.Name
	versions, err := onDisk(dir, config)
	if err != nil {
		return r.notPolled(name, err)
	}
	if len(versions) == 0 {
		return invalid("load failed for model '%s': at least one version must be available under the version policy of model '%s'\n", name, name)
	}
	r.markLoading(e, versions)
	fresh := make(map[int64]*model, len(versions))
	failures, text := map[int64]string{}, strings.Builder{}
	for _, v := range versions {
		m, err := r.build(dir, config, v)
		if err != nil {
			refusal := asError(err)
			failures[v] = codeName(refusal.Code) + ": " + refusal.Message
			fmt.Fprintf(&text, "version %d is at UNAVAILABLE state: %s;\n", v, failures[v])
			continue
		}
		fresh[v] = m
	}
	if len(failures) > 0 {
		r.abandon(e, fresh, failures)
		r.log.Error("load failed", "model", name, "reason", text.String())
		return invalid("load failed for model '%s': %s", name, text.String())
	}
	var members []string
	for _, step := range config.GetEnsembleScheduling().GetStep() {
		members = append(members, step.ModelName)
	}
	if refusal := r.swap(e, fresh, members); refusal != nil {
		return refusal
	}
	r.log.Info("loaded", "model", name, "versions", versions)
	return nil
}

func (r *repository) markLoading(e *entry, versions []int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, v := range versions {
		if s := e.versions[v]; s == nil || s.model == nil {
			e.versions[v] = &versionState{state: StateLoading}
		}
	}
}

// abandon drops what was built beside a version that failed, and says why in the index where nothing serves.
func (r *repository) abandon(e *entry, fresh map[int64]*model, failures map[int64]string) {
	for _, m := range fresh {
		m.stop()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for v, s := range e.versions {
		if s.model == nil && s.state == StateLoading {
			s.state, s.reason = StateUnavailable, failures[v]
		}
	}
}

// swap puts fresh versions in place at once and drains what they replace in the background. Where only instance_group changed the
// statistics carry on.
func (r *repository) swap(e *entry, fresh map[int64]*model, members []string) *Error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.exiting {
		for _, m := range fresh {
			m.stop() // at once: nothing has been submitted to it
		}
		return errExiting()
	}
	e.members = members
	for v, s := range e.versions {
		if fresh[v] == nil && s.model != nil {
			r.retireLocked(e, v, s.model)
		}
	}
	for v, m := range fresh {
		if old := e.versions[v].model; old != nil {
			if sameButInstances(old.config, m.config) {
				m.stats.restore(old.stats.copy())
				m.carried = old
			}
			r.background.Go(func() { r.drained(e, v, old) })
		}
		e.versions[v] = &versionState{state: StateReady, model: m}
		base := e.metrics[v]
		if base == nil {
			base = &metricBase{}
			e.metrics[v] = base
		}
		base.live = append(base.live, m)
	}
	return nil
}

func sameButInstances(a, b *pb.ModelConfig) bool {
	x, y := proto.Clone(a).(*pb.ModelConfig), proto.Clone(b).(*pb.ModelConfig)
	x.InstanceGroup, y.InstanceGroup = nil, nil
	return !proto.Equal(a, b) && proto.Equal(x, y)
}

// retireLocked takes a version out of service; the index shows it as UNLOADING until its accepted requests are answered.
func (r *repository) retireLocked(e *entry, v int64, m *model) {
	state := &versionState{state: StateUnloading}
	e.versions[v] = state
	m.drain() // before the lock is released: a caller that found the model must not submit to it any more
	r.background.Go(func() {
		r.drained(e, v, m)
		r.mu.Lock()
		defer r.mu.Unlock()
		state.state, state.reason = StateUnavailable, "unloaded"
	})
}

// drained waits for a version's last answer and keeps what it counted for the metrics, as long as another copy serves.
func (r *repository) drained(e *entry, v int64, m *model) {
	m.stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	base := e.metrics[v]
	base.live = slices.DeleteFunc(base.live, func(x *model) bool { return x == m })
	if len(base.live) == 0 {
		delete(e.metrics, v)
		return
	}
	if !slices.ContainsFunc(base.live, func(x *model) bool { return x.carried == m }) {
		base.past.merge(m.stats.copy())
	}
	for _, x := range base.live {
		if x.carried == m {
			x.carried = nil
		}
	}
}

// unload takes all versions of a model out of service and returns at once, and with it the ensembles that call it. With dependents go the
// models that it calls and that no other needs. To unload a model that is not loaded is no error.
func (r *repository) unload(ctx context.Context, name string, dependents bool) *Error {
	if !r.explicit {
		return refuse(codes.Unavailable, "explicit model load / unload is not allowed if polling is enabled")
	}
	if dependents {
		for _, member := range r.orphans(name) {
			if err := r.unload(ctx, member, true); err != nil {
				return err
			}
		}
	}
	if err := r.retire(ctx, name, true); err != nil {
		return err
	}
	for _, ensemble := range r.ensemblesOf(name) {
		if err := r.retire(ctx, ensemble, false); err != nil {
			return err
		}
	}
	return nil
}

// retire takes all versions of a model out of service. Unless it is for good, the model comes back with what it calls.
func (r *repository) retire(ctx context.Context, name string, forGood bool) *Error {
	r.mu.RLock()
	e := r.entries[name]
	r.mu.RUnlock()
	if e == nil {
		return nil
	}
	if err := e.lock(ctx); err != nil {
		return refuse(codes.Canceled, "unload of '%s': %v", name, err)
	}
	defer e.unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	e.seen = ""
	if forGood {
		e.override, e.explicit, e.members = nil, false, nil
		e.discard()
	}
	for v, s := range e.versions {
		if s.model != nil {
			r.retireLocked(e, v, s.model)
		}
	}
	r.log.Info("unloading", "model", name)
	return nil
}

// exit takes everything out of service for good and refuses further loads. wait returns when all accepted requests are answered.
func (r *repository) exit() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.exiting = true
	for _, e := range r.entries {
		e.discard()
		for v, s := range e.versions {
			if s.model != nil {
				r.retireLocked(e, v, s.model)
			}
		}
	}
}

func (r *repository) wait() { r.background.Wait() }

func errExiting() *Error { return refuse(codes.Unavailable, "Server not ready") }
