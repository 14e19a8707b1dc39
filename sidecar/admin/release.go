// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"

	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/sidecar/control"
)

func (v view) Release(ctx context.Context, r client.ReleaseRequest) (client.ReleaseResult, error) {
	result, err := v.control.Release(ctx, control.ReleaseRequest(r))
	if err != nil {
		return client.ReleaseResult{}, coded(err)
	}
	return client.ReleaseResult{
		DryRun: result.DryRun, Mode: result.Mode,
		Changes: each(result.Changes, func(c control.Release) client.Released { return client.Released(c) }),
	}, nil
}
