// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate_test

import (
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
)

// late is a server that starts after clients have made their settings.
func late(t *testing.T) (*triton, *grpc.ClientConn) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := &triton{settings: newSettings()}
	server := grpc.NewServer()
	tritonpb.RegisterGRPCInferenceServiceServer(server, s)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return s, dial(t, l.Addr().String())
}

func setLog(name string, value uint32) *tritonpb.LogSettingsRequest {
	return &tritonpb.LogSettingsRequest{Settings: map[string]*tritonpb.LogSettingsRequest_SettingValue{
		name: {ParameterChoice: &tritonpb.LogSettingsRequest_SettingValue_Uint32Param{Uint32Param: value}},
	}}
}

func trace(model string, values map[string][]string) *tritonpb.TraceSettingRequest {
	r := &tritonpb.TraceSettingRequest{ModelName: model, Settings: map[string]*tritonpb.TraceSettingRequest_SettingValue{}}
	for name, v := range values {
		r.Settings[name] = &tritonpb.TraceSettingRequest_SettingValue{Value: v}
	}
	return r
}

// Settings that clients have made over gRPC or HTTP are sent to a server that
// starts later: the last value of each setting, no queries, and no region that was
// unregistered.
func TestSettingsAreReplayed(t *testing.T) {
	_, a := newWorld(t)
	ctx := t.Context()
	for _, r := range []*tritonpb.LogSettingsRequest{setLog("log_verbose_level", 1), setLog("log_verbose_level", 3), {}} {
		_, err := a.LogSettings(ctx, r)
		require.NoError(t, err)
	}
	_, err := a.TraceSetting(ctx, trace("", map[string][]string{"trace_rate": {"10"}}))
	require.NoError(t, err)
	for _, name := range []string{"kept", "gone"} {
		_, err = a.SystemSharedMemoryRegister(ctx, &tritonpb.SystemSharedMemoryRegisterRequest{Name: name, Key: "/" + name, ByteSize: 8})
		require.NoError(t, err)
	}
	a.Remember("/v2/systemsharedmemory/region/gone/unregister", nil)
	a.Remember("/v2/logging", []byte(`{"log_info":false,"log_file":"x"}`))
	a.Remember("/v2/trace/setting", []byte(`{"trace_level":["TIMESTAMPS"],"trace_count":null}`))
	a.Remember("/v2/systemsharedmemory/region/web/register", []byte(`{"key":"/web","offset":4,"byte_size":16}`))
	a.Remember("/v2/cudasharedmemory/region/gpu/register", []byte(`{"raw_handle":{"b64":"AQI="},"device_id":1,"byte_size":2}`))
	a.Remember("/v2/cudasharedmemory/unregister", nil)
	a.Remember("/v2/logging", []byte(`garbage`))

	s, server := late(t)
	require.NoError(t, a.Replay(ctx, server))
	log := setLog("log_verbose_level", 3)
	log.Settings["log_info"] = &tritonpb.LogSettingsRequest_SettingValue{ParameterChoice: &tritonpb.LogSettingsRequest_SettingValue_BoolParam{}}
	log.Settings["log_file"] = &tritonpb.LogSettingsRequest_SettingValue{ParameterChoice: &tritonpb.LogSettingsRequest_SettingValue_StringParam{StringParam: "x"}}
	want := []proto.Message{
		log,
		trace("", map[string][]string{"trace_rate": {"10"}, "trace_level": {"TIMESTAMPS"}, "trace_count": nil}),
		&tritonpb.SystemSharedMemoryRegisterRequest{Name: "kept", Key: "/kept", ByteSize: 8},
		&tritonpb.SystemSharedMemoryRegisterRequest{Name: "web", Key: "/web", Offset: 4, ByteSize: 16},
	}
	got := s.settings.orders
	require.Len(t, got, len(want))
	for i := range want {
		require.True(t, proto.Equal(want[i], got[i]), "%v is not %v", got[i], want[i])
	}
}

// TestADoubledKeyIsReadAsServersReadIt: the first member of a name is the one that a server uses, and that the guard has checked. Another one, or
// one that differs in its case, is not sent to the next server.
func TestADoubledKeyIsReadAsServersReadIt(t *testing.T) {
	_, a := newWorld(t)
	a.Remember("/v2/systemsharedmemory/region/r/register", []byte(`{"key":"/mine","key":"/conch-theirs","KEY":"/triton_python_backend_shm_region_1","offset":0,"byte_size":8,"Byte_Size":99}`))
	a.Remember("/v2/systemsharedmemory/region/theirs/register", []byte(`{"key":"/conch-theirs","byte_size":8}`))
	a.Remember("/v2/logging", []byte(`{"log_verbose_level":1,"log_verbose_level":4,"LOG_VERBOSE_LEVEL":5}`))
	s, server := late(t)
	_ = a.Replay(t.Context(), server) // the server has no setting of the other name
	require.Equal(t, map[string]string{"r": "/mine"}, s.settings.regions)
	require.EqualValues(t, 1, s.settings.level)
}

// If nothing was set, nothing is sent: the server need not even run.
func TestNothingToReplay(t *testing.T) {
	_, a := newWorld(t)
	a.Remember("/v2/logging", []byte(`garbage`))
	require.NoError(t, a.Replay(t.Context(), dial(t, "127.0.0.1:1")))
}
