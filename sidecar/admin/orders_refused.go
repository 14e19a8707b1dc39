// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// Calibrate implements API where nothing executes such orders.
func (v view) Calibrate(context.Context, api.CalibrateRequest, func(api.CalibrateProgress)) (api.Calibrated, error) {
	return api.Calibrated{}, &api.Error{Code: api.CodeRefused, Message: "this conch starts no servers to calibrate on; give one that serves nobody to tritonctl calibrate --url"}
}

// VerifyMerge implements API where nothing executes such orders.
func (v view) VerifyMerge(context.Context, api.MergeVerifyRequest, func(api.MergeProgress)) (api.MergeVerified, error) {
	return api.MergeVerified{}, &api.Error{Code: api.CodeRefused, Message: "this conch starts no servers to verify on; give one for trials to tritonctl merge verify --triton"}
}
