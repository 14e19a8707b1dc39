// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"google.golang.org/grpc/codes"

	"github.com/conch-serving/conch/internal/triton"
	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// State is a model version's state in the repository index.
type State string

// The states of Triton's repository index. A model that was never loaded has none.
const (
	StateReady       State = "READY"
	StateUnavailable State = "UNAVAILABLE"
	StateLoading     State = "LOADING"
	StateUnloading   State = "UNLOADING"
)

// repository is the models of one server: those on disk, and what has been loaded of them.
type repository struct {
	dir      string
	place    *place
	explicit bool
	log      *slog.Logger

	background sync.WaitGroup // draining versions

	mu      sync.RWMutex
	entries map[string]*entry
	exiting bool
}

// entry is a model that was loaded, or tried, at least once.
type entry struct {
	loading  chan struct{} // holds a token during a load or unload
	versions map[int64]*versionState
	override *pb.ModelConfig
	seen     string   // fingerprint of the files the loaded versions came from; empty when nothing is loaded
	files    string   // directory of a load request's own files; empty when the repository's serve
	explicit bool     // loaded for its own sake, not only for an ensemble's
	members  []string // models that it calls, if it is an ensemble
	metrics  map[int64]*metricBase
}

// versionState is one version as the index shows it. model is set while it takes requests.
type versionState struct {
	state  State
	reason string
	model  *model
}

// metricBase is a version's Prometheus counters, which outlive a reload: what unloaded copies counted, and the copies still counting.
type metricBase struct {
	past counters
	live []*model
}

func newRepository(dir string, p *place, explicit bool, log *slog.Logger) *repository {
	return &repository{dir: dir, place: p, explicit: explicit, log: log, entries: map[string]*entry{}}
}

func (r *repository) entry(name string) *entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[name]
	if e == nil {
		e = &entry{loading: make(chan struct{}, 1), versions: map[int64]*versionState{}, metrics: map[int64]*metricBase{}}
		r.entries[name] = e
	}
	return e
}

// find returns the version that serves a request, or Triton's refusal. An empty version asks for the highest.
func (r *repository) find(name, version string) (*model, *Error) {
	v, err := parseVersion(version)
	if err != nil {
		return nil, err
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	e := r.entries[name]
	if e == nil {
		return nil, refuse(codes.NotFound, "Request for unknown model: '%s' is not found", name)
	}
	if v < 0 {
		var best *model
		for _, s := range e.versions {
			if s.model != nil && (best == nil || s.model.version > best.version) {
				best = s.model
			}
		}
		if best == nil {
			return nil, refuse(codes.NotFound, "Request for unknown model: '%s' has no available versions", name)
		}
		return best, nil
	}
	s := e.versions[v]
	if s == nil {
		return nil, refuse(codes.NotFound, "Request for unknown model: '%s' version %d is not found", name, v)
	}
	if s.model == nil {
		return nil, refuse(codes.Unavailable, "Request for unknown model: '%s' version %d is not at ready state", name, v)
	}
	return s.model, nil
}

// submit checks a request against its model and queues it. A model replaced between find and submit is looked up again.
func (r *repository) submit(m *model, name, version string, req *request) *Error {
	for {
		if err := m.prepare(req); err != nil {
			return err
		}
		err := m.submit(req)
		if err == nil || err.Code != codes.NotFound {
			return err
		}
		next, findErr := r.find(name, version)
		if findErr != nil {
			return findErr
		}
		if next == m {
			return err
		}
		m = next
	}
}

// parseVersion reads a version as C++'s stol does: leading space and trailing text are let through. Empty is -1, no particular version.
func parseVersion(s string) (int64, *Error) {
	if s == "" {
		return -1, nil
	}
	n, err := strconv.ParseInt(triton.LeadingInt(s), 10, 64)
	if err != nil {
		return 0, invalid("failed to get model version from specified version string '%s' (details: stol), version should be an integral value > 0", s)
	}
	if n < 0 {
		return 0, invalid("invalid model version specified '%s' , version should be an integral value > 0", s)
	}
	return n, nil
}

// versionsOf lists the served versions of a model in ascending order.
func (r *repository) versionsOf(name string) []string {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out []string
	if e := r.entries[name]; e != nil {
		for _, v := range slices.Sorted(maps.Keys(e.versions)) {
			if e.versions[v].model != nil {
				out = append(out, strconv.FormatInt(v, 10))
			}
		}
	}
	return out
}

// loaded lists all served versions, ordered by model and version.
func (r *repository) loaded() []*model {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out []*model
	for _, name := range slices.Sorted(maps.Keys(r.entries)) {
		versions := r.entries[name].versions
		for _, v := range slices.Sorted(maps.Keys(versions)) {
			if m := versions[v].model; m != nil {
				out = append(out, m)
			}
		}
	}
	return out
}

// index lists the directory and what is loaded, as RepositoryIndex does: a model removed from disk is not listed though it serves.
func (r *repository) index(ready bool) ([]*pb.RepositoryIndexResponse_ModelIndex, *Error) {
	names, err := r.names()
	if err != nil {
		return nil, refuse(codes.Internal, "failed to read the model repository: %v", err)
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out []*pb.RepositoryIndexResponse_ModelIndex
	for _, name := range names {
		e := r.entries[name]
		if e == nil || len(e.versions) == 0 {
			if !ready {
				out = append(out, &pb.RepositoryIndexResponse_ModelIndex{Name: name})
			}
			continue
		}
		for _, v := range slices.Sorted(maps.Keys(e.versions)) {
			s := e.versions[v]
			if !ready || s.state == StateReady {
				out = append(out, &pb.RepositoryIndexResponse_ModelIndex{Name: name, Version: strconv.FormatInt(v, 10), State: string(s.state), Reason: s.reason})
			}
		}
	}
	return out, nil
}

// names lists the subdirectories of the repository, sorted.
func (r *repository) names() ([]string, error) {
	dirs, err := os.ReadDir(r.dir)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, d := range dirs {
		if info, err := os.Stat(filepath.Join(r.dir, d.Name())); err == nil && info.IsDir() {
			out = append(out, d.Name())
		}
	}
	return out, nil
}
