// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// memoryCases are the shared memory API as far as it needs no memory.
func memoryCases() []Case {
	region := func(v string, sized bool) map[string]*pb.InferParameter {
		p := map[string]*pb.InferParameter{"shared_memory_region": inferParameter(v)}
		if sized {
			p["shared_memory_byte_size"] = inferParameter(8)
		}
		return p
	}
	return []Case{
		{"memory/no regions", func(e *Env) {
			r, err := e.Client.Stub.SystemSharedMemoryStatus(e.ctx(), &pb.SystemSharedMemoryStatusRequest{})
			require.NoError(e, err)
			require.Empty(e, r.Regions)
			e.wantHTTP(e.call("GET", "/v2/systemsharedmemory/status", ""), 200, jsonType, "[]")
			e.wantHTTP(e.call("GET", "/v2/cudasharedmemory/status", ""), 200, jsonType, "[]")
		}},
		{"memory/unknown region", func(e *Env) {
			_, err := e.Client.Stub.SystemSharedMemoryStatus(e.ctx(), &pb.SystemSharedMemoryStatusRequest{Name: "x"})
			e.refused(err, codes.NotFound, "Unable to find system shared memory region: 'x'")
			_, err = e.Client.Stub.CudaSharedMemoryStatus(e.ctx(), &pb.CudaSharedMemoryStatusRequest{Name: "x"})
			e.refused(err, codes.NotFound, "Unable to find cuda shared memory region: 'x'")
			_, err = e.Client.Stub.SystemSharedMemoryUnregister(e.ctx(), &pb.SystemSharedMemoryUnregisterRequest{Name: "x"})
			require.NoError(e, err)
		}},
		{"memory/register what is not there", func(e *Env) {
			_, err := e.Client.Stub.SystemSharedMemoryRegister(e.ctx(), &pb.SystemSharedMemoryRegisterRequest{Name: "a", Key: "/no-such-key-of-the-suite", ByteSize: 8})
			e.refused(err, codes.Internal, "Unable to open shared memory region: '/no-such-key-of-the-suite'")
		}},
		{"memory/infer from an unknown region", func(e *Env) {
			r := request("identity", declare("INPUT0", "FP32", shape(1, 2)))
			r.Inputs[0].Parameters = region("zz", true)
			_, err := e.Client.Stub.ModelInfer(e.ctx(), r)
			e.refused(err, codes.NotFound, "Unable to find shared memory region: 'zz'")
			r.Inputs[0].Parameters = region("zz", false)
			_, err = e.Client.Stub.ModelInfer(e.ctx(), r)
			e.refused(err, codes.InvalidArgument, "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'INPUT0'")
		}},
	}
}
