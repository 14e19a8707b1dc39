// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
)

type (
	logValue   = tritonpb.LogSettingsResponse_SettingValue
	traceValue = tritonpb.TraceSettingResponse_SettingValue
	region     = tritonpb.SystemSharedMemoryStatusResponse_RegionStatus
	cudaRegion = tritonpb.CudaSharedMemoryStatusResponse_RegionStatus
)

// partitionState is the settings and regions of a partition.
type partitionState struct {
	log     map[string]*logValue
	trace   map[string]*traceValue // of all models
	ofModel map[string]*traceValue // of the model that the order is about
	system  map[string]*region
	cuda    map[string]*cudaRegion
}

// Checkpoint reads the settings and regions of every partition that is up, so that an order that some of them refuse can
// be taken back from the others; model is that of a trace setting, or empty. Restore sets back what has changed since.
// Its error names what could not be set back.
func (a *Aggregate) Checkpoint(ctx context.Context, model string) (restore func(context.Context) error, err error) {
	partitions := a.up()
	before := make([]partitionState, len(partitions))
	for i, p := range partitions {
		if before[i], err = a.readState(ctx, p, model); status.Code(err) == codes.Unimplemented {
			// A server that does not implement these queries has nothing that
			// could be set back.
			return func(context.Context) error { return nil }, nil
		} else if err != nil {
			return nil, fmt.Errorf("partition %s: %w", p.ID, err)
		}
	}
	return func(ctx context.Context) error {
		var errs []error
		for i, p := range partitions {
			if err := a.setBack(ctx, p, model, before[i]); err != nil {
				errs = append(errs, fmt.Errorf("partition %s: %w", p.ID, err))
			}
		}
		return errors.Join(errs...)
	}, nil
}

// readState asks a partition for its state.
func (a *Aggregate) readState(ctx context.Context, p Partition, model string) (partitionState, error) {
	var s partitionState
	log, err := ask(ctx, a, p, tritonpb.GRPCInferenceServiceClient.LogSettings, &tritonpb.LogSettingsRequest{})
	if err != nil {
		return s, err
	}
	trace, err := ask(ctx, a, p, tritonpb.GRPCInferenceServiceClient.TraceSetting, &tritonpb.TraceSettingRequest{})
	if err != nil {
		return s, err
	}
	if model != "" && slices.Contains(p.Models, model) {
		own, err := ask(ctx, a, p, tritonpb.GRPCInferenceServiceClient.TraceSetting, &tritonpb.TraceSettingRequest{ModelName: model})
		if err != nil {
			return s, err
		}
		s.ofModel = own.GetSettings()
	}
	system, err := ask(ctx, a, p, tritonpb.GRPCInferenceServiceClient.SystemSharedMemoryStatus, &tritonpb.SystemSharedMemoryStatusRequest{})
	if err != nil {
		return s, err
	}
	// Conch itself registers and unregisters the regions that it shares with a
	// server.
	maps.DeleteFunc(system.GetRegions(), func(name string, _ *region) bool { return batch.LentRegion(name) })
	cuda, err := ask(ctx, a, p, tritonpb.GRPCInferenceServiceClient.CudaSharedMemoryStatus, &tritonpb.CudaSharedMemoryStatusRequest{})
	s.log, s.trace, s.system, s.cuda = log.GetSettings(), trace.GetSettings(), system.GetRegions(), cuda.GetRegions()
	return s, err
}

// setBack sets a partition back to the state that it had before.
func (a *Aggregate) setBack(ctx context.Context, p Partition, model string, before partitionState) error {
	now, err := a.readState(ctx, p, model)
	if err != nil {
		return err
	}
	var errs []error
	if changed := differing(now.log, before.log); len(changed) > 0 {
		back := &tritonpb.LogSettingsRequest{Settings: map[string]*tritonpb.LogSettingsRequest_SettingValue{}}
		for _, key := range changed {
			back.Settings[key] = logSetting(before.log[key])
		}
		_, err := ask(ctx, a, p, tritonpb.GRPCInferenceServiceClient.LogSettings, back)
		errs = append(errs, err)
	}
	errs = append(errs, a.setTraceBack(ctx, p, "", differing(now.trace, before.trace), before.trace, nil))
	errs = append(errs, a.setTraceBack(ctx, p, model, differing(now.ofModel, before.ofModel), before.ofModel, before.trace))
	for name := range now.system {
		if before.system[name] == nil {
			_, err := ask(ctx, a, p, tritonpb.GRPCInferenceServiceClient.SystemSharedMemoryUnregister, &tritonpb.SystemSharedMemoryUnregisterRequest{Name: name})
			errs = append(errs, err)
		}
	}
	for name, r := range before.system {
		if now.system[name] == nil {
			_, err := ask(ctx, a, p, tritonpb.GRPCInferenceServiceClient.SystemSharedMemoryRegister,
				&tritonpb.SystemSharedMemoryRegisterRequest{Name: name, Key: r.GetKey(), Offset: r.GetOffset(), ByteSize: r.GetByteSize()})
			a.o.Regions.Registered(name, r.GetKey(), r.GetOffset(), r.GetByteSize())
			errs = append(errs, err)
		}
	}
	for name := range now.cuda {
		if before.cuda[name] == nil {
			_, err := ask(ctx, a, p, tritonpb.GRPCInferenceServiceClient.CudaSharedMemoryUnregister, &tritonpb.CudaSharedMemoryUnregisterRequest{Name: name})
			errs = append(errs, err)
		}
	}
	for name := range before.cuda {
		if now.cuda[name] == nil {
			errs = append(errs, fmt.Errorf("CUDA region %q is gone, and only its owner has the handle to register it again", name))
		}
	}
	return errors.Join(errs...)
}

// setTraceBack sets trace settings back. A model's setting that was the same as that of all models is cleared, so that it
// follows them again.
func (a *Aggregate) setTraceBack(ctx context.Context, p Partition, model string, keys []string, before, all map[string]*traceValue) error {
	if len(keys) == 0 {
		return nil
	}
	back := &tritonpb.TraceSettingRequest{ModelName: model, Settings: map[string]*tritonpb.TraceSettingRequest_SettingValue{}}
	for _, key := range keys {
		value := &tritonpb.TraceSettingRequest_SettingValue{}
		if model == "" || !proto.Equal(before[key], all[key]) {
			value.Value = before[key].GetValue()
		}
		back.Settings[key] = value
	}
	_, err := ask(ctx, a, p, tritonpb.GRPCInferenceServiceClient.TraceSetting, back)
	return err
}

// differing returns the keys whose values are others than before, sorted.
func differing[V proto.Message](now, before map[string]V) []string {
	var keys []string
	for _, key := range slices.Sorted(maps.Keys(before)) {
		if !proto.Equal(now[key], before[key]) {
			keys = append(keys, key)
		}
	}
	return keys
}

// logSetting converts a reported value to one to set.
func logSetting(v *logValue) *tritonpb.LogSettingsRequest_SettingValue {
	out := &tritonpb.LogSettingsRequest_SettingValue{}
	switch v := v.GetParameterChoice().(type) {
	case *tritonpb.LogSettingsResponse_SettingValue_BoolParam:
		out.ParameterChoice = &tritonpb.LogSettingsRequest_SettingValue_BoolParam{BoolParam: v.BoolParam}
	case *tritonpb.LogSettingsResponse_SettingValue_Uint32Param:
		out.ParameterChoice = &tritonpb.LogSettingsRequest_SettingValue_Uint32Param{Uint32Param: v.Uint32Param}
	case *tritonpb.LogSettingsResponse_SettingValue_StringParam:
		out.ParameterChoice = &tritonpb.LogSettingsRequest_SettingValue_StringParam{StringParam: v.StringParam}
	}
	return out
}
