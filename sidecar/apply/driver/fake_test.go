// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/sidecar/apply/driver/shim"
)

// The test binary is its own tritonserver, and its own shim.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv("FAKE_TRITON") != "":
		os.Exit(fakeTriton(os.Args[1:]))
	case len(os.Args) == 3 && os.Args[1] == "shim":
		os.Exit(shim.Main(os.Args[2]))
	}
	// The tests wait for other processes more than they compute.
	flag.Parse()
	if err := flag.Set("test.parallel", "6"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// began is a file of a model that its executions write.
const began = "began"

// fakeServer answers as a tritonserver in explicit mode does, as far as the
// driver asks. A model's name says how it behaves: "hang" never loads,
// "refused" does not load, "crash" ends the server.
type fakeServer struct {
	tritonpb.UnimplementedGRPCInferenceServiceServer
	repository string
	mu         sync.Mutex
	models     map[string]bool
	running    sync.WaitGroup
}

func (f *fakeServer) ServerReady(context.Context, *tritonpb.ServerReadyRequest) (*tritonpb.ServerReadyResponse, error) {
	return &tritonpb.ServerReadyResponse{Ready: true}, nil
}

func (f *fakeServer) RepositoryModelLoad(_ context.Context, r *tritonpb.RepositoryModelLoadRequest) (*tritonpb.RepositoryModelLoadResponse, error) {
	name := r.GetModelName()
	dir := filepath.Join(f.repository, name)
	if _, err := os.Stat(filepath.Join(dir, "config.pbtxt")); err != nil {
		fmt.Fprintf(os.Stderr, "E1121 03:17:42.123456 7 model_repository_manager.cc:1384] \"failed to open text file for read %s: No such file\"\n", filepath.Join(dir, "config.pbtxt"))
		return nil, status.Errorf(codes.Internal, "failed to load '%s', failed to poll from model repository", name)
	}
	if _, err := os.Stat(filepath.Join(dir, "1", "model.py")); err != nil {
		select {} // as Triton does
	}
	if text, err := os.ReadFile(filepath.Join(dir, "1", "model.py")); err == nil {
		switch {
		case strings.Contains(string(text), "os._exit"):
			os.Exit(7)
		case strings.Contains(string(text), "raise"):
			return nil, status.Errorf(codes.InvalidArgument, "load failed for model '%s': raised", name)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.models[name] = true
	return &tritonpb.RepositoryModelLoadResponse{}, nil
}

func (f *fakeServer) RepositoryModelUnload(_ context.Context, r *tritonpb.RepositoryModelUnloadRequest) (*tritonpb.RepositoryModelUnloadResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.models, r.GetModelName())
	return &tritonpb.RepositoryModelUnloadResponse{}, nil
}

func (f *fakeServer) ModelReady(_ context.Context, r *tritonpb.ModelReadyRequest) (*tritonpb.ModelReadyResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return &tritonpb.ModelReadyResponse{Ready: f.models[r.GetName()]}, nil
}

func (f *fakeServer) RepositoryIndex(context.Context, *tritonpb.RepositoryIndexRequest) (*tritonpb.RepositoryIndexResponse, error) {
	f.running.Wait() // a model that runs a request stays UNLOADING
	f.mu.Lock()
	defer f.mu.Unlock()
	r := &tritonpb.RepositoryIndexResponse{}
	for name := range f.models {
		r.Models = append(r.Models, &tritonpb.RepositoryIndexResponse_ModelIndex{Name: name, Version: "1", State: "READY"})
	}
	return r, nil
}

func (f *fakeServer) ModelInfer(_ context.Context, r *tritonpb.ModelInferRequest) (*tritonpb.ModelInferResponse, error) {
	f.mu.Lock()
	ready := f.models[r.GetModelName()]
	if ready {
		f.running.Add(1)
	}
	f.mu.Unlock()
	if !ready {
		return nil, status.Errorf(codes.NotFound, "Request for unknown model: '%s' is not found", r.GetModelName())
	}
	defer f.running.Done()
	if err := os.WriteFile(filepath.Join(f.repository, r.GetModelName(), began), nil, 0o600); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	time.Sleep(300 * time.Millisecond)
	return &tritonpb.ModelInferResponse{ModelName: r.GetModelName()}, nil
}

func fakeTriton(args []string) int {
	flags := map[string]string{}
	for _, a := range args {
		name, value, _ := strings.Cut(strings.TrimPrefix(a, "--"), "=")
		if name == "no-such-flag" {
			fmt.Fprintln(os.Stderr, "tritonserver: unrecognized option '--no-such-flag'")
			return 1
		}
		flags[name] = value
	}
	pause(os.Getenv("FAKE_START_DELAY"))
	if path := os.Getenv("FAKE_DIES_WHILE"); path != "" {
		if _, err := os.Stat(path); err == nil {
			fmt.Fprintln(os.Stderr, `E1121 03:17:42.123456 7 main.cc:306] "out of luck"`)
			return 3
		}
	}
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, syscall.SIGTERM)
	// A stub of its own, which would outlive the server.
	stub := exec.Command("sleep", "1000")
	if os.Getenv("FAKE_STUB") != "" {
		if err := stub.Start(); err != nil {
			return 1
		}
		region := ""
		if _, after, ok := strings.Cut(flags["backend-config"], "shm-region-prefix-name="); ok {
			region = filepath.Join("/dev/shm", after+"_1_2")
		}
		if err := os.WriteFile(region, nil, 0o600); err != nil {
			return 1
		}
	}
	fake := &fakeServer{repository: flags["model-repository"], models: map[string]bool{}}
	s := grpc.NewServer()
	tritonpb.RegisterGRPCInferenceServiceServer(s, fake)
	var listeners []net.Listener
	for _, door := range []string{"grpc", "http", "metrics"} {
		l, err := open(door, flags[door+"-address"], flags[door+"-port"])
		if err != nil {
			pause("300ms")
			fmt.Fprintf(os.Stderr, "E1121 03:17:42.123456 7 main.cc:306] \"failed to start %s service: Unavailable - Socket '%s' already in use\"\n", door, flags[door+"-port"])
			return 1
		}
		listeners = append(listeners, l)
	}
	go func() { _ = s.Serve(listeners[0]) }()
	for _, l := range listeners[1:] {
		go func() { _ = http.Serve(l, http.NotFoundHandler()) }()
	}
	<-terminated
	if os.Getenv("FAKE_IGNORES_TERM") != "" {
		select {}
	}
	s.GracefulStop()
	_ = stub.Process
	return 0
}

// open listens as Triton does: gRPC adds the port to the path of a socket.
func open(door, address, port string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		if door == "grpc" {
			path += ":" + port
		}
		return net.Listen("unix", path)
	}
	return net.Listen("tcp", address+":"+port)
}

func pause(text string) {
	if d, err := time.ParseDuration(text); err == nil {
		time.Sleep(d)
	}
}
