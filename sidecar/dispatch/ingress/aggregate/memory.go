// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonjson"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/dispatch/ingress/guard"
)

// memory holds the settings and regions that clients have set on all servers: a
// server that starts later, or comes back, begins with Triton's defaults and must
// receive them again.
type memory struct {
	mu     sync.Mutex
	orders map[key]proto.Message
}

// key is what an order is about. Servers accept orders in the order of keys.
type key struct {
	kind kind
	name string // of the model, "" for the server's trace setting, or of the region
}

type kind int

const (
	ofLog kind = iota
	ofTrace
	ofSystem
	ofCUDA
)

// keep keeps an order, setting by setting in place of earlier ones about the same.
func (m *memory) keep(k key, order proto.Message) {
	m.mu.Lock()
	defer m.mu.Unlock()
	kept := m.orders[k]
	if kept == nil || k.kind == ofSystem || k.kind == ofCUDA {
		m.orders[k] = proto.Clone(order)
		return
	}
	proto.Merge(kept, order)
}

// forget drops one region; all of the kind for the empty name, as Triton does.
func (m *memory) forget(region key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.orders, func(k key, _ proto.Message) bool {
		return k.kind == region.kind && (region.name == "" || k.name == region.name)
	})
}

// sorted are copies of all orders, in an order in which a server accepts them.
func (m *memory) sorted() []proto.Message {
	m.mu.Lock()
	defer m.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(m.orders), func(x, y key) int {
		return cmp.Or(cmp.Compare(x.kind, y.kind), strings.Compare(x.name, y.name))
	})
	all := make([]proto.Message, len(keys))
	for i, k := range keys {
		all[i] = proto.Clone(m.orders[k])
	}
	return all
}

// remember records an order that every server has accepted.
func (a *Aggregate) remember(order proto.Message) {
	switch r := order.(type) {
	case *tritonpb.LogSettingsRequest:
		if len(r.GetSettings()) > 0 { // else it is a query
			a.memory.keep(key{ofLog, ""}, r)
		}
	case *tritonpb.TraceSettingRequest:
		if len(r.GetSettings()) > 0 {
			a.memory.keep(key{ofTrace, r.GetModelName()}, r)
		}
	case *tritonpb.SystemSharedMemoryRegisterRequest:
		a.memory.keep(key{ofSystem, r.GetName()}, r)
		a.o.Regions.Registered(r.GetName(), r.GetKey(), r.GetOffset(), r.GetByteSize())
	case *tritonpb.SystemSharedMemoryUnregisterRequest:
		a.memory.forget(key{ofSystem, r.GetName()})
		a.o.Regions.Unregistered(r.GetName())
	case *tritonpb.CudaSharedMemoryRegisterRequest:
		a.memory.keep(key{ofCUDA, r.GetName()}, r)
	case *tritonpb.CudaSharedMemoryUnregisterRequest:
		a.memory.forget(key{ofCUDA, r.GetName()})
	}
}

// Replay sends a server what clients have set on all servers before. The error has
// the server's denials, except for a region that it has already and a trace
// setting of a model that it does not have.
func (a *Aggregate) Replay(ctx context.Context, server grpc.ClientConnInterface) error {
	var errs []error
	for _, order := range a.memory.sorted() {
		err := a.give(ctx, server, order)
		trace, _ := order.(*tritonpb.TraceSettingRequest)
		if code := status.Code(err); code != codes.AlreadyExists && (code != codes.InvalidArgument || trace.GetModelName() == "") {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("settings of clients: %w", err)
	}
	return nil
}

// Remember records a setting that servers have accepted over HTTP: its path, as in
// Triton's protocol, and its JSON body. It ignores what it does not understand.
func (a *Aggregate) Remember(path string, body []byte) {
	if order := orderOf(strings.Split(strings.Trim(path, "/"), "/"), body); order != nil {
		a.remember(order)
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
		return &tritonpb.LogSettingsRequest{Settings: settingsOf(body, logOf)}
	case at(1) == "trace":
		return &tritonpb.TraceSettingRequest{Settings: settingsOf(body, traceOf)}
	case at(1) == "models" && (at(3) == "trace" || at(3) == "versions" && at(5) == "trace"):
		return &tritonpb.TraceSettingRequest{ModelName: at(2), Settings: settingsOf(body, traceOf)}
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
	doc, err := tritonjson.Parse(body)
	if err != nil {
		return nil
	}
	root := doc.Root()
	key := text(root, "key")
	size, offset := number(root, "byte_size"), number(root, "offset")
	if system {
		if guard.Region(key, offset, size) != nil {
			return nil // the front denies it too
		}
		return &tritonpb.SystemSharedMemoryRegisterRequest{Name: region, Key: key, Offset: offset, ByteSize: size}
	}
	handle, _ := root.Find("raw_handle")
	return &tritonpb.CudaSharedMemoryRegisterRequest{Name: region, RawHandle: triton.LenientBase64(text(handle, "b64")), DeviceId: int64(number(root, "device_id")), ByteSize: size}
}

// text and number read members as a server does: of several members of one name
// the first, and no other whose name only looks alike.
func text(v tritonjson.Value, name string) string {
	member, _ := v.Find(name)
	s, _ := member.AsString()
	return strings.Clone(s)
}

func number(v tritonjson.Value, name string) uint64 {
	member, _ := v.Find(name)
	n, _ := member.AsUint()
	return n
}

// settingsOf reads the members of an object, of several of one name the first; read is false for what is no setting.
func settingsOf[S any](body []byte, read func(tritonjson.Value) (S, bool)) map[string]S {
	all := map[string]S{}
	doc, err := tritonjson.Parse(body)
	if err != nil {
		return all
	}
	seen := map[string]bool{}
	for name, value := range doc.Root().Members() {
		if !seen[name] {
			name = strings.Clone(name)
			seen[name] = true
			if s, ok := read(value); ok {
				all[name] = s
			}
		}
	}
	return all
}

func logOf(v tritonjson.Value) (s *tritonpb.LogSettingsRequest_SettingValue, ok bool) {
	s = &tritonpb.LogSettingsRequest_SettingValue{}
	if flag, err := v.AsBool(); err == nil {
		s.ParameterChoice = &tritonpb.LogSettingsRequest_SettingValue_BoolParam{BoolParam: flag}
	} else if n, err := v.AsUint(); err == nil {
		s.ParameterChoice = &tritonpb.LogSettingsRequest_SettingValue_Uint32Param{Uint32Param: uint32(n)}
	} else if t, err := v.AsString(); err == nil {
		s.ParameterChoice = &tritonpb.LogSettingsRequest_SettingValue_StringParam{StringParam: strings.Clone(t)}
	}
	return s, s.ParameterChoice != nil
}

// traceOf reads a trace setting; null stands for one that is taken back.
func traceOf(v tritonjson.Value) (*tritonpb.TraceSettingRequest_SettingValue, bool) {
	s := &tritonpb.TraceSettingRequest_SettingValue{}
	if t, err := v.AsString(); err == nil {
		s.Value = []string{strings.Clone(t)}
	}
	for element := range v.Elements() {
		if t, err := element.AsString(); err == nil {
			s.Value = append(s.Value, strings.Clone(t))
		}
	}
	return s, true
}
