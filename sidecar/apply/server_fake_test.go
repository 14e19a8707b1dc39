// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/conch-serving/conch/sidecar/apply/driver"
)

type fakeServer struct {
	w      *world
	spec   driver.Spec
	at     string
	models map[string]string // staged revision, by model
	began  time.Time
	over   chan struct{}
	reason string
	hangs  bool
	refuse error // what a health probe is answered with
	mute   bool  // it lives, and does not say what it has
	// unready are models that it loads and never has ready.
	unready map[string]bool
	// unread are models whose configuration it does not give: it answers with an error, or not at all.
	unread map[string]string
}

func (s *fakeServer) Spec() driver.Spec         { return s.spec }
func (s *fakeServer) Endpoint() driver.Endpoint { return driver.Endpoint{GRPC: s.at} }
func (s *fakeServer) Begin() time.Time          { return s.began }
func (s *fakeServer) Log() string               { return "" }
func (s *fakeServer) Done() <-chan struct{}     { return s.over }
func (s *fakeServer) Death() string             { return s.reason }
func (s *fakeServer) Leave() error              { return nil }

func (s *fakeServer) Live(ctx context.Context) error {
	s.w.mu.Lock()
	hangs, refuse := s.hangs, s.refuse
	s.w.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	return refuse
}

func (s *fakeServer) Models(context.Context) ([]string, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.mute {
		return nil, errors.New("no index")
	}
	ready := maps.Clone(s.models)
	maps.DeleteFunc(ready, func(model, _ string) bool { return s.unready[model] })
	return slices.Sorted(maps.Keys(ready)), nil
}

func (s *fakeServer) Parameter(ctx context.Context, model, _ string) (string, error) {
	s.w.mu.Lock()
	unread := s.unread[model]
	s.w.mu.Unlock()
	switch unread {
	case "silent":
		<-ctx.Done()
		return "", ctx.Err()
	case "slow":
		if !wait(ctx, 50*time.Millisecond) {
			return "", ctx.Err()
		}
	case "error":
		return "", errors.New("internal")
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	revision, ok := s.models[model]
	if !ok {
		return "", errors.New("not found")
	}
	return revision, nil
}

func (s *fakeServer) Load(ctx context.Context, model string) error {
	w := s.w
	w.mu.Lock()
	took := w.loadsFor[model]
	w.note("load %s on %s", model, s.spec.Partition.GetId())
	w.mu.Unlock()
	if !wait(ctx, took) {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return &driver.LoadError{Model: model, Hung: true, Err: ctx.Err()}
		}
		return context.Cause(ctx)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.servers[s.at] != s {
		return &driver.LoadError{Model: model, Died: true, Err: errors.New(s.reason)}
	}
	revision, ok := w.staged[s.spec.RepositoryDir][model]
	if !ok {
		w.t.Errorf("load of %s, which is not staged", model)
	}
	if w.kills[model] {
		s.die("killed by " + model)
		return &driver.LoadError{Model: model, Died: true, Err: errors.New(s.reason)}
	}
	for _, err := range []error{w.loadErr[model], w.loadErr[model+"@"+revision]} {
		if err != nil {
			return &driver.LoadError{Model: model, Err: err}
		}
	}
	s.models[model] = revision
	return nil
}

func (s *fakeServer) Unload(_ context.Context, model string) error {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.note("unload %s on %s", model, s.spec.Partition.GetId())
	if s.w.names(s.at, model) {
		s.w.t.Errorf("%s is unloaded from %s while it is routed to", model, s.spec.Partition.GetId())
	}
	delete(s.models, model)
	return nil
}

func (s *fakeServer) Stop(context.Context) error {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.note("stop %s", s.spec.Partition.GetId())
	if s.w.names(s.at, "") {
		s.w.t.Errorf("%s is stopped while it is routed to", s.spec.Partition.GetId())
	}
	if s.w.leases[s.at] != nil {
		s.w.t.Errorf("%s is stopped while a request runs on it", s.spec.Partition.GetId())
	}
	s.die("stopped")
	return nil
}

func (s *fakeServer) Kill(context.Context) error {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.note("kill %s", s.spec.Partition.GetId())
	s.die("killed")
	return nil
}

// die ends the server; w.mu is held.
func (s *fakeServer) die(reason string) {
	if s.w.servers[s.at] == s {
		delete(s.w.servers, s.at)
		s.reason = reason
		close(s.over)
	}
}
