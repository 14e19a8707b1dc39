// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"cmp"
	"context"
	"slices"

	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/admin/api"
)

// Cordon implements API.
func (v view) Cordon(ctx context.Context, r api.CordonRequest) (api.CordonResult, error) {
	p, err := v.control.Cordon(ctx, r)
	if err != nil {
		return api.CordonResult{}, coded(err)
	}
	out := api.CordonResult{GPU: api.GPU{ID: r.GPU, Partitions: []api.Partition{}}} // all that is known of one that is gone
	gpus := GPUs(v.control.Look())
	if i := slices.IndexFunc(gpus, func(g api.GPU) bool { return g.ID == r.GPU }); i >= 0 {
		out.GPU = gpus[i]
	}
	if p != nil && p.Diff != nil {
		d := diff(p)
		out.Diff = &d
	}
	return out, nil
}

// Restart implements API.
func (v view) Restart(ctx context.Context, r api.RestartRequest) (api.Partition, error) {
	if err := v.control.Restart(ctx, r); err != nil {
		return api.Partition{}, coded(err)
	}
	return v.Partition(ctx, r.Partition)
}

// LogFile implements API.
func (v view) LogFile(_ context.Context, partition string) (string, error) {
	path, err := v.control.LogFile(partition)
	return path, coded(err)
}

// OrderModel implements API.
func (v view) OrderModel(ctx context.Context, r api.ModelRequest) (api.Model, error) {
	var err error
	by := repo.Origin{Author: cmp.Or(r.Author, "operator"), Reason: r.Reason}
	if r.Unload {
		err = v.control.Unload(ctx, r.Model, by, r.Dependents)
	} else {
		err = v.control.Load(ctx, repo.Order{Model: r.Model}, by)
	}
	if err != nil {
		return api.Model{}, coded(err)
	}
	return v.Model(ctx, r.Model)
}
