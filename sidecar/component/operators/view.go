// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package operators

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/estimator/calibrate"
	"github.com/conch-serving/conch/merger"
	"github.com/conch-serving/conch/sidecar/admin"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/calibration"
	"github.com/conch-serving/conch/sidecar/component/modelcontrol"
	"github.com/conch-serving/conch/sidecar/control/merging"
)

// view is the admin API of control, with what control does not know: the conditions
// under which clients can come in, servers that others run, scratch partitions.
type view struct {
	admin.API
	o Options
}

// OrderModel implements admin.API: if attached servers give the placement, they load and
// unload the model.
func (v view) OrderModel(ctx context.Context, r api.ModelRequest) (api.Model, error) {
	if v.o.Others == nil || !v.o.Control.Given() {
		return v.API.OrderModel(ctx, r)
	}
	servers := modelcontrol.Attached{Control: v.o.Control, Driver: v.o.Others.Driver}
	order := func() error { return servers.Load(ctx, r.Model, nil) }
	if r.Unload {
		order = func() error { return servers.Unload(ctx, r.Model, nil) }
	}
	if err := order(); err != nil {
		return api.Model{}, &api.Error{Code: api.CodeRefused, Message: "the servers: " + status.Convert(err).Message()}
	}
	m, err := v.Model(ctx, r.Model)
	if err != nil && r.Unload {
		return api.Model{Name: r.Model, State: api.ModelUnloaded}, nil // the servers no longer have it
	}
	return m, err
}

// LogStream implements admin.LogStreamer: the cluster has the logs of servers in Pods.
func (v view) LogStream(ctx context.Context, partition string, lines int, follow bool) (io.ReadCloser, error) {
	if v.o.Logs == nil {
		return nil, nil //nolint:nilnil // LogFile has it
	}
	if _, err := v.o.Control.PlannedPartition(partition); err != nil {
		return nil, &api.Error{Code: api.CodeNotFound, Message: err.Error()}
	}
	text, err := v.o.Logs(ctx, partition, lines, follow)
	if err != nil {
		return nil, &api.Error{Code: api.CodeUnavailable, Message: err.Error()}
	}
	return text, nil
}

// Ready implements admin.API.
func (v view) Ready(ctx context.Context) (api.Health, error) {
	h, err := v.API.Ready(ctx)
	if err != nil {
		return h, err
	}
	if fault := v.o.Dispatcher.Fault(); fault != nil {
		// Requests are answered, as fast as without Conch: no reason to send them
		// nowhere.
		h.Checks = append(h.Checks, api.Check{Name: "queue", OK: true, Reason: "degraded: " + fault.Error() + "; requests are forwarded one by one: restart Conch"})
	}
	if c, ok := v.o.Fronts(); ok {
		h.Checks, h.OK = append(h.Checks, c), h.OK && c.OK
	}
	return h, nil
}

// Calibrate implements admin.API.
func (v view) Calibrate(ctx context.Context, r api.CalibrateRequest, progress func(api.CalibrateProgress)) (api.Calibrated, error) {
	o := calibration.Order{
		GPUType: r.GPUType, Shares: r.Shares, Disturbance: r.Disturbance, Limit: time.Duration(r.LimitSeconds * float64(time.Second)), Python: r.Python,
	}
	tell := func(p calibration.Progress) {
		progress(api.CalibrateProgress{Share: p.Share, Done: p.Done, All: p.All, What: p.What})
	}
	out := api.Calibrated{GPUType: r.GPUType}
	if r.Model != "" {
		shares, err := v.o.Calibration.Model(ctx, r.Model, o, tell)
		for _, s := range shares {
			share := api.CalibratedShare{ThreadPercentage: s.Percentage}
			for _, b := range s.Batches {
				share.Batches = append(share.Batches, api.MeasuredBatch{Rows: b.Rows, Seconds: b.Duration.Seconds(), Repeats: b.Repeats})
			}
			out.Shares = append(out.Shares, share)
		}
		return out, calibrationError(err)
	}
	b, err := v.o.Calibration.Device(ctx, o, tell)
	if err != nil {
		return out, calibrationError(err)
	}
	out.GPUType, out.Server, out.Measurements, out.Median, out.P90 = b.Sheet.Name, b.Server, b.Measurements+b.Shares, b.Median, b.P90
	out.Bundle, err = json.Marshal(b)
	return out, err
}

// VerifyMerge implements admin.API.
func (v view) VerifyMerge(ctx context.Context, r api.MergeVerifyRequest, progress func(api.MergeProgress)) (api.MergeVerified, error) {
	if v.o.Groups == nil {
		return api.MergeVerified{}, &api.Error{Code: api.CodeRefused, Message: "this conch has no repository of models to merge"}
	}
	o := merger.VerifyOptions{Bound: r.Bound, Open: r.Open, Seed: r.Seed}
	m, err := v.o.Groups.Verify(ctx, r.Members, o, func(done, all int, what string) {
		progress(api.MergeProgress{Done: done, All: all, What: what})
	})
	var refused *merging.RefusedError
	switch {
	case errors.As(err, &refused):
		return api.MergeVerified{}, &api.Error{Code: api.CodeRefused, Message: err.Error()}
	case err != nil:
		return api.MergeVerified{}, &api.Error{Code: api.CodeUnavailable, Message: err.Error()}
	}
	return api.MergeVerified{
		Members: r.Members, Digest: m.Digest, Runner: m.Verification.Runner, Runs: m.Verification.Runs, MaxDifference: m.Verification.MaxDifference,
		Bound: m.Verification.Bound, SharedBytes: m.SharedBytes, MergedBytes: m.MergedBytes, SeparateBytes: m.SeparateBytes,
	}, nil
}

func calibrationError(err error) error {
	switch {
	case errors.Is(err, calibration.ErrRefused):
		return &api.Error{Code: api.CodeRefused, Message: err.Error()}
	case errors.Is(err, calibrate.ErrTimeIsUp), errors.Is(err, calibration.ErrTimeIsUp), errors.Is(err, calibration.ErrInUse):
		return &api.Error{Code: api.CodeUnavailable, Message: err.Error()}
	}
	return err
}
