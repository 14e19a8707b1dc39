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
	body, err := json.Marshal(r)
	if err != nil {
		return api.Calibrated{}, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+"/v1/calibrate", bytes.NewReader(body))
	if err != nil {
		return api.Calibrated{}, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.do(request)
	if err != nil {
		return api.Calibrated{}, err
	}
	defer response.Body.Close()
	for lines := json.NewDecoder(response.Body); ; {
		var l api.CalibrateLine
		if err := lines.Decode(&l); err != nil {
			return api.Calibrated{}, fmt.Errorf("calibration by %s ended early: %w; order it again to go on", c.address, err)
		}
		switch {
		case l.Error != nil:
			return api.Calibrated{}, l.Error
		case l.Result != nil:
			return *l.Result, nil
		case l.Progress != nil:
			progress(*l.Progress)
		}
	}
}
