// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"fmt"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// Most that one order may ask of servers that serve others.
const (
	mostShare   = .5
	mostRepeats = 100
	mostSeconds = 3600
)

// CheckMeasure says what is wrong with an order to time batches.
func CheckMeasure(r api.MeasureRequest) error {
	if !(r.Share > 0 && r.Share <= mostShare) || r.Repeats < 1 || r.Repeats > mostRepeats {
		return &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("share %g and %d repeats: the share of a server's time is above 0 and at most %g, the repeats are from 1 to %d", r.Share, r.Repeats, mostShare, mostRepeats)}
	}
	if !(r.WithinSeconds >= 0 && r.WithinSeconds <= mostSeconds) {
		return &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("within %g s: an order may be given from 0, which sets no end, to %d seconds", r.WithinSeconds, mostSeconds)}
	}
	return nil
}

// Measure implements API for a conch with servers of its own.
func (v view) Measure(_ context.Context, r api.MeasureRequest) ([]api.Measured, error) {
	if err := CheckMeasure(r); err != nil {
		return nil, err
	}
	return nil, &api.Error{Code: api.CodeRefused, Message: "conch runs these servers itself and timed their models when it loaded them: tritonctl model get NAME shows the profile"}
}
