// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
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
	// Node is how one server serves all GPUs; empty: a server per GPU. It needs a real Server.
	Node Node
	// Instances is how many each model has under NodeFree; 0: as many as there are GPUs.
	Instances int
	// MaxBatch is max_batch_size; 0 is that of the models.
	MaxBatch int
	// Affine has callers prefer a server for each model.
	Affine bool
	// RateLimiter has Triton's rate limiter execute one model at a time on each GPU, and under NodeFree as many at once as there are GPUs. It needs a real
	// Server.
	RateLimiter bool
}

// Node is how a server over all GPUs has its instances.
type Node string

const (
	// NodeBound has an instance of a model on each GPU, bound to it, in an order that begins elsewhere for every model: Triton prefers the first.
	NodeBound Node = "instances bound to GPUs"
	// NodeFree has as many instances of a model as there are GPUs, each of which executes wherever a GPU is free. No Triton does that with real GPUs: it
	// is more than instances that are bound can reach.
	NodeFree Node = "instances on any free GPU"
)

// Tritons are servers with Triton's own scheduling.
type Tritons struct {
	// GRPC, HTTP and Metrics are the servers' addresses, host:port.
	GRPC, HTTP, Metrics []string

	models  Models
	gpus    int
	serving [][]int
	affine  bool
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
	if o.Node != "" {
		return t.startNode(ctx, o)
	}
	for i := range o.GPUs {
		gpu := "gpu" + strconv.Itoa(i)
		var only []int
		if o.Placement != nil {
			only = o.Placement[i]
		}
		repository := filepath.Join(t.dir, gpu+"-models")
		if err := o.Models.write(repository, only, batching{dynamic: o.Dynamic, takesTurns: o.RateLimiter, maxBatch: o.MaxBatch}); err != nil {
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
	if t.affine = o.Affine; o.Affine {
		t.serving = homes(len(o.Models.list), o.GPUs)
	}
	return t.await(ctx, o)
}

// startNode starts one server over all GPUs.
func (t *Tritons) startNode(ctx context.Context, o TritonOptions) error {
	if o.Server == "" {
		return errors.New("rig: minitriton has one GPU")
	}
	gpus := make([]string, o.GPUs)
	for i := range gpus {
		gpus[i] = "gpu" + strconv.Itoa(i)
	}
	on := serving(o.Placement, len(o.Models.list))
	if on == nil {
		on = homes(len(o.Models.list), o.GPUs)
	}
	how := batching{dynamic: o.Dynamic, takesTurns: o.RateLimiter, maxBatch: o.MaxBatch, instances: cmp.Or(o.Instances, o.GPUs)}
	if o.Node == NodeBound {
		how.onGPUs = func(model int) (all []string) {
			for _, gpu := range on[model] {
				all = append(all, gpus[gpu])
			}
			return all
		}
	}
	repository := filepath.Join(t.dir, "node-models")
	if err := o.Models.write(repository, nil, how); err != nil {
		return err
	}
	if err := t.startReal(o, strings.Join(gpus, ","), repository); err != nil {
		return err
	}
	o.Placement = nil
	return t.await(ctx, o)
}

// homes has, for every model, all GPUs, and first the one that is the model's own.
func homes(models, gpus int) [][]int {
	on := make([][]int, models)
	for m := range on {
		for i := range gpus {
			on[m] = append(on[m], (m+i)%gpus)
		}
	}
	return on
}

// endpoint is the one server as conch.yaml has it, with so many executions at once: its instances are on CPUs, which say nothing of that.
func (t *Tritons) endpoint(executions int) map[string]any {
	return map[string]any{"grpc": t.GRPC[0], "http": t.HTTP[0], "metrics": t.Metrics[0], "executions": executions}
}

// await returns once all servers serve their models.
func (t *Tritons) await(ctx context.Context, o TritonOptions) error {
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
	ports, name, listen := free.numbers, gpu, "127.0.0.1"
	if o.Node != "" {
		name, listen = "node", "0.0.0.0"
	}
	arguments := []string{
		"--model-repository=" + repository, "--model-control-mode=none", "--disable-auto-complete-config", "--strict-readiness=false",
		"--http-address=" + listen, "--grpc-address=" + listen, "--metrics-address=" + listen,
		fmt.Sprintf("--http-port=%d", ports[0]), fmt.Sprintf("--grpc-port=%d", ports[1]), fmt.Sprintf("--metrics-port=%d", ports[2]),
		"--backend-config=python,shm-region-prefix-name=" + filepath.Base(t.dir) + "-" + name,
	}
	if o.RateLimiter {
		arguments = append(arguments, "--rate-limit=execution_count")
	}
	if o.RateLimiter && o.Node == NodeFree {
		arguments = append(arguments, fmt.Sprintf("--rate-limit-resource=%s:%d", zoo.TurnsResource, o.GPUs))
	}
	environment := []string{"CONCH_PARTITION=" + name, "CONCH_GPU=" + gpu, "CONCH_SHARE=100", "CONCH_EMULATION_DIR=" + t.dir}
	c, err := start("tritonserver of "+name, filepath.Join(t.dir, name+".log"), o.Server, arguments, environment)
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

// Affine says that callers prefer the first endpoint of a model.
func (t *Tritons) Affine() bool { return t.affine }

// Died says that a server's process has ended.
func (t *Tritons) Died() bool {
	for _, c := range t.servers {
		select {
		case <-c.done:
			return true
		default:
		}
	}
	return false
}

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
