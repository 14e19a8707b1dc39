// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// Calibrate measures in a scratch partition, which takes minutes; progress is called as it goes on. Ending ctx ends the order.
func (c *Client) Calibrate(ctx context.Context, r api.CalibrateRequest, progress func(api.CalibrateProgress)) (api.Calibrated, error) {
	return long[api.Calibrated](ctx, c, "/v1/calibrate", r, progress)
}

// VerifyMerge merges models of conch's repository and verifies that on a scratch server; progress is called as it goes on. Ending ctx ends
// the order.
func (c *Client) VerifyMerge(ctx context.Context, r api.MergeVerifyRequest, progress func(api.MergeProgress)) (api.MergeVerified, error) {
	return long[api.MergeVerified](ctx, c, "/v1/merge/verify", r, progress)
}

// long gives an order that takes long.
func long[R, P any](ctx context.Context, c *Client, path string, order any, progress func(P)) (out R, err error) {
	body, err := json.Marshal(order)
	if err != nil {
		return out, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, bytes.NewReader(body))
	if err != nil {
		return out, err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", api.LinesType)
	response, err := c.do(request)
	if err != nil {
		return out, err
	}
	defer response.Body.Close()
	for lines := json.NewDecoder(response.Body); ; {
		var l api.Line[P, R]
		if err := lines.Decode(&l); err != nil {
			return out, fmt.Errorf("the order %s to %s ended early: %w; give it again", path, c.address, err)
		}
		switch {
		case l.Error != nil:
			return out, l.Error
		case l.Result != nil:
			return *l.Result, nil
		case l.Progress != nil:
			progress(*l.Progress)
		}
	}
}
