// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/conch-serving/conch/internal/minitriton"
	"github.com/conch-serving/conch/internal/triton/tritonpb"
	"github.com/conch-serving/conch/internal/zoo"
)

// TritonOptions say which servers to start.
type TritonOptions struct {
	// Server is the path of tritonserver, or empty for minitriton in this process.
	Server string
	Models Models
	// GPUs is how many emulated GPUs there are, each with one server.
	GPUs int
	// Placement lists, for each GPU, the indexes of the models that its server serves; nil means that each serves every model.
	Placement [][]int
	// Dynamic is Triton's dynamic batching; nil means none.
	Dynamic *zoo.DynamicBatching
	// RateLimiter has Triton's rate limiter execute one model at a time on each GPU. It needs a real Server.
	RateLimiter bool
}

// Tritons are servers with Triton's own scheduling.
type Tritons struct {
	// GRPC, HTTP and Metrics are the servers' addresses, host:port.
	GRPC, HTTP, Metrics []string

	models  Models
	gpus    int
	serving [][]int
	dir     string
	minis   []*minitriton.Server
	servers []*child
	ports   []*ports
}

// StartTritons starts the servers and returns once every model is ready on each. Close them.
func StartTritons(ctx context.Context, o TritonOptions) (*Tritons, error) {
	dir, err := os.MkdirTemp("", "conch-rig-")
	if err != nil {
		return nil, fmt.Errorf("rig: %w", err)
	}
	t := &Tritons{models: o.Models, gpus: o.GPUs, dir: dir}
	if err := t.start(ctx, o); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

func (t *Tritons) start(ctx context.Context, o TritonOptions) error {
	if o.Placement != nil && len(o.Placement) != o.GPUs {
		return fmt.Errorf("rig: a placement on %d GPUs, of which there are %d", len(o.Placement), o.GPUs)
	}
	for i := range o.GPUs {
		gpu := "gpu" + strconv.Itoa(i)
		var only []int
		if o.Placement != nil {
			only = o.Placement[i]
		}
		repository := filepath.Join(t.dir, gpu+"-models")
		if err := o.Models.write(repository, only, batching{o.Dynamic, o.RateLimiter}); err != nil {
			return err
		}
		begin := t.startMini
		if o.Server != "" {
			begin = func(_ context.Context, gpu, repository string) error { return t.startReal(o, gpu, repository) }
		}
		if err := begin(ctx, gpu, repository); err != nil {
			return err
		}
	}
	t.serving = serving(o.Placement, len(o.Models.list))
	for i, end := range t.GRPC {
		ready := func(ctx context.Context) error {
			_, err := readUsage(ctx, t.Metrics[i]) // the door that a tritonserver opens last
			return errors.Join(err, modelsReady(ctx, end, t.namesOn(o, i)))
		}
		if o.Server == "" {
			if err := ready(ctx); err != nil {
				return err
			}
		} else if err := t.servers[i].await(ctx, ready); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tritons) startMini(ctx context.Context, gpu, repository string) error {
	s, err := minitriton.New(minitriton.Options{
		Repository: repository, Control: minitriton.ControlNone, Partition: minitriton.Partition{ID: gpu, GPU: minitriton.NewGPU(gpu)},
	})
	if err != nil {
		return fmt.Errorf("rig: %w", err)
	}
	t.minis = append(t.minis, s)
	listeners, err := minitriton.Loopback()
	if err != nil {
		return fmt.Errorf("rig: %w", err)
	}
	if err := s.Start(ctx, listeners); err != nil {
		return fmt.Errorf("rig: %w", err)
	}
	end := s.Endpoint()
	t.GRPC, t.HTTP, t.Metrics = append(t.GRPC, end.GRPC), append(t.HTTP, end.HTTP), append(t.Metrics, end.Metrics)
	return nil
}

// serving turns a placement around: by model, the GPUs that it is on.
func serving(placement [][]int, models int) [][]int {
	if placement == nil {
		return nil
	}
	on := make([][]int, models)
	for gpu, list := range placement {
		for _, m := range list {
			on[m] = append(on[m], gpu)
		}
	}
	return on
}

// namesOn lists the models that the server of a GPU serves.
func (t *Tritons) namesOn(o TritonOptions, gpu int) []string {
	names := t.models.Names()
	if o.Placement == nil {
		return names
	}
	var on []string
	for _, m := range o.Placement[gpu] {
		on = append(on, names[m])
	}
	return on
}

func (t *Tritons) startReal(o TritonOptions, gpu, repository string) error {
	free, err := freePorts(3)
	if err != nil {
		return err
	}
	t.ports = append(t.ports, free)
	ports := free.numbers
	arguments := []string{
		"--model-repository=" + repository, "--model-control-mode=none", "--disable-auto-complete-config", "--strict-readiness=false",
		"--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1",
		fmt.Sprintf("--http-port=%d", ports[0]), fmt.Sprintf("--grpc-port=%d", ports[1]), fmt.Sprintf("--metrics-port=%d", ports[2]),
		"--backend-config=python,shm-region-prefix-name=" + filepath.Base(t.dir) + "-" + gpu,
	}
	if o.RateLimiter {
		arguments = append(arguments, "--rate-limit=execution_count")
	}
	environment := []string{"CONCH_PARTITION=" + gpu, "CONCH_GPU=" + gpu, "CONCH_SHARE=100", "CONCH_EMULATION_DIR=" + t.dir}
	c, err := start("tritonserver of "+gpu, filepath.Join(t.dir, gpu+".log"), o.Server, arguments, environment)
	if err != nil {
		return err
	}
	t.servers = append(t.servers, c)
	address := func(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }
	t.HTTP, t.GRPC, t.Metrics = append(t.HTTP, address(ports[0])), append(t.GRPC, address(ports[1])), append(t.Metrics, address(ports[2]))
	return nil
}

// Usage reads the servers' counters.
func (t *Tritons) Usage(ctx context.Context) (Usage, error) { return readUsage(ctx, t.Metrics...) }

// BusyShare is the part of the time that the GPUs executed something, on average.
func (t *Tritons) BusyShare(u Usage, over time.Duration) float64 {
	return t.models.busy(u).Seconds() / over.Seconds() / float64(t.gpus)
}

// Endpoints are the addresses that clients call, host:port.
func (t *Tritons) Endpoints() []string { return t.GRPC }

// Serving lists, for each model, the indexes of the endpoints that serve it; nil means that each serves every model.
func (t *Tritons) Serving() [][]int { return t.serving }

// Close ends the servers and removes their files.
func (t *Tritons) Close() error {
	errs := make([]error, len(t.servers))
	var wg sync.WaitGroup
	for i, c := range t.servers {
		wg.Go(func() { errs[i] = c.stopGroup(15 * time.Second) })
	}
	wg.Wait()
	for _, s := range t.minis {
		errs = append(errs, s.Close())
	}
	for _, p := range t.ports {
		p.release()
	}
	return errors.Join(append(errs, os.RemoveAll(t.dir))...)
}

// modelsReady is nil once the server at the address serves all models.
func modelsReady(ctx context.Context, address string, names []string) error {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("rig: %s: %w", address, err)
	}
	defer conn.Close()
	client := tritonpb.NewGRPCInferenceServiceClient(conn)
	for _, name := range names {
		r, err := client.ModelReady(ctx, &tritonpb.ModelReadyRequest{Name: name})
		if err != nil {
			return fmt.Errorf("rig: %s: model %q: %w", address, name, err)
		}
		if !r.Ready {
			return fmt.Errorf("rig: %s: model %q is not ready", address, name)
		}
	}
	return nil
}
