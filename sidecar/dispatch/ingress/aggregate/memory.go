// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// memory is what clients have set on all servers: a server that starts later, or
// comes back, begins with Triton's defaults and must be told again.
type memory struct {
	regions Regions // told of system shared memory

	mu     sync.Mutex
	log    *tritonpb.LogSettingsRequest
	trace  map[string]*tritonpb.TraceSettingRequest // by model; "" is the server's
	system map[string]*tritonpb.SystemSharedMemoryRegisterRequest
	cuda   map[string]*tritonpb.CudaSharedMemoryRegisterRequest
}

func newMemory(regions Regions) *memory {
	return &memory{
		regions: regions,
		log:     &tritonpb.LogSettingsRequest{Settings: map[string]*tritonpb.LogSettingsRequest_SettingValue{}}, trace: map[string]*tritonpb.TraceSettingRequest{},
		system: map[string]*tritonpb.SystemSharedMemoryRegisterRequest{}, cuda: map[string]*tritonpb.CudaSharedMemoryRegisterRequest{},
	}
}

// remember takes an order in that every server has accepted. A later one wins,
// setting by setting.
func (m *memory) remember(order proto.Message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch r := proto.Clone(order).(type) {
	case *tritonpb.LogSettingsRequest:
		maps.Copy(m.log.Settings, r.GetSettings())
	case *tritonpb.TraceSettingRequest:
		if len(r.GetSettings()) == 0 {
			return // a question
		}
		if m.trace[r.GetModelName()] == nil {
			m.trace[r.GetModelName()] = &tritonpb.TraceSettingRequest{ModelName: r.GetModelName(), Settings: map[string]*tritonpb.TraceSettingRequest_SettingValue{}}
		}
		maps.Copy(m.trace[r.GetModelName()].Settings, r.GetSettings())
	case *tritonpb.SystemSharedMemoryRegisterRequest:
		m.system[r.GetName()] = r
		m.regions.Registered(r.GetName(), r.GetKey(), r.GetOffset(), r.GetByteSize())
	case *tritonpb.SystemSharedMemoryUnregisterRequest:
		forget(m.system, r.GetName())
		m.regions.Unregistered(r.GetName())
	case *tritonpb.CudaSharedMemoryRegisterRequest:
		m.cuda[r.GetName()] = r
	case *tritonpb.CudaSharedMemoryUnregisterRequest:
		forget(m.cuda, r.GetName())
	}
}

// forget drops one region; all of them for the empty name, as Triton does.
func forget[T any](regions map[string]T, name string) {
	if name == "" {
		clear(regions)
	}
	delete(regions, name)
}

// orders are all that is remembered, in an order in which a server takes it.
func (m *memory) orders() []proto.Message {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []proto.Message
	if len(m.log.GetSettings()) > 0 {
		all = append(all, proto.Clone(m.log))
	}
	all = append(all, sorted(m.trace)...)
	all = append(all, sorted(m.system)...)
	return append(all, sorted(m.cuda)...)
}

func sorted[T proto.Message](by map[string]T) []proto.Message {
	all := make([]proto.Message, 0, len(by))
	for _, name := range slices.Sorted(maps.Keys(by)) {
		all = append(all, proto.Clone(by[name]))
	}
	return all
}

// Replay tells the server at a gRPC address what clients have set on all servers
// before. A region that it has already, or a trace setting of a model that it does
// not have, is none of its faults; other refusals are in the error.
func (a *Aggregate) Replay(ctx context.Context, endpoint string) error {
	orders := a.memory.orders()
	if len(orders) == 0 {
		return nil
	}
	target := endpoint
	if !strings.HasPrefix(endpoint, "unix:") {
		target = "passthrough:///" + endpoint
	}
	how := a.o.Credentials
	if how == nil {
		how = insecure.NewCredentials()
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(how), grpc.WithNoProxy())
	if err != nil {
		return fmt.Errorf("settings of %s: %w", endpoint, err)
	}
	defer func() { _ = conn.Close() }() // nothing is under way any more
	client := tritonpb.NewGRPCInferenceServiceClient(conn)
	var errs []error
	for _, order := range orders {
		within, cancel := context.WithTimeout(ctx, a.o.Timeout)
		errs = append(errs, replay(within, client, order))
		if r, ok := order.(*tritonpb.SystemSharedMemoryRegisterRequest); ok {
			a.o.Regions.Registered(r.GetName(), r.GetKey(), r.GetOffset(), r.GetByteSize())
		}
		cancel()
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("settings of %s: %w", endpoint, err)
	}
	return nil
}

func replay(ctx context.Context, client tritonpb.GRPCInferenceServiceClient, order proto.Message) error {
	var err error
	switch r := order.(type) {
	case *tritonpb.LogSettingsRequest:
		_, err = client.LogSettings(ctx, r)
	case *tritonpb.TraceSettingRequest:
		if _, err = client.TraceSetting(ctx, r); r.GetModelName() != "" && status.Code(err) == codes.InvalidArgument {
			return nil
		}
	case *tritonpb.SystemSharedMemoryRegisterRequest:
		_, err = client.SystemSharedMemoryRegister(ctx, r)
	case *tritonpb.CudaSharedMemoryRegisterRequest:
		_, err = client.CudaSharedMemoryRegister(ctx, r)
	}
	if status.Code(err) == codes.AlreadyExists {
		return nil
	}
	return err
}

// Remember takes in a setting that servers have accepted over HTTP: its path, as
// in Triton's protocol, and its JSON body. What it does not understand it leaves.
func (a *Aggregate) Remember(path string, body []byte) {
	if order := orderOf(strings.Split(strings.Trim(path, "/"), "/"), body); order != nil {
		a.memory.remember(order)
	}
}

func orderOf(parts []string, body []byte) proto.Message {
	at := func(i int) string {
		if i < len(parts) {
			return parts[i]
		}
		return ""
	}
	last := parts[len(parts)-1]
	switch {
	case at(1) == "logging":
		return logOf(body)
	case at(1) == "trace":
		return traceOf("", body)
	case at(1) == "models" && at(3) == "trace":
		return traceOf(at(2), body)
	case at(1) == "models" && at(3) == "versions" && at(5) == "trace":
		return traceOf(at(2), body)
	case at(1) != "systemsharedmemory" && at(1) != "cudasharedmemory":
		return nil
	}
	region := ""
	if at(2) == "region" {
		region = at(3)
	}
	system := at(1) == "systemsharedmemory"
	switch {
	case last == "unregister" && system:
		return &tritonpb.SystemSharedMemoryUnregisterRequest{Name: region}
	case last == "unregister":
		return &tritonpb.CudaSharedMemoryUnregisterRequest{Name: region}
	case last != "register":
		return nil
	}
	var said struct {
		Key       string `json:"key"`
		Offset    uint64 `json:"offset"`
		ByteSize  uint64 `json:"byte_size"`
		DeviceID  int64  `json:"device_id"`
		RawHandle struct {
			B64 []byte `json:"b64"`
		} `json:"raw_handle"`
	}
	if json.Unmarshal(body, &said) != nil {
		return nil
	}
	if system {
		return &tritonpb.SystemSharedMemoryRegisterRequest{Name: region, Key: said.Key, Offset: said.Offset, ByteSize: said.ByteSize}
	}
	return &tritonpb.CudaSharedMemoryRegisterRequest{Name: region, RawHandle: said.RawHandle.B64, DeviceId: said.DeviceID, ByteSize: said.ByteSize}
}

func logOf(body []byte) proto.Message {
	said := map[string]any{}
	if json.Unmarshal(body, &said) != nil {
		return nil
	}
	r := &tritonpb.LogSettingsRequest{Settings: map[string]*tritonpb.LogSettingsRequest_SettingValue{}}
	for name, value := range said {
		v := &tritonpb.LogSettingsRequest_SettingValue{}
		switch value := value.(type) {
		case bool:
			v.ParameterChoice = &tritonpb.LogSettingsRequest_SettingValue_BoolParam{BoolParam: value}
		case float64:
			v.ParameterChoice = &tritonpb.LogSettingsRequest_SettingValue_Uint32Param{Uint32Param: uint32(value)}
		case string:
			v.ParameterChoice = &tritonpb.LogSettingsRequest_SettingValue_StringParam{StringParam: value}
		default:
			continue
		}
		r.Settings[name] = v
	}
	return r
}

// traceOf reads a trace setting; null stands for a setting that is taken back.
func traceOf(model string, body []byte) proto.Message {
	said := map[string]any{}
	if json.Unmarshal(body, &said) != nil {
		return nil
	}
	r := &tritonpb.TraceSettingRequest{ModelName: model, Settings: map[string]*tritonpb.TraceSettingRequest_SettingValue{}}
	for name, value := range said {
		v := &tritonpb.TraceSettingRequest_SettingValue{}
		switch value := value.(type) {
		case string:
			v.Value = []string{value}
		case []any:
			for _, one := range value {
				if text, ok := one.(string); ok {
					v.Value = append(v.Value, text)
				}
			}
		}
		r.Settings[name] = v
	}
	return r
}
