// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"slices"

	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
)

// Revisions implements API.
func (v view) Revisions(ctx context.Context) ([]api.RepositoryRevision, error) {
	log, err := v.control.Revisions(ctx)
	if err != nil {
		return []api.RepositoryRevision{}, coded(err)
	}
	current := v.control.CurrentRevision()
	return each(log, func(r *repo.Revision) api.RepositoryRevision { return Revision(r, current) }), nil
}

// Import implements API.
func (v view) Import(ctx context.Context, r api.ImportRequest, progress func(api.ImportProgress)) (api.RepositoryRevision, error) {
	files, changed, err := v.control.Import(ctx, r, func(p repo.Progress) {
		progress(api.ImportProgress{DoneBytes: p.Done, AllBytes: p.All, Model: p.Model})
	})
	if err != nil {
		return api.RepositoryRevision{}, coded(err)
	}
	return Imported(files, changed), nil
}

// Imported is the revision after an import, which may have found it unchanged.
func Imported(r *repo.Revision, changed bool) api.RepositoryRevision {
	out := Revision(r, r.ID)
	if !changed {
		out.Unchanged = true
		out.Added, out.Removed, out.Changed, out.Loaded, out.Unloaded = nil, nil, nil, nil, nil
	}
	return out
}

// Rollback implements API.
func (v view) Rollback(ctx context.Context, r api.RollbackRequest) (api.RepositoryRevision, error) {
	return made(v.control.Rollback(ctx, r))
}

// made is a revision that an order made, and that is planned for.
func made(r *repo.Revision, err error) (api.RepositoryRevision, error) {
	if err != nil {
		return api.RepositoryRevision{}, coded(err)
	}
	return Revision(r, r.ID), nil
}

// Revision is one as operators see it, where the one of the id current is planned for.
func Revision(r *repo.Revision, current string) api.RepositoryRevision {
	out := api.RepositoryRevision{
		Models: []string{},
		ID:     r.ID, Parent: r.Parent, Time: r.Time, Author: r.Author, Reason: r.Reason,
		Directory: r.Directory, RollbackTo: r.RollbackTo, Held: r.Held,
		Added: r.Diff.Added, Removed: r.Diff.Removed, Changed: r.Diff.ChangedModels(), Loaded: r.Diff.Loaded, Unloaded: r.Diff.Unloaded,
		Current: current == r.ID,
	}
	for _, m := range r.Models {
		out.Models = append(out.Models, m.Name)
		for _, p := range m.Problems {
			out.Problems = append(out.Problems, api.RepositoryProblem{Model: m.Name, Refused: p.Severity == repo.SeverityError, Text: p.Error()})
		}
	}
	slices.SortStableFunc(out.Problems, func(a, b api.RepositoryProblem) int {
		switch {
		case a.Refused == b.Refused:
			return 0
		case a.Refused:
			return -1
		}
		return 1
	})
	return out
}

// CompareRevisions implements API.
func (v view) CompareRevisions(ctx context.Context, from, to string) (api.RepositoryDiff, error) {
	found, err := v.control.CompareRevisions(ctx, from, to)
	if err != nil {
		return api.RepositoryDiff{}, coded(err)
	}
	return api.RepositoryDiff{From: found.From, To: found.To, Partial: found.Partial, Models: each(found.Models, modelDiff)}, nil
}

func modelDiff(m repo.ModelComparison) api.ModelDiff {
	out := api.ModelDiff{Model: m.Model, Change: m.Change, Notes: m.Notes, Text: m.Text}
	for _, f := range m.Files {
		out.Files = append(out.Files, api.FileDiff{Path: f.Path, Change: f.Change, BeforeBytes: f.Before, AfterBytes: f.After})
	}
	for _, f := range m.Fields {
		out.Fields = append(out.Fields, api.FieldDiff(f))
	}
	return out
}

// Collect implements API.
func (v view) Collect(ctx context.Context, r api.CollectRequest) (api.Collected, error) {
	done, err := v.control.Collect(ctx, r)
	if err != nil {
		return api.Collected{}, coded(err)
	}
	return api.Collected{
		DryRun: r.DryRun, Revisions: orEmpty(done.Revisions), Files: done.Files, Bytes: done.Bytes,
		Kept: each(done.Kept, func(k repo.Kept) api.KeptRevision { return api.KeptRevision(k) }),
	}, nil
}

// Verify implements API.
func (v view) Verify(ctx context.Context, r api.VerifyRequest) (api.Verified, error) {
	found, err := v.control.Verify(ctx, r)
	if err != nil {
		return api.Verified{}, coded(err)
	}
	current := v.control.CurrentRevision()
	return api.Verified{Files: found.Files, Bytes: found.Bytes, Damaged: each(found.Damaged, func(d repo.Damage) api.DamagedFile {
		return api.DamagedFile{Revision: d.Revision, Model: d.Model, File: d.File, Text: d.Text, Taken: d.Taken, Current: d.Revision == current}
	})}, nil
}
