// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/internal/zoo"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/plugins/static"
	"github.com/conch-serving/conch/sidecar/admin/client"
	"github.com/conch-serving/conch/sidecar/command"
	"github.com/conch-serving/conch/sidecar/config"
)

// TestMain serves the static policy when conch starts this test program as its
// policy plugin.
func TestMain(m *testing.M) {
	if policy.Hosted(os.Getenv) {
		policy.Serve(static.New())
		return
	}
	goleak.VerifyTestMain(m)
}

// writeZoo makes a repository of emulated models, small enough to be quick.
func writeZoo(t *testing.T, names ...string) string {
	dir := t.TempDir()
	for i, name := range names {
		require.NoError(t, zoo.Write(dir, zoo.Model{
			Name: name, MaxBatchSize: 8,
			Profile: zoo.Profile{Model: name, Alpha: time.Millisecond, Beta: time.Duration(i+2) * time.Millisecond, SLO: 200 * time.Millisecond},
		}))
	}
	return dir
}

// daemon is a running conch.
type daemon struct {
	*conch
	t      *testing.T
	client *triton.Client
	admin  *client.Client
	log    *safeBuffer
	// next is what conch.yaml says when it is read again.
	next *config.Config
	stop func()
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// text is a configuration of the embedded driver on ports of its own choosing.
func text(repository, state, more string) string {
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf(`
repository: %s
state: %s
listen: {grpc: "127.0.0.1:0", http: "127.0.0.1:0", metrics: "127.0.0.1:0", admin: "unix://%s"}
driver: {kind: embedded}
gpus: [{type: A100-80GB, count: 2}]
policy: {name: static, executable: %s, deadline: 30s}
limits: {drain: 1m}
%s
`, repository, state, adminSocket(state), self, more)
}

// adminSocket is the one of a state directory, with a path that is short enough.
func adminSocket(state string) string {
	return filepath.Join(os.TempDir(), fmt.Sprintf("conch-%x.sock", sha256.Sum256([]byte(state)))[:40])
}

func parse(t *testing.T, yaml string) *config.Config {
	path := filepath.Join(t.TempDir(), "conch.yaml")
	require.NoError(t, os.WriteFile(path, []byte(yaml), 0o600))
	c, err := config.Load(path, nil, command.Environment())
	require.NoError(t, err)
	return c
}

func startConch(t *testing.T, yaml string) *daemon {
	c := &daemon{t: t, log: &safeBuffer{}}
	load := func() (*config.Config, error) { return c.next, nil }
	c.conch = newConch(command.Daemon{
		Config: parse(t, yaml), Load: load, Version: command.Version(), Program: "/nowhere/conch",
		Log: slog.New(slog.NewJSONHandler(c.log, nil)),
	}, func() bool { return false })
	opened, err := c.components().Open(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.run(ctx, opened) }()
	c.client, err = triton.Dial(c.address("grpc").String())
	require.NoError(t, err)
	address := c.address("admin")
	c.admin, err = client.New(map[string]string{"unix": "unix://", "tcp": "https://"}[address.Network()] + address.String())
	require.NoError(t, err)
	c.stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-done)
		c.admin.Close()
		require.NoError(t, c.client.Close())
		if t.Failed() {
			text := c.log.String()
			t.Logf("the end of the log:\n%s", text[max(0, len(text)-8<<10):])
		}
	})
	t.Cleanup(c.stop)
	require.Eventually(t, func() bool { code, _ := c.get("metrics", "/readyz"); return code == http.StatusOK }, time.Minute, 10*time.Millisecond)
	return c
}

func (c *daemon) get(door, path string) (int, string) {
	return c.do(door, http.MethodGet, path, "")
}

func (c *daemon) do(door, method, path, body string) (int, string) {
	request, err := http.NewRequestWithContext(c.t.Context(), method, "http://"+c.address(door).String()+path, strings.NewReader(body))
	require.NoError(c.t, err)
	r, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	answer, err := io.ReadAll(r.Body)
	require.NoError(c.t, err)
	require.NoError(c.t, r.Body.Close())
	return r.StatusCode, string(answer)
}

// infer sends one row of value and checks the emulated answer, 2*INPUT+1.
func (c *daemon) infer(ctx context.Context, model string, value float32) error {
	raw := make([]byte, 0, 64)
	for i := range 16 {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(value+float32(i)))
	}
	r, err := c.client.Stub.ModelInfer(ctx, &tritonpb.ModelInferRequest{
		ModelName: model, Id: fmt.Sprint(value),
		Inputs:           []*tritonpb.ModelInferRequest_InferInputTensor{{Name: "INPUT", Datatype: "FP32", Shape: []int64{1, 16}}},
		RawInputContents: [][]byte{raw},
	})
	if err != nil {
		return err
	}
	if r.GetId() != fmt.Sprint(value) || len(r.GetRawOutputContents()) != 1 || len(r.GetRawOutputContents()[0]) != 64 {
		return fmt.Errorf("answer to %v is %v", value, r)
	}
	for i := range 16 {
		got := math.Float32frombits(binary.LittleEndian.Uint32(r.GetRawOutputContents()[0][4*i:]))
		if want := 2*(value+float32(i)) + 1; got != want {
			return fmt.Errorf("element %d of the answer to %v is %v, not %v", i, value, got, want)
		}
	}
	return nil
}

// requireSample asks the metrics for a sample whose line begins so, and shows
// the samples of that metric where there is none.
func (c *daemon) requireSample(prefix string) {
	c.t.Helper()
	_, metrics := c.get("metrics", "/metrics")
	name, _, _ := strings.Cut(prefix, "{")
	var others []string
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, prefix) {
			return
		}
		if strings.HasPrefix(line, name) {
			others = append(others, line)
		}
	}
	require.Failf(c.t, "no such sample", "want %s\ngot:\n%s", prefix, strings.Join(others, ""))
}

// burst sends n requests at once and returns their errors.
func (c *daemon) burst(model string, n int) []error {
	errs := make([]error, n)
	var wait sync.WaitGroup
	for i := range n {
		wait.Go(func() { errs[i] = c.infer(c.t.Context(), model, float32(i)) })
	}
	wait.Wait()
	return errs
}
