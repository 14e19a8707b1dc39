// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"net/http"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// Release restores the configurations of attached servers and leaves them alone
// from then on. What is done already is not done again.
func (c *Client) Release(ctx context.Context, r api.ReleaseRequest) (api.ReleaseResult, error) {
	return post[api.ReleaseResult](ctx, c, http.MethodPost, "/v1/release", r)
}
