// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sync/errgroup"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/minitriton"
	"github.com/conch-serving/conch/internal/store"
	"github.com/conch-serving/conch/plugins/builtin"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes"
	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes/configmaps"
)

// The cluster that is measured: nodes of four GPUs, and ten of the models fit on a GPU.
const (
	clusterNodes  = 1000
	clusterModels = 400
	clusterRest   = time.Minute
)

// cluster measures the plan way at the size of a large cluster, against a real API server: its nodes and the kubelets of its Pods are the benchmark's, and one minitriton
// answers for all Pods.
func (b *bench) cluster(ctx context.Context, r *figure.Report) (err error) {
	nodes, models, rest := clusterNodes, clusterModels, clusterRest
	if b.quick {
		nodes, models, rest = 20, 40, 5*time.Second
	}
	r.Emulated = "nodes, kubelets and GPUs: objects of a real API server, whose status the benchmark sets; one minitriton answers for all Pods"
	dir, err := os.MkdirTemp("", "conch-cluster")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	api, err := startAPIServer(ctx, dir, filepath.Join(".cache", "cluster", "bin"))
	if err != nil {
		return err
	}
	defer api.close()
	if err := api.addNodes(ctx, nodes); err != nil {
		return err
	}
	b.say(fmt.Sprintf("%d nodes are in the API server", nodes))
	server, err := serverOfAll(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	kubelets, stop := context.WithCancel(ctx)
	running := make(chan error, 1)
	go func() { running <- api.runPods(kubelets) }()
	defer func() { stop(); err = errors.Join(err, <-running) }()

	began := time.Now()
	connection, err := kubernetes.Connect("kubeconfig", api.kubeconfig, "")
	if err != nil {
		return err
	}
	dra, err := connection.Check(ctx)
	if err != nil {
		return err
	}
	d, err := kubernetes.New(ctx, kubernetes.Options{Connection: connection, DRA: dra, Image: "tritonserver", ModelsPath: "/models", ModelsVolume: `{"emptyDir": {}}`, StartTimeout: time.Hour})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	s := clusterSnapshot(d.Nodes(), models)
	read := time.Since(began).Seconds()
	size := fmt.Sprintf("%d nodes of four GPUs", nodes)
	r.AddRuns("cluster.read_seconds", []float64{read}, "s", "from nothing to a snapshot of "+size+" and "+fmt.Sprint(models)+" models")

	process, err := procfs.Self()
	if err != nil {
		return err
	}
	var plan *policy.Plan
	for _, name := range []string{"conch", "symphony"} { // the second is started
		var took []float64
		for range b.roundsOr(3) {
			before, err := process.Stat()
			if err != nil {
				return err
			}
			if plan, err = planBy(ctx, name, s); err != nil {
				return err
			}
			after, err := process.Stat()
			if err != nil {
				return err
			}
			took = append(took, after.CPUTime()-before.CPUTime())
		}
		b.say(fmt.Sprintf("%s plans %d partitions in %.2f s of processor time", name, len(plan.GetPartitions()), took[0]))
		r.AddRuns("cluster.plan_cpu_seconds."+name, took, "s", "processor time of a plan by "+name+" for "+size+" and "+fmt.Sprint(models)+" models, whose evaluations cost nothing")
	}

	before, began := api.requests.Load(), time.Now()
	if err := startAll(ctx, d, s, plan); err != nil {
		return err
	}
	started, asked := time.Since(began).Seconds(), float64(api.requests.Load()-before)
	parts := float64(len(plan.GetPartitions()))
	b.say(fmt.Sprintf("%.0f Pods serve after %.0f s and %.0f requests", parts, started, asked))
	r.AddRuns("cluster.start_seconds", []float64{started}, "s", fmt.Sprintf("until the Pods of all %.0f partitions answer, at no more than 50 requests a second to the API server", parts))
	r.AddRuns("cluster.requests_per_partition", []float64{asked / parts}, "requests", "requests to the API server for a partition that is started")

	time.Sleep(2 * time.Second) // the disruption budget follows the last Pod
	before = api.requests.Load()
	time.Sleep(rest)
	r.AddRuns("cluster.rest_requests_per_minute", []float64{float64(api.requests.Load()-before) / rest.Minutes()}, "/min", "requests of the driver to the API server in "+rest.String()+" at rest")
	perMinute, err := api.restOfOwner(ctx, connection, rest)
	if err != nil {
		return err
	}
	r.AddRuns("cluster.owner_rest_requests_per_minute", []float64{perMinute}, "/min", "requests to the API server in "+rest.String()+" at rest, of the driver, of the Lease and of the release's state, which nothing changes meanwhile")
	stat, err := process.Stat()
	if err != nil {
		return err
	}
	r.AddRuns("cluster.resident_MB", []float64{float64(stat.ResidentMemory()) / 1e6}, "MB", "of the process that has the driver, both plans and the benchmark")
	return nil
}

// restOfOwner counts requests a minute of an owner that is left alone: of a lease that it holds, of a state that it has taken over, and of what else runs.
func (a *apiServer) restOfOwner(ctx context.Context, connection kubernetes.Connection, rest time.Duration) (perMinute float64, err error) {
	log, lost := slog.New(slog.DiscardHandler), make(chan string, 1)
	lease, err := kubernetes.Lead(ctx, kubernetes.LeaseOptions{
		Connection: connection, Release: "conch", Identity: "bench", Logger: log, Lost: func(leader string) { lost <- leader },
	})
	if err != nil {
		return 0, err
	}
	defer lease.Release()
	state, err := configmaps.Follow(ctx, configmaps.Options{Connection: connection, Release: "conch", Identity: "bench", Fence: lease.Held, Logger: log})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, state.Close()) }()
	if err := state.TakeOver(ctx); err != nil {
		return 0, err
	}
	if err := state.Write(store.Change{Bucket: "bench", Key: "plan", Value: []byte("1")}); err != nil {
		return 0, err
	}
	time.Sleep(2 * time.Second)
	before := a.requests.Load()
	time.Sleep(rest)
	perMinute = float64(a.requests.Load()-before) / rest.Minutes()
	select {
	case <-lost:
		return 0, errors.New("the lease was lost, though nobody else wants it")
	default:
		return perMinute, lease.Held()
	}
}

// clusterSnapshot is what a policy is asked: each model loads so many GPUs that all together are loaded to two thirds.
func clusterSnapshot(nodes []*policy.Node, models int) *policy.Snapshot {
	s := &policy.Snapshot{Revision: 1, Seed: 1, Nodes: nodes, Evaluations: 64, PlanningBudgetUs: 5e6}
	s.Interference = []*policy.Interference{policy.GpuletInterference(nodes[0].GetGpus()[0].GetType())}
	gpus := 0
	for _, n := range nodes {
		gpus += len(n.GetGpus())
	}
	gpuType := nodes[0].GetGpus()[0].GetType()
	for i := range models {
		rate := 330 * float64(gpus) / float64(models)
		m := &policy.Model{Name: fmt.Sprintf("m%03d", i), SloUs: int64(40_000 + 20_000*(i%9)), Rate: rate, RowRate: rate, Burstiness: 1, MaxBatchSize: 32, Batchable: true, MemoryBytes: 8 << 30}
		own := &policy.Profile{Model: m.Name, GpuType: gpuType, Usable: true}
		for _, share := range []uint32{20, 50, 100} {
			slow := max(1, float64([]uint32{20, 40, 60, 100}[i%4])/float64(share))
			for _, batch := range []uint32{1, 4, 16, 32} {
				l := ((.5+.1*float64(i%7))*float64(batch) + 2 + float64(i%11)) * 1e3 * slow
				fill := min(1, float64(batch)/16)
				own.Points = append(own.Points, &policy.ProfilePoint{
					Batch: batch, ThreadPercentage: share, LatencyUs: &policy.Estimate{Value: l}, LatencyUpperUs: l,
					Creq: &policy.Estimate{Value: .2 + .5*fill}, Mreq: &policy.Estimate{Value: .1},
					BandwidthUtilization: &policy.Estimate{Value: .1 + .3*fill}, L2Utilization: &policy.Estimate{Value: .1 + .2*fill},
				})
			}
		}
		s.Models, s.Profiles = append(s.Models, m), append(s.Profiles, own)
	}
	return s
}

// even finds every plan equally good.
type even struct{}

// Evaluate implements policy.Host.
func (even) Evaluate(_ context.Context, plans ...*policy.Plan) ([]*policy.Outcome, error) {
	all := make([]*policy.Outcome, len(plans))
	for i := range all {
		all[i] = &policy.Outcome{Goodput: 1, BadRate: .1}
	}
	return all, nil
}

// EvaluateDraw implements policy.Host.
func (e even) EvaluateDraw(ctx context.Context, _ uint32, plans ...*policy.Plan) ([]*policy.Outcome, error) {
	return e.Evaluate(ctx, plans...)
}

func planBy(ctx context.Context, name string, s *policy.Snapshot) (*policy.Plan, error) {
	p, known := builtin.New(name)
	if !known {
		return nil, fmt.Errorf("there is no policy %s", name)
	}
	return p.Plan(ctx, s, even{})
}

// startAll starts the Pod of every partition of a plan, a hundred at a time, and returns once all answer.
func startAll(ctx context.Context, d *kubernetes.Driver, s *policy.Snapshot, plan *policy.Plan) error {
	x := policy.NewIndex(s)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(100)
	for _, part := range plan.GetPartitions() {
		g := x.GPUOf(part)
		group.Go(func() error {
			for try := 1; ; try++ { // as the reconciler does
				_, err := d.Start(ctx, driver.Spec{Partition: part, GPU: g, Hash: d.Hash(part, g), RepositoryDir: "/models/" + part.GetId()})
				if err == nil || try == mostStarts || ctx.Err() != nil {
					return err
				}
			}
		})
	}
	return group.Wait()
}

// mostStarts is how often a Pod's start is tried.
const mostStarts = 5

// podIP is the address of all Pods.
const podIP = "127.77.0.1"

// serverOfAll answers at the ports of every Pod.
func serverOfAll(ctx context.Context, dir string) (*minitriton.Server, error) {
	models := filepath.Join(dir, "models")
	if err := os.MkdirAll(models, 0o755); err != nil {
		return nil, err
	}
	server, err := minitriton.New(minitriton.Options{Repository: models, Control: minitriton.ControlExplicit})
	if err != nil {
		return nil, err
	}
	listeners, err := minitriton.Listen(podIP+":8001", podIP+":8000", podIP+":8002")
	if err != nil {
		return nil, err
	}
	return server, server.Start(ctx, listeners)
}
