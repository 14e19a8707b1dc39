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

// Checkpoint reads the settings and regions of every partition that is up, so that an order that some of them deny can
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
		ofModel, err := ask(ctx, a, p, tritonpb.GRPCInferenceServiceClient.TraceSetting, &tritonpb.TraceSettingRequest{ModelName: model})
		if err != nil {
			return s, err
		}
		s.ofModel = ofModel.GetSettings()
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
	for _, order := range back(now, before, model) {
		errs = append(errs, a.give(ctx, p.Conn, order))
	}
	for name := range before.cuda {
		if now.cuda[name] == nil {
			errs = append(errs, fmt.Errorf("CUDA region %q is gone, and only its owner has the handle to register it again", name))
		}
	}
	return errors.Join(errs...)
}

// back are the orders that set a partition back, but for CUDA regions that are gone.
func back(now, before partitionState, model string) (orders []proto.Message) {
	if changed := differing(now.log, before.log); len(changed) > 0 {
		log := &tritonpb.LogSettingsRequest{Settings: map[string]*tritonpb.LogSettingsRequest_SettingValue{}}
		for _, key := range changed {
			log.Settings[key] = logSetting(before.log[key])
		}
		orders = append(orders, log)
	}
	// A model's trace setting that was the same as that of all models is cleared, so that it follows them again.
	for _, of := range []struct {
		model                string
		now, before, cleared map[string]*traceValue
	}{{"", now.trace, before.trace, nil}, {model, now.ofModel, before.ofModel, before.trace}} {
		changed := differing(of.now, of.before)
		if len(changed) == 0 {
			continue
		}
		trace := &tritonpb.TraceSettingRequest{ModelName: of.model, Settings: map[string]*tritonpb.TraceSettingRequest_SettingValue{}}
		for _, key := range changed {
			trace.Settings[key] = &tritonpb.TraceSettingRequest_SettingValue{}
			if !proto.Equal(of.before[key], of.cleared[key]) {
				trace.Settings[key].Value = of.before[key].GetValue()
			}
		}
		orders = append(orders, trace)
	}
	for name := range now.system {
		if before.system[name] == nil {
			orders = append(orders, &tritonpb.SystemSharedMemoryUnregisterRequest{Name: name})
		}
	}
	for name, r := range before.system {
		if now.system[name] == nil {
			orders = append(orders, &tritonpb.SystemSharedMemoryRegisterRequest{Name: name, Key: r.GetKey(), Offset: r.GetOffset(), ByteSize: r.GetByteSize()})
		}
	}
	for name := range now.cuda {
		if before.cuda[name] == nil {
			orders = append(orders, &tritonpb.CudaSharedMemoryUnregisterRequest{Name: name})
		}
	}
	return orders
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
