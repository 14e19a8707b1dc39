// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"encoding/base64"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	pb "github.com/conch-serving/conch/internal/triton/tritonpb"
)

// shared is a POSIX shared memory object of this process and the target, of one page.
type shared struct {
	e    *Env
	key  string
	path string
}

// pageSize is what a region's offset must be a multiple of.
const pageSize = 4096

// share makes an object with the given bytes at its beginning, and unregisters and removes everything afterwards.
func (e *Env) share(data []byte) *shared {
	e.Helper()
	f, err := os.CreateTemp("/dev/shm", "conch_conformance_"+strconv.Itoa(os.Getpid())+"_")
	require.NoError(e, err)
	s := &shared{e: e, path: f.Name(), key: "/" + filepath.Base(f.Name())}
	e.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(e.Context()), callTimeout) // the case's own has ended
		defer cancel()
		assert.Eventually(e, func() bool { // a real server may still hold what it has just answered from
			_, err := e.Client.Stub.SystemSharedMemoryUnregister(ctx, &pb.SystemSharedMemoryUnregisterRequest{})
			return err == nil
		}, callTimeout, 5*time.Millisecond)
		assert.NoError(e, os.Remove(s.path))
	})
	page := make([]byte, pageSize)
	copy(page, data)
	_, err = f.Write(page)
	require.NoError(e, err)
	require.NoError(e, f.Close())
	return s
}

// register makes a region of the object, or says why not.
func (s *shared) register(name string, offset, size uint64) error {
	_, err := s.e.Client.Stub.SystemSharedMemoryRegister(s.e.ctx(), &pb.SystemSharedMemoryRegisterRequest{Name: name, Key: s.key, Offset: offset, ByteSize: size})
	return err
}

// bytes reads the object.
func (s *shared) bytes(from, n int) []byte {
	s.e.Helper()
	data, err := os.ReadFile(s.path)
	require.NoError(s.e, err)
	return data[from : from+n]
}

// at places a tensor in a region. Offset and size are left out where nil; a value of another type than int is sent as it is.
func at(region, offset, size any) map[string]*pb.InferParameter {
	p := map[string]*pb.InferParameter{"shared_memory_region": inferParameter(region)}
	if offset != nil {
		p["shared_memory_offset"] = inferParameter(offset)
	}
	if size != nil {
		p["shared_memory_byte_size"] = inferParameter(size)
	}
	return p
}

// inputAt adds the input INPUT0, which is in shared memory.
func inputAt(datatype string, dims []int64, place map[string]*pb.InferParameter) option {
	return func(r *pb.ModelInferRequest) {
		r.Inputs = append(r.Inputs, &pb.ModelInferRequest_InferInputTensor{Name: "INPUT0", Datatype: datatype, Shape: dims, Parameters: place})
	}
}

// outputAt asks for the output OUTPUT0 in shared memory.
func outputAt(place map[string]*pb.InferParameter) option {
	return func(r *pb.ModelInferRequest) {
		r.Outputs = append(r.Outputs, &pb.ModelInferRequest_InferRequestedOutputTensor{Name: "OUTPUT0", Parameters: place})
	}
}

// memoryTensorCases are tensors in system shared memory, and the registration of regions as far as it needs memory.
func memoryTensorCases() []Case {
	cases := append(memoryInputCases(), memoryOutputCases()...)
	return append(append(cases, memoryRegionCases()...), memoryHTTPCases()...)
}

func memoryInputCases() []Case {
	pair := shape(1, 2)
	cases := make([]Case, 0, 32)
	for _, c := range []struct {
		name    string
		place   map[string]*pb.InferParameter
		code    codes.Code
		message string
		want    []byte
	}{
		{"the beginning", at("a", nil, 8), 0, "", fp32(0, 1)},
		{"an offset", at("a", 8, 8), 0, "", fp32(2, 3)},
		{"the end", at("a", 56, 8), 0, "", fp32(14, 15)},
		{"beyond the end", at("a", 60, 8), codes.InvalidArgument, "Invalid offset + byte size for shared memory region: 'a'", nil},
		{"an offset beyond the end", at("a", 64, 8), codes.InvalidArgument, "Invalid offset for shared memory region: 'a'", nil},
		{"larger than the region", at("a", nil, 65), codes.InvalidArgument, "Invalid offset + byte size for shared memory region: 'a'", nil},
		{"too few bytes", at("a", nil, 4), codes.InvalidArgument, noID + "input byte size mismatch for input 'INPUT0' for model 'identity'. Expected 8, got 4", nil},
		{"too many bytes", at("a", nil, 16), codes.InvalidArgument, noID + "input byte size mismatch for input 'INPUT0' for model 'identity'. Expected 8, got 16", nil},
		{"no bytes", at("a", nil, 0), codes.InvalidArgument, "Invalid offset + byte size for shared memory region: 'a'", nil},
		{"without a size", at("a", nil, nil), codes.InvalidArgument, "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'INPUT0'", nil},
		{"a size as text", at("a", nil, "8"), codes.InvalidArgument, "invalid value type for 'shared_memory_byte_size' parameter for tensor 'INPUT0', expected int64_param.", nil},
		{"an offset as text", at("a", "8", 8), codes.InvalidArgument, "invalid value type for 'shared_memory_offset' parameter for tensor 'INPUT0', expected int64_param.", nil},
		{"a region as number", at(3, nil, 8), codes.InvalidArgument, "invalid value type for 'shared_memory_region' parameter for tensor 'INPUT0', expected string_param.", nil},
		{"no such region", at("b", nil, 8), codes.NotFound, "Unable to find shared memory region: 'b'", nil},
	} {
		cases = append(cases, Case{"memory/input: " + c.name, func(e *Env) {
			s := e.share(seqFP32(16))
			require.NoError(e, s.register("a", 0, 64))
			resp, err := e.Client.Stub.ModelInfer(e.ctx(), request("identity", inputAt("FP32", pair, c.place)))
			if c.message != "" {
				e.refused(err, c.code, c.message)
				return
			}
			require.NoError(e, err)
			e.wantOutputs(resp, map[string]tensor{"OUTPUT0": {"FP32", pair, c.want}})
		}})
	}
	return append(cases,
		Case{"memory/input: one in memory, one in the message", func(e *Env) {
			s := e.share(seq16(0))
			require.NoError(e, s.register("a", 0, 64))
			ones := i32(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1)
			want := map[string]tensor{"OUTPUT0": {"INT32", shape(1, 16), seq16(1)}, "OUTPUT1": {"INT32", shape(1, 16), seq16(-1)}}
			e.wantOutputs(e.infer(request("add_sub", inputAt("INT32", shape(1, 16), at("a", nil, 64)), input("INPUT1", "INT32", shape(1, 16), ones))), want)
			e.wantOutputs(e.infer(request("add_sub", input("INPUT1", "INT32", shape(1, 16), ones), inputAt("INT32", shape(1, 16), at("a", nil, 64)))), want)
		}},
		Case{"memory/input: strings", func(e *Env) {
			s := e.share(bytesElements("ab", "c"))
			require.NoError(e, s.register("a", 0, 64))
			e.wantOutputs(e.infer(request("string", inputAt("BYTES", pair, at("a", nil, 11)))), map[string]tensor{"OUTPUT0": {"BYTES", pair, bytesElements("AB", "C")}})
			_, err := e.Client.Stub.ModelInfer(e.ctx(), request("string", inputAt("BYTES", pair, at("a", nil, 13))))
			e.refused(err, codes.InvalidArgument, noID+"incomplete string length indicator for inference input 'INPUT0' for model 'string', expecting 4 bytes but only 2 bytes available. "+
				"Please make sure the string length indicator is in one buffer.")
		}},
		Case{"memory/input: what is written later is read later", func(e *Env) {
			s := e.share(fp32(1, 2))
			require.NoError(e, s.register("a", 0, 64))
			r := request("identity", inputAt("FP32", pair, at("a", nil, 8)))
			e.wantOutputs(e.infer(r), map[string]tensor{"OUTPUT0": {"FP32", pair, fp32(1, 2)}})
			f, err := os.OpenFile(s.path, os.O_WRONLY, 0)
			require.NoError(e, err)
			_, err = f.WriteAt(fp32(7), 4)
			require.NoError(e, err)
			require.NoError(e, f.Close())
			e.wantOutputs(e.infer(r), map[string]tensor{"OUTPUT0": {"FP32", pair, fp32(1, 7)}})
		}},
		Case{"memory/input: on a stream", func(e *Env) {
			s := e.share(fp32(1, 2.5))
			require.NoError(e, s.register("a", 0, 64))
			messages := e.stream(request("identity", inputAt("FP32", pair, at("a", nil, 8)), id("m")), request("identity", inputAt("FP32", pair, at("z", nil, 8)), id("n")))
			require.Len(e, messages, 2)
			require.Equal(e, "m|identity|1|final|0000803F00002040", summary(messages[0]))
			require.Equal(e, "n|||error: Unable to find shared memory region: 'z'", summary(messages[1]))
		}},
	)
}

func memoryOutputCases() []Case {
	pair := shape(1, 2)
	cases := make([]Case, 0, 32)
	for _, c := range []struct {
		name    string
		place   map[string]*pb.InferParameter
		code    codes.Code
		message string
	}{
		{"beyond the end", at("a", 60, 8), codes.InvalidArgument, "Invalid offset + byte size for shared memory region: 'a'"},
		{"an offset beyond the end", at("a", 64, 8), codes.InvalidArgument, "Invalid offset for shared memory region: 'a'"},
		{"too small a place", at("a", 48, 4), codes.Internal, "shared memory size specified with the request for output 'OUTPUT0' (4 bytes) should be at least 8 bytes to hold the results"},
		{"without a size", at("a", 48, nil), codes.InvalidArgument, "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'OUTPUT0'"},
		{"no such region", at("b", nil, 8), codes.NotFound, "Unable to find shared memory region: 'b'"},
	} {
		cases = append(cases, Case{"memory/output: " + c.name, func(e *Env) {
			s := e.share(seqFP32(16))
			require.NoError(e, s.register("a", 0, 64))
			_, err := e.Client.Stub.ModelInfer(e.ctx(), identity(outputAt(c.place)))
			e.refused(err, c.code, c.message)
			require.Equal(e, seqFP32(16), s.bytes(0, 64), "nothing is written")
		}})
	}
	return append(cases,
		Case{"memory/output", func(e *Env) {
			s := e.share(seqFP32(16))
			require.NoError(e, s.register("a", 0, 64))
			for _, size := range []int{8, 16} {
				resp := e.infer(identity(outputAt(at("a", 48, size)), id("x")))
				require.Equal(e, "x", resp.Id)
				e.wantOutputs(resp, map[string]tensor{"OUTPUT0": {"FP32", pair, []byte{}}})
				require.Equal(e, fp32(11, 1, 2.5, 14, 15), s.bytes(44, 20))
			}
		}},
		Case{"memory/output: input and output in one region", func(e *Env) {
			s := e.share(fp32(1, 2, 3, 4))
			require.NoError(e, s.register("a", 0, 64))
			e.infer(request("identity", inputAt("FP32", pair, at("a", 8, 8)), outputAt(at("a", nil, 8))))
			require.Equal(e, fp32(3, 4, 3, 4), s.bytes(0, 16))
		}},
		Case{"memory/output: one in memory, one in the answer", func(e *Env) {
			s := e.share(nil)
			require.NoError(e, s.register("a", 0, 64))
			e.wantOutputs(e.infer(addSub(outputAt(at("a", nil, 64)), outputs("OUTPUT1"))),
				map[string]tensor{"OUTPUT0": {"INT32", shape(1, 16), []byte{}}, "OUTPUT1": {"INT32", shape(1, 16), seq16(-1)}})
			require.Equal(e, seq16(1), s.bytes(0, 64))
		}},
		Case{"memory/output: with classification", func(e *Env) {
			s := e.share(nil)
			require.NoError(e, s.register("a", 0, 64))
			place := at("a", nil, 64)
			place["classification"] = inferParameter(1)
			_, err := e.Client.Stub.ModelInfer(e.ctx(), identity(outputAt(place)))
			e.refused(err, codes.InvalidArgument, "output can't set both 'shared_memory_region' and 'classification'")
		}},
		Case{"memory/output: of several rows", func(e *Env) {
			s := e.share(seqFP32(16))
			require.NoError(e, s.register("a", 0, 64))
			e.wantOutputs(e.infer(request("identity", inputAt("FP32", shape(4, 2), at("a", nil, 32)), outputAt(at("a", 32, 32)))),
				map[string]tensor{"OUTPUT0": {"FP32", shape(4, 2), []byte{}}})
			require.Equal(e, s.bytes(0, 32), s.bytes(32, 32))
		}},
	)
}

// seqFP32 is 0 to n-1.
func seqFP32(n int) []byte {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(i)
	}
	return fp32(v...)
}

func memoryRegionCases() []Case {
	return []Case{
		{"memory/region: registered twice", func(e *Env) {
			s := e.share(nil)
			require.NoError(e, s.register("a", 0, 64))
			e.refused(s.register("a", 0, 64), codes.AlreadyExists, "shared memory region 'a' already in manager")
			e.refused(s.register("b", 0, 64), codes.Internal, "Invalid shared memory region: '"+s.key+"'")
		}},
		{"memory/region: status", func(e *Env) {
			s, other := e.share(nil), e.share(nil)
			require.NoError(e, s.register("a", 0, 64))
			require.NoError(e, other.register("b", 0, pageSize))
			want := func(names ...string) {
				resp, err := e.Client.Stub.SystemSharedMemoryStatus(e.ctx(), &pb.SystemSharedMemoryStatusRequest{})
				require.NoError(e, err)
				have := []string{}
				for name, region := range resp.Regions {
					require.Equal(e, name, region.Name)
					have = append(have, name)
				}
				require.ElementsMatch(e, names, have)
			}
			want("a", "b")
			resp, err := e.Client.Stub.SystemSharedMemoryStatus(e.ctx(), &pb.SystemSharedMemoryStatusRequest{Name: "b"})
			require.NoError(e, err)
			require.Len(e, resp.Regions, 1)
			b := resp.Regions["b"]
			require.Equal(e, []any{other.key, uint64(0), uint64(pageSize)}, []any{b.Key, b.Offset, b.ByteSize})
			_, err = e.Client.Stub.SystemSharedMemoryUnregister(e.ctx(), &pb.SystemSharedMemoryUnregisterRequest{Name: "a"})
			require.NoError(e, err)
			want("b")
			require.NoError(e, s.register("a", 0, 32))
			_, err = e.Client.Stub.SystemSharedMemoryUnregister(e.ctx(), &pb.SystemSharedMemoryUnregisterRequest{})
			require.NoError(e, err)
			want()
		}},
		{"memory/region: unregistered", func(e *Env) {
			s := e.share(fp32(1, 2))
			require.NoError(e, s.register("a", 0, 64))
			r := request("slow", inputAt("FP32", shape(1, 2), at("a", nil, 8)))
			ctx, before, gate := e.ctx(), e.statistics("slow"), e.close("slow")
			over := later(func() error {
				_, err := e.Client.Stub.ModelInfer(ctx, r)
				return err
			})
			gate.executes(1)
			_, err := e.Client.Stub.SystemSharedMemoryUnregister(e.ctx(), &pb.SystemSharedMemoryUnregisterRequest{Name: "a"})
			e.refused(err, codes.Internal, "Cannot unregister shared memory region 'a', it is currently in use.")
			_, err = e.Client.Stub.SystemSharedMemoryUnregister(e.ctx(), &pb.SystemSharedMemoryUnregisterRequest{})
			e.refused(err, codes.Internal, "Failed to unregister the following system shared memory regions: a ,")
			gate.open()
			require.NoError(e, <-over)
			e.settled(before, 1)
			e.until(func() bool {
				_, err := e.Client.Stub.SystemSharedMemoryUnregister(e.ctx(), &pb.SystemSharedMemoryUnregisterRequest{Name: "a"})
				return err == nil
			}, 5*time.Millisecond)
			_, err = e.Client.Stub.ModelInfer(e.ctx(), request("identity", inputAt("FP32", shape(1, 2), at("a", nil, 8))))
			e.refused(err, codes.NotFound, "Unable to find shared memory region: 'a'")
		}},
		{"memory/region: larger than the object", func(e *Env) {
			s := e.share(nil)
			const invalid = "failed to register shared memory region 'a': invalid args"
			e.refused(s.register("a", 0, pageSize+1), codes.InvalidArgument, invalid)
			e.refused(s.register("a", pageSize, 1), codes.InvalidArgument, invalid)
			require.NoError(e, s.register("a", 0, pageSize))
		}},
		{"memory/region: an offset between pages", func(e *Env) {
			s := e.share(nil)
			e.refused(s.register("a", 8, 16), codes.InvalidArgument, "failed to register shared memory region 'a': unable to process address spaceInvalid argument")
		}},
		{"memory/region: no bytes", func(e *Env) {
			s := e.share(nil)
			e.refused(s.register("a", 0, 0), codes.InvalidArgument, "failed to register shared memory region 'a': unable to process address spaceInvalid argument")
		}},
		{"memory/region: a key without slash", func(e *Env) {
			s := e.share(fp32(1, 2))
			s.key = strings.TrimPrefix(s.key, "/")
			require.NoError(e, s.register("a", 0, 64))
			e.wantOutputs(e.infer(request("identity", inputAt("FP32", shape(1, 2), at("a", nil, 8)))), map[string]tensor{"OUTPUT0": {"FP32", shape(1, 2), fp32(1, 2)}})
		}},
		{"memory/region: an object that has been removed stays", func(e *Env) {
			s := e.share(fp32(1, 2))
			require.NoError(e, s.register("a", 0, 64))
			moved := s.path + "_"
			require.NoError(e, os.Rename(s.path, moved))
			defer func() { require.NoError(e, os.Rename(moved, s.path)) }()
			e.infer(request("identity", inputAt("FP32", shape(1, 2), at("a", nil, 8))))
		}},
		{"memory/region: of the GPU", func(e *Env) {
			_, err := e.Client.Stub.CudaSharedMemoryRegister(e.ctx(), &pb.CudaSharedMemoryRegisterRequest{Name: "a", RawHandle: make([]byte, 64), ByteSize: 8})
			e.refused(err, codes.InvalidArgument, "failed to register shared memory region: invalid args")
			_, err = e.Client.Stub.CudaSharedMemoryUnregister(e.ctx(), &pb.CudaSharedMemoryUnregisterRequest{Name: "a"})
			require.NoError(e, err)
			_, err = e.Client.Stub.CudaSharedMemoryUnregister(e.ctx(), &pb.CudaSharedMemoryUnregisterRequest{})
			require.NoError(e, err)
		}},
	}
}

func memoryHTTPCases() []Case {
	const base = "/v2/systemsharedmemory/region/a/register"
	handle := base64.StdEncoding.EncodeToString(make([]byte, 64))
	cases := make([]Case, 0, 32)
	for _, c := range []struct {
		name, path, body string
		status           int
		want             string
	}{
		{"without a key", base, `{"byte_size":16}`, 400, "Shared memory register request has no 'key' field"},
		{"without a size", base, `{"key":"/x"}`, 400, "Shared memory register request has no 'byte_size' field"},
		{"a key as number", base, `{"key":5,"byte_size":16}`, 500, "attempt to access JSON non-string as string"},
		{"a size as text", base, `{"key":"/x","byte_size":"16"}`, 500, "attempt to access JSON non-unsigned-integer as unsigned-integer"},
		{"a negative offset", base, `{"key":"/x","byte_size":16,"offset":-1}`, 500, "attempt to access JSON non-unsigned-integer as unsigned-integer"},
		{"no document", base, ``, 500, "failed to parse the request JSON buffer: The document is empty. at 0"},
		{"no object at the key", base, `{"key":"/nobody-has-this-key","byte_size":16}`, 500, "Unable to open shared memory region: '/nobody-has-this-key'"},
		{"an empty key", base, `{"key":"","byte_size":16}`, 500, "Unable to open shared memory region: ''"},
		{"without a name", "/v2/systemsharedmemory/register", `{"key":"/x","byte_size":16}`, 400, "'region name' is necessary to register system shared memory region"},
		{"of the GPU without a name", "/v2/cudasharedmemory/register", `{}`, 400, "'region name' is necessary to register cuda shared memory region"},
		{"of the GPU without a handle", "/v2/cudasharedmemory/region/a/register", `{"device_id":0,"byte_size":64}`, 400, "Shared memory register request has no 'raw_handle' field"},
		{"of the GPU with a handle of another length", "/v2/cudasharedmemory/region/a/register", `{"raw_handle":{"b64":"AAAA"},"device_id":0,"byte_size":64}`, 400, "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"},
		{"of the GPU with a handle that is no base64", "/v2/cudasharedmemory/region/a/register", `{"raw_handle":{"b64":"!!"},"device_id":0,"byte_size":64}`, 400, "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t"},
		{"of the GPU without a device", "/v2/cudasharedmemory/region/a/register", `{"raw_handle":{"b64":"` + handle + `"},"byte_size":64}`, 500, "attempt to access non-existing object member 'device_id'"},
		{"of the GPU without a size", "/v2/cudasharedmemory/region/a/register", `{"raw_handle":{"b64":"` + handle + `"},"device_id":0}`, 500, "attempt to access non-existing object member 'byte_size'"},
		{"of the GPU", "/v2/cudasharedmemory/region/a/register", `{"raw_handle":{"b64":"` + handle + `"},"device_id":0,"byte_size":64}`, 400, "failed to register shared memory region: invalid args"},
	} {
		cases = append(cases, Case{"memory/over HTTP: register " + c.name, func(e *Env) {
			e.wantHTTP(e.call("POST", c.path, c.body), c.status, jsonType, errorJSON(c.want))
		}})
	}
	return append(append(cases, memoryHTTPTensorCases()...),
		Case{"memory/over HTTP: a region", func(e *Env) {
			s := e.share(nil)
			e.wantHTTP(e.call("POST", base, `{"key":"`+s.key+`","byte_size":64}`), 200, jsonType, "")
			e.wantHTTP(e.call("POST", base, `{"key":"`+s.key+`","byte_size":64}`), 400, jsonType, errorJSON("shared memory region 'a' already in manager"))
			want := `[{"name":"a","key":"` + s.key + `","offset":0,"byte_size":64}]`
			e.wantHTTP(e.call("GET", "/v2/systemsharedmemory/status", ""), 200, jsonType, want)
			e.wantHTTP(e.call("GET", "/v2/systemsharedmemory/region/a/status", ""), 200, jsonType, want)
			e.wantHTTP(e.call("GET", "/v2/systemsharedmemory/region/b/status", ""), 404, jsonType, errorJSON("Unable to find system shared memory region: 'b'"))
			e.wantHTTP(e.call("POST", "/v2/systemsharedmemory/region/b/unregister", ""), 200, jsonType, "")
			e.wantHTTP(e.call("GET", "/v2/systemsharedmemory/status", ""), 200, jsonType, want)
			e.wantHTTP(e.call("POST", "/v2/systemsharedmemory/region/a/unregister", ""), 200, jsonType, "")
			e.wantHTTP(e.call("GET", "/v2/systemsharedmemory/status", ""), 200, jsonType, "[]")
		}},
	)
}

// memoryHTTPTensorCases send inputs and ask for outputs in a region of 64 bytes that holds 0 to 15.
func memoryHTTPTensorCases() []Case {
	in := func(parameters string) string {
		return `{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[1,2],"parameters":{` + parameters + `}}]}`
	}
	out := func(parameters string) string {
		return `{"inputs":[` + oneInput + `],"outputs":[{"name":"OUTPUT0","parameters":{` + parameters + `}}]}`
	}
	const placed = `{"model_name":"identity","model_version":"1","outputs":[{"name":"OUTPUT0","datatype":"FP32","shape":[1,2]}]}`
	const region = `"shared_memory_region":"a"`
	cases := make([]Case, 0, 32)
	for _, c := range []struct {
		name, body  string
		status      int
		contentType string
		want        string
	}{
		{"input", in(region + `,"shared_memory_byte_size":8,"shared_memory_offset":8`), 200, jsonType, echo("[1,2]", "[2.0,3.0]")},
		{"input without a size", in(region), 400, jsonType, errorJSON("Invalid offset + byte size for shared memory region: 'a'")},
		{"input with a region as number", in(`"shared_memory_region":5,"shared_memory_byte_size":8`), 500, jsonType, errorJSON("Unable to parse 'shared_memory_region': attempt to access JSON non-string as string")},
		{"input with a size as text", in(region + `,"shared_memory_byte_size":"8"`), 500, jsonType, errorJSON("Unable to parse 'shared_memory_byte_size': attempt to access JSON non-unsigned-integer as unsigned-integer")},
		{"input with a negative offset", in(region + `,"shared_memory_byte_size":8,"shared_memory_offset":-1`), 500, jsonType, errorJSON("Unable to parse 'shared_memory_offset': attempt to access JSON non-unsigned-integer as unsigned-integer")},
		{"input in no such region", in(`"shared_memory_region":"nope","shared_memory_byte_size":8`), 404, jsonType, errorJSON("Unable to find shared memory region: 'nope'")},
		{"input of too few bytes", in(region + `,"shared_memory_byte_size":4`), 400, jsonType, errorJSON(noID + "input byte size mismatch for input 'INPUT0' for model 'identity'. Expected 8, got 4")},
		{"input in memory and in binary", in(region + `,"shared_memory_byte_size":8,"binary_data_size":8`), 400, jsonType,
			errorJSON("Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', 'shared_memory_region' in 'parameters'. But set 'binary_data_size' 'shared_memory_region'")},
		{"output", out(region + `,"shared_memory_byte_size":8,"shared_memory_offset":48`), 200, jsonType, placed},
		{"output into too large a place", out(region + `,"shared_memory_byte_size":16,"shared_memory_offset":48`), 200, jsonType, placed},
		{"output into too small a place", out(region + `,"shared_memory_byte_size":4`), 500, textPlain,
			errorJSON("shared memory size specified with the request for output 'OUTPUT0' (4 bytes) should be at least 8 bytes to hold the results")},
		{"output without a size", out(region), 400, jsonType, errorJSON("Invalid offset + byte size for shared memory region: 'a'")},
		{"output beyond the end", out(region + `,"shared_memory_byte_size":8,"shared_memory_offset":60`), 400, jsonType, errorJSON("Invalid offset + byte size for shared memory region: 'a'")},
		{"output at an offset beyond the end", out(region + `,"shared_memory_byte_size":8,"shared_memory_offset":64`), 400, jsonType, errorJSON("Invalid offset for shared memory region: 'a'")},
		{"output in no such region", out(`"shared_memory_region":"nope","shared_memory_byte_size":8`), 404, jsonType, errorJSON("Unable to find shared memory region: 'nope'")},
		{"output with classification", out(region + `,"shared_memory_byte_size":8,"classification":1`), 400, jsonType, errorJSON("Output can't set both 'shared_memory_region' and 'classification'")},
		{"output in memory and in binary", out(region + `,"shared_memory_byte_size":8,"binary_data":true`), 400, jsonType, errorJSON("Output can't set both 'shared_memory_region' and 'binary_data'")},
	} {
		cases = append(cases, Case{"memory/over HTTP: " + c.name, func(e *Env) {
			s := e.share(seqFP32(16))
			require.NoError(e, s.register("a", 0, 64))
			e.wantHTTP(e.call("POST", inferPath("identity"), c.body), c.status, c.contentType, c.want)
			if c.want == placed && strings.Contains(c.body, `"shared_memory_offset":48`) {
				require.Equal(e, fp32(11, 1, 2.5, 14), s.bytes(44, 16))
			}
		}})
	}
	return cases
}
