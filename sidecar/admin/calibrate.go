// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// Calibrate implements API where nothing executes such orders.
func (v view) Calibrate(context.Context, api.CalibrateRequest, func(api.CalibrateProgress)) (api.Calibrated, error) {
	return api.Calibrated{}, &api.Error{Code: api.CodeRefused, Message: "this conch starts no servers to calibrate on; give one that serves nobody to tritonctl calibrate --url"}
}

// calibrate streams progress, one JSON object a line, and last the result or the error. Ending the call ends the order.
func (s *server) calibrate(w http.ResponseWriter, r *http.Request) {
	var in api.CalibrateRequest
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.DisallowUnknownFields()
	if err := d.Decode(&in); err != nil && !errors.Is(err, io.EOF) {
		s.fail(w, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("body of %s %s: %v", r.Method, r.URL.Path, err)})
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	lines, c := json.NewEncoder(w), http.NewResponseController(w)
	write := func(l api.CalibrateLine) {
		if err := errors.Join(lines.Encode(l), c.Flush()); err != nil {
			s.log.Debug("progress of a calibration not delivered", "error", err)
		}
	}
	out, err := s.conch.Calibrate(r.Context(), in, func(p api.CalibrateProgress) { write(api.CalibrateLine{Progress: &p}) })
	if err == nil {
		write(api.CalibrateLine{Result: &out})
		return
	}
	var known *api.Error
	if !errors.As(err, &known) {
		known = &api.Error{Code: api.CodeInternal, Message: err.Error()}
	}
	write(api.CalibrateLine{Error: known})
}
