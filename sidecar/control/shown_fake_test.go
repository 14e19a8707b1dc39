// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control_test

import (
	"context"

	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/sidecar/admin/api"
)

// Ready and what follows are what operators are shown.
func (r *rig) Ready() []api.Check { return admin.Checks(r.Readiness()) }

func (r *rig) Models() (all []api.Model) {
	for _, m := range r.LookAtModels() {
		all = append(all, admin.Model(m))
	}
	return all
}

func (r *rig) Model(name string) (api.Model, error) {
	m, err := r.LookAtModel(name)
	if err != nil {
		return api.Model{}, err
	}
	return admin.Model(m), nil
}

func (r *rig) GPUs() []api.GPU { return admin.GPUs(r.Look()) }

func (r *rig) Revisions(ctx context.Context) (all []api.RepositoryRevision, err error) {
	log, err := r.Control.Revisions(ctx)
	for _, revision := range log {
		all = append(all, admin.Revision(revision, r.CurrentRevision()))
	}
	return all, err
}

func (r *rig) Import(ctx context.Context, o api.ImportRequest, _ func(api.ImportProgress)) (api.RepositoryRevision, error) {
	files, changed, err := r.Control.Import(ctx, o, nil)
	if err != nil {
		return api.RepositoryRevision{}, err
	}
	return admin.Imported(files, changed), nil
}

func (r *rig) Rollback(ctx context.Context, o api.RollbackRequest) (api.RepositoryRevision, error) {
	return made(r.Control.Rollback(ctx, o))
}

func made(revision *repo.Revision, err error) (api.RepositoryRevision, error) {
	if err != nil {
		return api.RepositoryRevision{}, err
	}
	return admin.Revision(revision, revision.ID), nil
}
