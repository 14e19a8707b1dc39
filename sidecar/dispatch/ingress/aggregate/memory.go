// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"context"
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

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/guard"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/tritonjson"
)

// memory holds the settings and regions that clients have set on all servers: a
// server that starts later, or comes back, begins with Triton's defaults and must
// receive them again.
type memory struct {
	regions Regions // records system shared memory

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

// remember records an order that every server has accepted. A later one wins,
// setting by setting.
func (m *memory) remember(order proto.Message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch r := proto.Clone(order).(type) {
	case *tritonpb.LogSettingsRequest:
		maps.Copy(m.log.Settings, r.GetSettings())
	case *tritonpb.TraceSettingRequest:
		if len(r.GetSettings()) == 0 {
			return // a query
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

// orders returns all that is recorded, in an order in which a server accepts it.
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

// Replay sends the server at a gRPC address what clients have set on all servers
// before. The error has the server's refusals, except for a region that it has
// already and a trace setting of a model that it does not have.
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

// Remember records a setting that servers have accepted over HTTP: its path, as in
// Triton's protocol, and its JSON body. It ignores what it does not understand.
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
	doc, err := tritonjson.Parse(body, tritonjson.DefaultMaxDepth)
	if err != nil {
		return nil
	}
	root := doc.Root()
	key, _ := text(root, "key")
	size, offset := number(root, "byte_size"), number(root, "offset")
	if system {
		if guard.Region(key, offset, size) != nil {
			return nil // the front refuses it too
		}
		return &tritonpb.SystemSharedMemoryRegisterRequest{Name: region, Key: key, Offset: offset, ByteSize: size}
	}
	handle, _ := root.Find("raw_handle")
	b64, _ := text(handle, "b64")
	return &tritonpb.CudaSharedMemoryRegisterRequest{Name: region, RawHandle: triton.LenientBase64(b64), DeviceId: int64(number(root, "device_id")), ByteSize: size}
}

// text and number read members as a server does: of several members of one name
// the first, and no other whose name only looks alike.
func text(v tritonjson.Value, name string) (string, bool) {
	member, ok := v.Find(name)
	if !ok {
		return "", false
	}
	s, err := member.AsString()
	return strings.Clone(s), err == nil
}

func number(v tritonjson.Value, name string) uint64 {
	member, _ := v.Find(name)
	n, _ := member.AsUint()
	return n
}

// membersOf returns the members of an object, of several of one name the first.
func membersOf(body []byte) map[string]tritonjson.Value {
	doc, err := tritonjson.Parse(body, tritonjson.DefaultMaxDepth)
	if err != nil || doc.Root().Kind() != tritonjson.Object {
		return nil
	}
	all := map[string]tritonjson.Value{}
	for name, value := range doc.Root().Members() {
		if _, double := all[name]; !double {
			all[strings.Clone(name)] = value
		}
	}
	return all
}

func logOf(body []byte) proto.Message {
	r := &tritonpb.LogSettingsRequest{Settings: map[string]*tritonpb.LogSettingsRequest_SettingValue{}}
	for name, value := range membersOf(body) {
		v := &tritonpb.LogSettingsRequest_SettingValue{}
		if flag, err := value.AsBool(); err == nil {
			v.ParameterChoice = &tritonpb.LogSettingsRequest_SettingValue_BoolParam{BoolParam: flag}
		} else if n, err := value.AsUint(); err == nil {
			v.ParameterChoice = &tritonpb.LogSettingsRequest_SettingValue_Uint32Param{Uint32Param: uint32(n)}
		} else if s, err := value.AsString(); err == nil {
			v.ParameterChoice = &tritonpb.LogSettingsRequest_SettingValue_StringParam{StringParam: strings.Clone(s)}
		} else {
			continue
		}
		r.Settings[name] = v
	}
	return r
}

// traceOf reads a trace setting; null stands for a setting that is taken back.
func traceOf(model string, body []byte) proto.Message {
	r := &tritonpb.TraceSettingRequest{ModelName: model, Settings: map[string]*tritonpb.TraceSettingRequest_SettingValue{}}
	for name, value := range membersOf(body) {
		v := &tritonpb.TraceSettingRequest_SettingValue{}
		if s, err := value.AsString(); err == nil {
			v.Value = []string{strings.Clone(s)}
		} else if value.Kind() == tritonjson.Array {
			for element := range value.Elements() {
				if s, err := element.AsString(); err == nil {
					v.Value = append(v.Value, strings.Clone(s))
				}
			}
		}
		r.Settings[name] = v
	}
	return r
}
