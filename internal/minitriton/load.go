// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// lock waits until no other load or unload of the model runs.
func (e *entry) lock(ctx context.Context) error {
	select {
	case e.loading <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e *entry) unlock() { <-e.loading }

// load loads or reloads a model and returns once it serves or has failed. A config given with it stays until the files change.
func (r *repository) load(ctx context.Context, name string, l loadRequest) *Error {
	if !r.explicit {
		return refuse(codes.Unavailable, "explicit model load / unload is not allowed if polling is enabled")
	}
	return r.loadNamed(ctx, name, l)
}

// loadNamed is load whatever the control mode. Ensembles that lost the model come back with it.
func (r *repository) loadNamed(ctx context.Context, name string, l loadRequest) *Error {
	if name == "" || name != filepath.Base(name) || name == ".." || name == "." || slices.Contains(l.callers, name) {
		return r.notPolled(name, errors.New("no name of a model, or an ensemble that calls itself"))
	}
	e := r.entry(name)
	if err := e.lock(ctx); err != nil {
		return refuse(codes.Canceled, "load of '%s': %v", name, err)
	}
	err := r.loadLocked(ctx, name, e, l)
	e.unlock()
	if err == nil {
		r.revive(ctx, name)
	}
	return err
}

// loadLocked is loadNamed with the entry's token held.
func (r *repository) loadLocked(ctx context.Context, name string, e *entry, l loadRequest) *Error {
	dir := filepath.Join(r.dir, name)
	if l.files != nil {
		if l.config == nil {
			return r.notPolled(name, errors.New("files without a config"))
		}
		var err error
		if dir, err = overlay(l.files); err != nil {
			return r.notPolled(name, err)
		}
	}
	err := r.loadFrom(ctx, dir, name, e, l)
	if l.files != nil && err != nil {
		_ = os.RemoveAll(dir) // a temporary directory
	}
	return err
}

// loadFrom loads a model from a directory. When it serves, the files of an earlier load request are no longer needed.
func (r *repository) loadFrom(ctx context.Context, dir, name string, e *entry, l loadRequest) *Error {
	seen, err := fingerprint(dir)
	if err != nil {
		return r.notPolled(name, err)
	}
	if l.config == nil && seen == e.seen {
		return nil // Triton too loads nothing when no file has changed, and does not note the request
	}
	config := e.override
	switch {
	case l.config != nil:
		config, err = parseOverride(name, *l.config)
	case config == nil || seen != e.seen && e.seen != "":
		config, err = readConfig(dir, name)
		e.override = nil
	}
	if err != nil {
		return r.notPolled(name, err)
	}
	if config.GetEnsembleScheduling() != nil {
		config = proto.Clone(config).(*pb.ModelConfig)
		if err := r.loadMembers(ctx, config, append(slices.Clone(l.callers), name)); err != nil {
			return err
		}
		if err := r.checkSteps(config); err != nil {
			return err
		}
	}
	if refusal := r.loadVersions(dir, e, config); refusal != nil {
		return refusal
	}
	e.seen = seen
	if l.config != nil {
		e.override = config
	}
	e.discard()
	if l.files != nil {
		e.files = dir
	}
	r.asked(e, l)
	return nil
}

// asked notes that a model was loaded by its own name.
func (r *repository) asked(e *entry, l loadRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.explicit = e.explicit || len(l.callers) == 0
}

// discard removes the files of a load request.
func (e *entry) discard() {
	if e.files != "" {
		_ = os.RemoveAll(e.files) // a temporary directory
		e.files = ""
	}
}

func (r *repository) notPolled(name string, err error) *Error {
	r.log.Error("load: the model cannot be polled", "model", name, "error", err)
	return refuse(codes.Internal, "failed to load '%s', failed to poll from model repository", name)
}

func readConfig(dir, name string) (*pb.ModelConfig, error) {
	text, err := os.ReadFile(filepath.Join(dir, "config.pbtxt"))
	if err != nil {
		return nil, err
	}
	return parseConfig(name, text)
}

// fingerprint is the names, sizes and times of a model's files: a change of any of them makes Triton reload.
func fingerprint(dir string) (string, error) {
	var b strings.Builder
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil {
			fmt.Fprintln(&b, path, info.Size(), info.ModTime().UnixNano())
		}
		return err
	})
	return b.String(), err
}

// onDisk lists the version directories that the version policy selects.
func onDisk(dir string, config *pb.ModelConfig) ([]int64, error) {
	dirs, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []int64
	for _, d := range dirs {
		if v, err := strconv.ParseInt(d.Name(), 10, 64); err == nil && v >= 0 && strconv.FormatInt(v, 10) == d.Name() {
			all = append(all, v)
		}
	}
	slices.Sort(all)
	switch p := config.GetVersionPolicy().GetPolicyChoice().(type) {
	case *pb.ModelVersionPolicy_All_:
		return all, nil
	case *pb.ModelVersionPolicy_Specific_:
		return slices.DeleteFunc(all, func(v int64) bool { return !slices.Contains(p.Specific.Versions, v) }), nil
	default:
		n := int(config.GetVersionPolicy().GetLatest().GetNumVersions())
		return all[max(0, len(all)-n):], nil
	}
}

// build makes one version ready to serve.
func (r *repository) build(dir string, config *pb.ModelConfig, version int64) (*model, error) {
	config = proto.Clone(config).(*pb.ModelConfig)
	if err := checkKind(config); err != nil {
		return nil, err
	}
	labels, err := readLabels(dir, config)
	if err != nil {
		return nil, err
	}
	if steps := config.GetEnsembleScheduling().GetStep(); steps != nil {
		m := newModel(config, version, nil, r.place.clock)
		m.ensemble, m.labels = &ensemble{model: m, repo: r, steps: steps}, labels
		return m, nil
	}
	exec, err := newExecutor(config, version, r.place)
	if err != nil {
		return nil, err
	}
	m := newModel(config, version, exec, r.place.clock)
	m.labels = labels // before the model can be found
	return m, nil
}
