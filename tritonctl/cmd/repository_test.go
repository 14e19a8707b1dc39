// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cmd_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

func (w *world) Revisions(context.Context) ([]api.RepositoryRevision, error) {
	return []api.RepositoryRevision{
		{ID: "r4", Parent: "r3", Time: at(4), Author: "ada", Reason: "vgg is slow", RollbackTo: "r2", Held: true, Models: []string{"bert", "counter"}, Removed: []string{"vgg"}, Current: true},
		{ID: "r2", Parent: "r1", Time: at(2), Author: "ada", Reason: "new bert", Directory: "/models", Models: []string{"bert", "counter"}, Changed: []string{"bert"}},
	}, nil
}

func (w *world) Import(_ context.Context, r api.ImportRequest, progress func(api.ImportProgress)) (api.RepositoryRevision, error) {
	if !filepath.IsAbs(r.Directory) {
		return api.RepositoryRevision{}, errors.New("directory is not absolute: " + r.Directory)
	}
	progress(api.ImportProgress{DoneBytes: 1, AllBytes: 4, Model: "bert"})
	return api.RepositoryRevision{ID: "r3", Author: r.Author, Models: []string{"bert", "counter", "vgg", "wide"}, Added: []string{"vgg", "wide"}, Problems: []api.RepositoryProblem{
		{Model: "wide", Refused: true, Text: "wide/config.pbtxt:3: input \"A\" has no dims"},
		{Model: "bert", Text: "bert/1/model.onnx: cannot be read: input/output error; what was imported of the model before stays"},
	}}, nil
}

func (w *world) Rollback(_ context.Context, r api.RollbackRequest) (api.RepositoryRevision, error) {
	if r.Revision != "r1" {
		return api.RepositoryRevision{}, &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("the repository has no revision %q", r.Revision)}
	}
	return api.RepositoryRevision{ID: "r4", Author: r.Author, Reason: r.Reason, Models: []string{"bert", "counter"}, Removed: []string{"vgg"}, Held: true}, nil
}

func (w *world) CompareRevisions(_ context.Context, from, to string) (api.RepositoryDiff, error) {
	switch {
	case from == "r9":
		return api.RepositoryDiff{}, &api.Error{Code: api.CodeNotFound, Message: "not found: no such repository revision: r9; tritonctl repo history shows those there are"}
	case from != "" && from == to:
		return api.RepositoryDiff{From: from, To: to, Models: []api.ModelDiff{}}, nil
	}
	if w.collected {
		return api.RepositoryDiff{From: "r3", To: "r4", Partial: true, Models: []api.ModelDiff{{Model: "bert", Change: "changed", Files: []api.FileDiff{
			{Path: "1/model.onnx", Change: "removed", BeforeBytes: -1}, {Path: "config.pbtxt", Change: "changed", BeforeBytes: -1, AfterBytes: 90},
		}, Text: "config.pbtxt cannot be compared field by field: r3 is kept no more"}}}, nil
	}
	return api.RepositoryDiff{From: "r1", To: "r2", Models: []api.ModelDiff{
		{Model: "bert", Change: "changed", Files: []api.FileDiff{
			{Path: "1/model.onnx", Change: "removed", BeforeBytes: 4096}, {Path: "2/model.onnx", Change: "added", AfterBytes: 4112}, {Path: "config.pbtxt", Change: "changed", BeforeBytes: 96, AfterBytes: 90},
		}, Fields: []api.FieldDiff{
			{Field: "max_batch_size", Change: "changed", Line: 3, Before: "# two fit the cache\nmax_batch_size: 2", After: "# eight do, too\nmax_batch_size: 8"},
			{Field: `parameters "slo_ms"`, Change: "removed", Line: 9, Before: `parameters { key: "slo_ms" value { string_value: "20" } }`},
		}},
		{Model: "counter", Notes: []string{"unloaded"}},
	}}, nil
}

func (w *world) Collect(_ context.Context, r api.CollectRequest) (api.Collected, error) {
	w.collected = !r.DryRun
	return api.Collected{DryRun: r.DryRun, Revisions: []string{"r3", "r1"}, Files: 4, Bytes: 3 << 20, Kept: []api.KeptRevision{
		{Revision: "r4", For: fmt.Sprintf("one of the newest %d", r.Keep)}, {Revision: "r2", For: "models of it may still be loaded"},
	}}, nil
}

// Verify finds damage until it is mended.
func (w *world) Verify(_ context.Context, r api.VerifyRequest) (api.Verified, error) {
	v := api.Verified{Files: 12, Bytes: 3 << 20, Damaged: []api.DamagedFile{
		{Revision: "r4", Model: "bert", File: "1/model.onnx", Text: "has other content than was imported", Current: true, Taken: r.Mend},
		{Revision: "r2", Model: "bert", File: "1/model.onnx", Text: "has other content than was imported", Taken: r.Mend},
	}}
	if w.mended {
		v.Damaged = []api.DamagedFile{}
	}
	w.mended = r.Mend
	return v, nil
}
