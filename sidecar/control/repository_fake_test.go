// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/control/estimates"
)

type repository struct {
	mu   sync.Mutex
	next []*repo.Model
	log  []*repo.Revision
	err  error
	made int // revisions, ever
	// content of model files, by digest; nil: models without files.
	content map[string][]byte
}

// content is a file in memory.
type content struct{ *bytes.Reader }

func (content) Close() error { return nil }

func (r *repository) open(f repo.File) (estimates.File, error) {
	text, ok := r.content[f.Digest]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return content{bytes.NewReader(text)}, nil
}

func model(name, digest string, batch int32) *repo.Model {
	return &repo.Model{Name: name, Digest: digest, Versions: []int64{1}, Config: &tritonpb.ModelConfig{
		Name: name, Backend: "python", MaxBatchSize: batch,
		Input:  []*tritonpb.ModelInput{{Name: "INPUT", DataType: tritonpb.DataType_TYPE_FP32, Dims: []int64{16}}},
		Output: []*tritonpb.ModelOutput{{Name: "OUTPUT", DataType: tritonpb.DataType_TYPE_FP32, Dims: []int64{-1, 4}}},
	}}
}

func (r *repository) Derive(context.Context, string, repo.Derivation, repo.Origin) (*repo.Revision, error) {
	return nil, errors.New("this repository keeps no derived models")
}

func (r *repository) ReadFile(string, string, string) ([]byte, error) { return nil, fs.ErrNotExist }

func (r *repository) ImportReporting(_ context.Context, dir string, by repo.Origin, _ func(repo.Progress)) (*repo.Revision, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return nil, r.err
	}
	if n := len(r.log); n > 0 && slices.Equal(r.log[0].Models, r.next) && !r.log[0].Held {
		return r.log[0], nil
	}
	r.made++
	rev := &repo.Revision{ID: fmt.Sprint("r", r.made), Origin: by, Directory: dir, Models: slices.Clone(r.next)}
	r.log = append([]*repo.Revision{rev}, r.log...)
	return rev, nil
}

// commit adds a revision, unless it has the models of the newest.
func (r *repository) commit(models []*repo.Model, diff repo.Diff, by repo.Origin) *repo.Revision {
	if len(r.log) > 0 && slices.Equal(r.log[0].Models, models) {
		return r.log[0]
	}
	r.made++
	rev := &repo.Revision{ID: fmt.Sprint("r", r.made), Origin: by, Models: models, Diff: diff}
	r.log = append([]*repo.Revision{rev}, r.log...)
	return rev
}

func (r *repository) find(id string) *repo.Revision {
	i := slices.IndexFunc(r.log, func(rev *repo.Revision) bool { return rev.ID == id })
	return r.log[i]
}

// with is the models of a revision with one of them replaced or added.
func with(models []*repo.Model, m *repo.Model) []*repo.Model {
	models = slices.Clone(models)
	if i := slices.IndexFunc(models, func(model *repo.Model) bool { return model.Name == m.Name }); i >= 0 {
		models[i] = m
		return models
	}
	return append(models, m)
}

func (r *repository) Load(_ context.Context, onto, _ string, o repo.Order, by repo.Origin) (*repo.Revision, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.next, func(m *repo.Model) bool { return m.Name == o.Model })
	if i < 0 {
		return nil, fmt.Errorf("load: %w", repo.ErrNoModel)
	}
	m := r.next[i]
	if o.Config != nil {
		m = model(o.Model, *o.Config, m.Config.GetMaxBatchSize())
	}
	if err := m.Err(); err != nil {
		return nil, err
	}
	return r.commit(with(r.find(onto).Models, m), repo.Diff{Loaded: []string{o.Model}}, by), nil
}

func (r *repository) Unload(_ context.Context, onto string, models []string, by repo.Origin) (*repo.Revision, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.find(onto)
	after := before.Models
	for _, name := range models {
		if m := before.Model(name); m != nil && !m.Unloaded {
			gone := *m
			gone.Unloaded = true
			after = with(after, &gone)
		}
	}
	return r.commit(after, repo.Diff{Unloaded: models}, by), nil
}

func (r *repository) Rollback(_ context.Context, id string, by repo.Origin) (*repo.Revision, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.ContainsFunc(r.log, func(rev *repo.Revision) bool { return rev.ID == id }) {
		return nil, repo.ErrNoRevision
	}
	r.made++
	rev := &repo.Revision{ID: fmt.Sprint("r", r.made), Origin: by, Models: r.find(id).Models, Held: true}
	r.log = append([]*repo.Revision{rev}, r.log...)
	return rev, nil
}

func (r *repository) Withdraw(_ context.Context, id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.log[0].ID != id {
		return repo.ErrNoRevision
	}
	r.log = r.log[1:]
	return nil
}

func (r *repository) Revert(_ context.Context, onto, order, before string, by repo.Origin) (*repo.Revision, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	models := r.find(onto).Models
	for _, m := range r.find(order).Models {
		was := r.find(before).Model(m.Name)
		if was == m || r.find(onto).Model(m.Name) != m {
			continue
		}
		models = slices.DeleteFunc(slices.Clone(models), func(model *repo.Model) bool { return model == m })
		if was != nil {
			models = with(models, was)
		}
	}
	return r.commit(models, repo.Diff{}, by), nil
}

func (r *repository) Current() (*repo.Revision, error) {
	if len(r.log) == 0 {
		return nil, repo.ErrNoRevision
	}
	return r.log[0], nil
}

func (r *repository) Count() (int, error) { return len(r.log), nil }

func (r *repository) Log(int) ([]*repo.Revision, error) { return r.log, nil }

func (r *repository) Compare(from, to string) (*repo.Comparison, error) {
	return &repo.Comparison{From: from, To: to}, nil
}

func (r *repository) Verify(context.Context, bool) (repo.Verification, error) {
	return repo.Verification{Damaged: []repo.Damage{{Revision: r.log[0].ID, Model: "a", File: "1/model.py", Text: "is missing"}}}, nil
}

func (r *repository) Collect(_ context.Context, keep repo.Retention) (repo.Collected, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var done repo.Collected
	var kept []*repo.Revision
	for i, rev := range r.log {
		switch why := keep.InUse[rev.ID]; {
		case i < keep.Newest || why != "":
			kept = append(kept, rev)
			done.Kept = append(done.Kept, repo.Kept{Revision: rev.ID, For: why})
			for _, m := range rev.Models {
				done.Models = append(done.Models, m.Name)
			}
		default:
			done.Revisions = append(done.Revisions, rev.ID)
		}
	}
	slices.Sort(done.Models)
	done.Models = slices.Compact(done.Models)
	if !keep.DryRun {
		r.log = kept
	}
	return done, nil
}

func (r *repository) hold(models ...*repo.Model) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next = models
}
