// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"net/http"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// Measure sends the batches and returns when all are answered, or the time of the order is up. Ending ctx stops it.
func (c *Client) Measure(ctx context.Context, r api.MeasureRequest) ([]api.Measured, error) {
	return post[[]api.Measured](ctx, c, http.MethodPost, "/v1/measure", r)
}
