// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package triton_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// table is testdata/triton-wire.json. Comparing our descriptors in its own form shows a difference in either direction.
type table struct {
	Services map[string]service
	Messages map[string]message
	Enums    map[string]enum
}

type service struct {
	File    string
	Methods []method
}

type method struct {
	Name, Input, Output string
	ClientStreaming     bool `json:"client_streaming"`
	ServerStreaming     bool `json:"server_streaming"`
}

type message struct {
	File   string
	Oneofs []string
	Fields []field
}

type field struct {
	Number        int32
	Name          string
	JSONName      string `json:"json_name"`
	Type          string
	TypeName      string `json:"type_name"`
	Label         string
	Presence      string
	Packed        bool
	Oneof         string
	KeyType       string `json:"key_type"`
	ValueType     string `json:"value_type"`
	ValueTypeName string `json:"value_type_name"`
}

type enum struct {
	File   string
	Values []struct {
		Name   string
		Number int32
	}
}

// describe puts a file's descriptors into the table's form.
func describe(t *table, fd protoreflect.FileDescriptor) {
	file := fd.Path()[strings.LastIndexByte(fd.Path(), '/')+1:]
	for i := range fd.Services().Len() {
		sd := fd.Services().Get(i)
		s := service{File: file}
		for k := range sd.Methods().Len() {
			m := sd.Methods().Get(k)
			s.Methods = append(s.Methods, method{string(m.Name()), string(m.Input().FullName()), string(m.Output().FullName()), m.IsStreamingClient(), m.IsStreamingServer()})
		}
		t.Services[string(sd.FullName())] = s
	}
	describeEnums(t, file, fd.Enums())
	describeMessages(t, file, fd.Messages())
}

func describeEnums(t *table, file string, enums protoreflect.EnumDescriptors) {
	for i := range enums.Len() {
		e := enum{File: file}
		for k := range enums.Get(i).Values().Len() {
			v := enums.Get(i).Values().Get(k)
			e.Values = append(e.Values, struct {
				Name   string
				Number int32
			}{string(v.Name()), int32(v.Number())})
		}
		t.Enums[string(enums.Get(i).FullName())] = e
	}
}

func describeMessages(t *table, file string, messages protoreflect.MessageDescriptors) {
	for i := range messages.Len() {
		md := messages.Get(i)
		if md.IsMapEntry() {
			continue
		}
		m := message{File: file, Oneofs: []string{}, Fields: []field{}}
		for k := range md.Oneofs().Len() {
			m.Oneofs = append(m.Oneofs, string(md.Oneofs().Get(k).Name()))
		}
		for k := range md.Fields().Len() {
			m.Fields = append(m.Fields, describeField(md.Fields().Get(k)))
		}
		t.Messages[string(md.FullName())] = m
		describeEnums(t, file, md.Enums())
		describeMessages(t, file, md.Messages())
	}
}

func describeField(fd protoreflect.FieldDescriptor) field {
	typeName := func(fd protoreflect.FieldDescriptor) string {
		switch fd.Kind() {
		case protoreflect.MessageKind:
			return string(fd.Message().FullName())
		case protoreflect.EnumKind:
			return string(fd.Enum().FullName())
		default:
			return ""
		}
	}
	f := field{Number: int32(fd.Number()), Name: string(fd.Name()), JSONName: fd.JSONName()}
	if fd.IsMap() {
		f.Type, f.Label = "map", "map"
		f.KeyType, f.ValueType, f.ValueTypeName = fd.MapKey().Kind().String(), fd.MapValue().Kind().String(), typeName(fd.MapValue())
		return f
	}
	f.Type, f.TypeName, f.Label = fd.Kind().String(), typeName(fd), "optional"
	if fd.IsList() {
		f.Label, f.Packed = "repeated", fd.IsPacked()
		return f
	}
	f.Presence = "implicit"
	if fd.HasPresence() {
		f.Presence = "explicit"
	}
	if o := fd.ContainingOneof(); o != nil {
		f.Oneof = string(o.Name())
	}
	return f
}

func readTable(t *testing.T) table {
	t.Helper()
	text, err := os.ReadFile("testdata/triton-wire.json")
	require.NoError(t, err)
	var want table
	require.NoError(t, json.Unmarshal(text, &want))
	return want
}

// TestWireTable holds our descriptors, and grpc-go's for health, to the contract of Triton's own .proto files.
func TestWireTable(t *testing.T) {
	want := readTable(t)
	ours := table{Services: map[string]service{}, Messages: map[string]message{}, Enums: map[string]enum{}}
	describe(&ours, tritonpb.File_model_config_proto)
	describe(&ours, tritonpb.File_grpc_service_proto)
	health := table{Services: map[string]service{}, Messages: map[string]message{}, Enums: map[string]enum{}}
	describe(&health, grpc_health_v1.File_grpc_health_v1_health_proto)

	const healthService = "grpc.health.v1."
	services, messages := 0, 0
	for name, s := range want.Services {
		if strings.HasPrefix(name, healthService) {
			for _, m := range s.Methods { // grpc-go has more methods (Watch, List); Triton's must be among them
				require.Contains(t, health.Services[name].Methods, m, name)
			}
			continue
		}
		services++
		require.Equal(t, s, ours.Services[name], "service %s", name)
	}
	for name, m := range want.Messages {
		got := ours.Messages[name]
		if strings.HasPrefix(name, healthService) {
			got = health.Messages[name]
		} else {
			messages++
		}
		require.Equal(t, m.Oneofs, got.Oneofs, "oneofs of %s", name)
		require.ElementsMatch(t, m.Fields, got.Fields, "fields of %s", name)
		require.Equal(t, m.File, got.File, "file of %s", name)
	}
	enums := 0
	for name, e := range want.Enums {
		if strings.HasPrefix(name, healthService) {
			for _, v := range e.Values { // grpc-go knows a newer value; Triton's must be among them
				require.Contains(t, health.Enums[name].Values, v, name)
			}
			continue
		}
		enums++
		require.Equal(t, e, ours.Enums[name], "enum %s", name)
	}
	// The other way: nothing of ours that the table does not have.
	require.Len(t, ours.Services, services)
	require.Len(t, ours.Messages, messages)
	require.Len(t, ours.Enums, enums)
	require.Greater(t, messages, 80, "the table is there")
}
