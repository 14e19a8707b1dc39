// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

func (v view) Release(ctx context.Context, r api.ReleaseRequest) (api.ReleaseResult, error) {
	result, err := v.control.Release(ctx, r)
	return result, coded(err)
}
