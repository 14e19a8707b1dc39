// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"context"
	"maps"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/batch"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/guard"
)

func errNoneUp() error { return status.Error(codes.Unavailable, "no Triton server is up") }

// tell gives an order to partitions, all or nothing. If one of them denies it, the order is taken back from all of them,
// the denying one included: Triton carries out a part of an order before it finds that the rest is wrong. The answer is
// the first partition's. A denial is passed on with Triton's text; a partition that did not answer is named. An order
// that all have accepted is remembered for partitions that start later.
func tell[Q proto.Message, A any](ctx context.Context, a *Aggregate, partitions []Partition, model string, m method[Q, A], request Q) (A, error) {
	var none A
	if len(partitions) == 0 {
		return none, errNoneUp()
	}
	defer a.Exclusively()()
	restore, err := a.Checkpoint(ctx, model)
	if err != nil {
		return none, status.Errorf(codes.Unavailable, "nothing was changed: %v", err)
	}
	answers, failures := askAll(ctx, a, partitions, m, request)
	var denied error
	for i, err := range failures {
		switch status.Code(err) {
		case codes.OK:
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
			if denied == nil {
				denied = status.Errorf(status.Code(err), "partition %s: %s; nothing was changed", partitions[i].ID, status.Convert(err).Message())
			}
		default:
			denied = err
		}
	}
	if denied == nil {
		a.remember(request)
		return answers[0], nil
	}
	if err := restore(context.WithoutCancel(ctx)); err != nil {
		return none, status.Errorf(status.Code(denied), "%s; and not everything could be set back: %v", status.Convert(denied).Message(), err)
	}
	return none, denied
}

// Exclusively waits until no other change of the partitions' settings is under
// way, by either protocol, and excludes others until end is called. Otherwise one
// change could take back what another has set meanwhile.
func (a *Aggregate) Exclusively() (end func()) {
	a.telling.Lock()
	return a.telling.Unlock
}

// first asks partitions in turn until one answers; a denial is an answer.
func first[Q, A any](ctx context.Context, a *Aggregate, partitions []Partition, m method[Q, A], request Q) (A, error) {
	var answer A
	err := errNoneUp()
	for _, p := range partitions {
		if answer, err = ask(ctx, a, p, m, request); status.Code(err) != codes.Unavailable {
			break
		}
	}
	return answer, err
}

// TraceSetting changes the trace settings of all partitions, or reads the first one's. Those of one model concern only
// the partitions that have it.
func (a *Aggregate) TraceSetting(ctx context.Context, r *tritonpb.TraceSettingRequest) (*tritonpb.TraceSettingResponse, error) {
	for name := range r.GetSettings() {
		if err := guard.TraceSetting(name); err != nil {
			return nil, err
		}
	}
	partitions := a.up()
	if name := r.GetModelName(); name != "" {
		if partitions = a.with(name); len(partitions) == 0 {
			return nil, status.Errorf(codes.InvalidArgument, "Request for unknown model : %s", name)
		}
	}
	if len(r.GetSettings()) == 0 {
		return first(ctx, a, partitions, tritonpb.GRPCInferenceServiceClient.TraceSetting, r)
	}
	return tell(ctx, a, partitions, r.GetModelName(), tritonpb.GRPCInferenceServiceClient.TraceSetting, r)
}

// LogSettings changes the log settings of all partitions, or reads the first one's.
func (a *Aggregate) LogSettings(ctx context.Context, r *tritonpb.LogSettingsRequest) (*tritonpb.LogSettingsResponse, error) {
	for name := range r.GetSettings() {
		if err := guard.LogSetting(name); err != nil {
			return nil, err
		}
	}
	if len(r.GetSettings()) == 0 {
		return first(ctx, a, a.up(), tritonpb.GRPCInferenceServiceClient.LogSettings, r)
	}
	return tell(ctx, a, a.up(), "", tritonpb.GRPCInferenceServiceClient.LogSettings, r)
}

// SystemSharedMemoryStatus lists the regions that every partition that is up has: a region that one of them has lost
// with a restart cannot be used until it is registered again. The regions that Conch shares with a server are left out.
func (a *Aggregate) SystemSharedMemoryStatus(ctx context.Context, r *tritonpb.SystemSharedMemoryStatusRequest) (*tritonpb.SystemSharedMemoryStatusResponse, error) {
	if batch.LentRegion(r.GetName()) {
		// Ask for a name that is not registered.
		r = &tritonpb.SystemSharedMemoryStatusRequest{Name: r.GetName() + " "}
	}
	answers, err := fromAll(ctx, a, tritonpb.GRPCInferenceServiceClient.SystemSharedMemoryStatus, r)
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(answers[0].Regions, func(name string, _ *region) bool { return batch.LentRegion(name) })
	for _, other := range answers[1:] {
		maps.DeleteFunc(answers[0].Regions, func(name string, mine *region) bool { return !proto.Equal(mine, other.GetRegions()[name]) })
	}
	return answers[0], nil
}

// SystemSharedMemoryRegister registers a region with every partition that does not have it.
func (a *Aggregate) SystemSharedMemoryRegister(ctx context.Context, r *tritonpb.SystemSharedMemoryRegisterRequest) (*tritonpb.SystemSharedMemoryRegisterResponse, error) {
	if err := guard.Region(r.GetKey(), r.GetOffset(), r.GetByteSize()); err != nil {
		return nil, err
	}
	want := &region{Name: r.GetName(), Key: r.GetKey(), Offset: r.GetOffset(), ByteSize: r.GetByteSize()}
	var lacking []Partition
	partitions := a.up()
	answers, failures := askAll(ctx, a, partitions, tritonpb.GRPCInferenceServiceClient.SystemSharedMemoryStatus, &tritonpb.SystemSharedMemoryStatusRequest{})
	for i, p := range partitions {
		if failures[i] != nil || !proto.Equal(want, answers[i].GetRegions()[r.GetName()]) {
			lacking = append(lacking, p)
		}
	}
	if len(lacking) == 0 {
		lacking = partitions // Triton denies it, because it has it
	}
	return tell(ctx, a, lacking, "", tritonpb.GRPCInferenceServiceClient.SystemSharedMemoryRegister, r)
}

// SystemSharedMemoryUnregister removes a region from every partition.
func (a *Aggregate) SystemSharedMemoryUnregister(ctx context.Context, r *tritonpb.SystemSharedMemoryUnregisterRequest) (*tritonpb.SystemSharedMemoryUnregisterResponse, error) {
	return tell(ctx, a, a.up(), "", tritonpb.GRPCInferenceServiceClient.SystemSharedMemoryUnregister, r)
}

// CudaSharedMemoryStatus lists the regions that every partition that is up has.
func (a *Aggregate) CudaSharedMemoryStatus(ctx context.Context, r *tritonpb.CudaSharedMemoryStatusRequest) (*tritonpb.CudaSharedMemoryStatusResponse, error) {
	answers, err := fromAll(ctx, a, tritonpb.GRPCInferenceServiceClient.CudaSharedMemoryStatus, r)
	if err != nil {
		return nil, err
	}
	for _, other := range answers[1:] {
		maps.DeleteFunc(answers[0].Regions, func(name string, mine *cudaRegion) bool { return !proto.Equal(mine, other.GetRegions()[name]) })
	}
	return answers[0], nil
}

// CudaSharedMemoryRegister registers a region with every partition. One whose server does not see the GPU that the
// memory is on denies it, and then no partition has it.
func (a *Aggregate) CudaSharedMemoryRegister(ctx context.Context, r *tritonpb.CudaSharedMemoryRegisterRequest) (*tritonpb.CudaSharedMemoryRegisterResponse, error) {
	return tell(ctx, a, a.up(), "", tritonpb.GRPCInferenceServiceClient.CudaSharedMemoryRegister, r)
}

// CudaSharedMemoryUnregister removes a region from every partition.
func (a *Aggregate) CudaSharedMemoryUnregister(ctx context.Context, r *tritonpb.CudaSharedMemoryUnregisterRequest) (*tritonpb.CudaSharedMemoryUnregisterResponse, error) {
	return tell(ctx, a, a.up(), "", tritonpb.GRPCInferenceServiceClient.CudaSharedMemoryUnregister, r)
}

// fromAll asks every partition that is up; those that cannot be reached are left out. The first denial is the error: a
// region that one of them does not have cannot be used.
func fromAll[Q, A any](ctx context.Context, a *Aggregate, m method[Q, A], request Q) ([]A, error) {
	var list []A
	failure := errNoneUp()
	answers, failures := askAll(ctx, a, a.up(), m, request)
	for i, err := range failures {
		switch status.Code(err) {
		case codes.OK:
			list = append(list, answers[i])
		case codes.Unavailable, codes.DeadlineExceeded:
			failure = err
		default:
			return nil, err
		}
	}
	if len(list) == 0 {
		return nil, failure
	}
	return list, nil
}
