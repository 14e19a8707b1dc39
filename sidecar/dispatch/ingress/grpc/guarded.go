// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package grpc

import (
	"context"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/guard"
)

// SystemSharedMemoryRegister denies memory that is not the caller's.
func (f *front) SystemSharedMemoryRegister(ctx context.Context, r *tritonpb.SystemSharedMemoryRegisterRequest) (*tritonpb.SystemSharedMemoryRegisterResponse, error) {
	if err := guard.Region(r.GetKey(), r.GetOffset(), r.GetByteSize()); err != nil {
		return nil, err
	}
	return f.Aggregator.SystemSharedMemoryRegister(ctx, r)
}

// LogSettings denies settings that name a file of the server's.
func (f *front) LogSettings(ctx context.Context, r *tritonpb.LogSettingsRequest) (*tritonpb.LogSettingsResponse, error) {
	for name := range r.GetSettings() {
		if err := guard.LogSetting(name); err != nil {
			return nil, err
		}
	}
	return f.Aggregator.LogSettings(ctx, r)
}

// TraceSetting denies settings that name a file of the server's.
func (f *front) TraceSetting(ctx context.Context, r *tritonpb.TraceSettingRequest) (*tritonpb.TraceSettingResponse, error) {
	for name := range r.GetSettings() {
		if err := guard.TraceSetting(name); err != nil {
			return nil, err
		}
	}
	return f.Aggregator.TraceSetting(ctx, r)
}
