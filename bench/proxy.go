// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/pymodels"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/triton"
	"github.com/conch-serving/conch/internal/zoo"
)

// payload is a size of request that is measured: one row of FP32.
type payload struct {
	name     string
	elements int
}

var payloads = []payload{{"1KB", 256}, {"600KB", 150 * 1024}}

// trialTime is how long each way is measured before it is the next one's turn.
const trialTime = time.Second

// patience is how long the last calls of a trial may take.
const patience = 10 * time.Second

// way is one way to the server.
type way struct {
	name, grpc, http string
	pids             pids
	reverse          bool // one of reverses: if it fails, the others are measured all the same
}

// The names of the ways that are always there; those of reverses are there too if they are set up.
const (
	straight   = "straight"
	forwarded  = "forwarder"
	libraries  = "libraries"
	attached   = "attached"         // a conch that observes the same server as the ways above lead to
	withGRPCGo = "attached_library" // another one, whose HTTP/2 is all grpc-go's
	through    = "conch"            // a conch that has started a server of the same kind, which it reaches on a Unix socket
)

// proxy measures a call straight to a server that takes no time, through a plain TCP forwarder, through a proxy of nothing but the libraries
// that conch is made with, through nginx and HAProxy where `make proxies` has set them up, and through conch, in turns, each in a process of its
// own.
func (b *bench) proxy(ctx context.Context, r *figure.Report) error {
	r.Emulated = "the server: minitriton with a model that takes no time, in a process of its own"
	return b.proxyOf(ctx, r, "", "proxy")
}

// proxyTriton is proxy with a real tritonserver and a python model that takes no time: its ports take another time than minitriton's do, and other times than
// one another.
func (b *bench) proxyTriton(ctx context.Context, r *figure.Report) error {
	if b.server == "" {
		return errors.New("no tritonserver: run `make bench`, or say --tritonserver")
	}
	if err := b.ports(ctx, r); err != nil {
		return err
	}
	return b.proxyOf(ctx, r, b.server, "proxy.real")
}

// proxyOf is proxy with the server at a path; empty: minitriton.
func (b *bench) proxyOf(ctx context.Context, r *figure.Report, server, prefix string) (err error) {
	defer runtime.KeepAlive(slack())
	directory, launcher, err := newLauncher(server)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	conch, repository, err := b.startEager(starting, directory, launcher)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conch.Close()) }()
	owned, err := serverPID(directory) // before the launcher starts the other server
	if err != nil {
		return err
	}
	behind, err := foreignServer(starting, launcher, repository)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, behind.Close()) }()
	forwarder, err := startPeer(ctx, "forward", behind.GRPC, behind.HTTP)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, forwarder.Close()) }()
	library, err := startPeer(ctx, "library", behind.GRPC, behind.HTTP)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, library.Close()) }()
	own := os.Getpid()
	served := behind.Pid()
	ways := []way{
		{straight, behind.GRPC, behind.HTTP, pids{own, 0, served}, false},
		{forwarded, forwarder.Addresses[0], forwarder.Addresses[1], pids{own, forwarder.Pid(), served}, false},
		{libraries, library.Addresses[0], library.Addresses[1], pids{own, library.Pid(), served}, false},
	}
	for _, other := range reverses {
		if _, err := os.Stat(filepath.Join(b.proxies, other.name)); err != nil {
			b.say(other.name + " is left out: `make proxies` sets it up")
			continue
		}
		p, err := startReverse(ctx, other, b.proxies, directory, behind)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, p.Close()) }()
		ways = append(ways, way{other.name, p.grpc, p.http, pids{own, -p.cmd.Process.Pid, served}, true}) // the group: nginx has workers
	}
	observer, err := rig.StartConch(starting, rig.ConchOptions{
		Bin: b.bin, GPUs: 1, Mode: "observe", Attach: []*rig.Server{behind},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, observer.Close()) }()
	former, err := rig.StartConch(starting, rig.ConchOptions{
		Bin: b.bin, GPUs: 1, Mode: "observe", Attach: []*rig.Server{behind}, Settings: map[string]any{"wire": "grpc-go"},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, former.Close()) }()
	ways = append(ways, way{withGRPCGo, former.GRPC, former.HTTP, pids{own, former.Pid(), served}, false})
	ways = append(ways, way{attached, observer.GRPC, observer.HTTP, pids{own, observer.Pid(), served}, false})
	ways = append(ways, way{through, conch.GRPC, conch.HTTP, pids{own, conch.Pid(), owned}, false})
	for _, protocol := range []string{"grpc", "http"} {
		for _, p := range payloads {
			for _, callers := range []int{1, 64} {
				if err := b.compare(ctx, r, conch, ways, fmt.Sprintf("%s.%s.%s.c%d", prefix, protocol, p.name, callers), protocol, p, callers); err != nil {
					return err
				}
			}
		}
	}
	if server != "" {
		return nil
	}
	return b.neighbour(ctx, r, ways)
}

// startEager starts a conch with one server of its own for the models of the payloads, whose repository it writes into a directory.
func (b *bench) startEager(ctx context.Context, directory, launcher string) (conch *rig.Conch, repository string, err error) {
	repository = filepath.Join(directory, "models")
	for _, p := range payloads {
		model := zoo.Model{Name: p.name, Profile: zoo.Profile{Model: p.name, GPUType: zoo.A100, SLO: time.Second}, MaxBatchSize: 64, Dims: []int64{int64(p.elements)}, ModelPy: pymodels.Emulate}
		if err := zoo.Write(repository, model); err != nil {
			return nil, "", err
		}
	}
	conch, err = rig.StartConch(ctx, rig.ConchOptions{
		Bin: b.bin, Repository: repository, GPUs: 1, Server: launcher,
		// A discipline that defers would have every caller wait for others: that is not the cost of the path.
		Settings: map[string]any{"defaults": map[string]any{"discipline": "eager", "slo": "1s"}},
	})
	return conch, repository, err
}

// foreignServer is a server that no conch started, on TCP ports, with the models of the payloads: what clients call that have no proxy.
func foreignServer(ctx context.Context, launcher, repository string) (*rig.Server, error) {
	s, err := rig.StartServer(ctx, rig.ServerOptions{
		Server: launcher, Repository: repository, Environment: []string{"CONCH_PARTITION=foreign", "CONCH_GPU=gpu0", "CONCH_SHARE=100"},
	})
	if err != nil {
		return nil, err
	}
	if err := loadPayloads(ctx, s.GRPC); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// loadPayloads loads the models of the payloads into a server.
func loadPayloads(ctx context.Context, address string) error {
	to, err := triton.Dial(address)
	if err != nil {
		return err
	}
	defer to.Close() //nolint:errcheck // it has done its work
	for _, p := range payloads {
		if err := to.Load(ctx, p.name); err != nil {
			return err
		}
	}
	return nil
}

// compare measures one kind of call on all ways, in turns.
func (b *bench) compare(ctx context.Context, r *figure.Report, conch *rig.Conch, ways []way, name, protocol string, p payload, callers int) error {
	if !strings.Contains(name, b.only) {
		return nil
	}
	calls := make([]loadgen.Caller, len(ways))
	for i, w := range ways {
		c, closeCaller, err := b.caller(protocol, w.grpc, w.http, p, callers)
		if err != nil {
			return err
		}
		defer closeCaller()
		calls[i] = c
	}
	p50, perSecond := map[string][]float64{}, map[string][]float64{}
	failed := map[string]bool{} // reverses that did not answer every call
	times := map[string]*account{}
	for _, w := range ways {
		times[w.name] = &account{}
	}
	machine := clock.System()
	length := 200 * time.Millisecond // the first round only warms up
	for range b.roundsOr(5) + 1 {
		for i, w := range ways {
			if failed[w.name] {
				continue
			}
			timesBefore, err := w.pids.processorTime()
			if err != nil {
				return err
			}
			bounded, cancel := context.WithTimeout(ctx, length+patience) // a reverse may lose a call for good
			got, err := loadgen.Closed(bounded, callers, length, calls[i], machine)
			cancel()
			if err != nil && w.reverse {
				b.say(fmt.Sprintf("%s: %s is left out: %v", name, w.name, err))
				failed[w.name] = true
				continue
			}
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			if length != trialTime {
				continue
			}
			timesAfter, err := w.pids.processorTime()
			if err != nil {
				return err
			}
			times[w.name].add(timesBefore, timesAfter, got.Calls)
			p50[w.name] = append(p50[w.name], float64(got.Quantile(0.5))/float64(time.Microsecond))
			perSecond[w.name] = append(perSecond[w.name], got.PerSecond())
		}
		length = trialTime
	}
	ways = slices.DeleteFunc(slices.Clone(ways), func(w way) bool { return failed[w.name] })
	added := func(way string) []float64 {
		return pairwise(p50[way], p50[straight], func(a, b float64) float64 { return a - b })
	}
	ratio := func(way, to string) []float64 {
		return pairwise(perSecond[way], perSecond[to], func(a, b float64) float64 { return a / b })
	}
	if callers == 1 {
		over := pairwise(added(through), added(forwarded), func(a, b float64) float64 { return a / b })
		r.AddRuns(name+".added_to_forwarder", over, "ratio", "median latency that conch adds over what the forwarder adds, in turns")
		r.AddRuns(name+".added_p50_us", added(through), "us", "median latency through conch less straight")
		for _, w := range ways {
			if w.name != straight && w.name != through {
				r.AddRuns(name+"."+w.name+"_added_p50_us", added(w.name), "us", "median latency through "+titles[w.name]+" less straight")
			}
		}
		r.AddRuns(name+".straight_p50_us", p50[straight], "us", "")
	} else {
		r.AddRuns(name+".throughput_to_forwarder", ratio(through, forwarded), "ratio", "calls per second through conch over through the forwarder, in turns")
		r.AddRuns(name+".throughput_ratio", ratio(through, straight), "ratio", "calls per second through conch over straight")
		for _, w := range ways {
			if w.name != straight && w.name != through {
				r.AddRuns(name+"."+w.name+"_throughput_ratio", ratio(w.name, straight), "ratio", "calls per second through "+titles[w.name]+" over straight")
			}
		}
		r.AddRuns(name+".straight_per_second", perSecond[straight], "req/s", "")
	}
	for _, w := range ways {
		times[w.name].report(r, name+"."+w.name, w.pids)
	}
	if callers == 1 && p.elements*4 >= 16*shortestMove {
		if err := b.copies(ctx, r, conch.Pid(), name, calls[len(calls)-1], p); err != nil {
			return err
		}
	}
	for _, w := range ways {
		b.say(fmt.Sprintf("%s: %s: p50 %.0f us, %.0f per second", name, w.name, median(p50[w.name]), median(perSecond[w.name])))
	}
	return nil
}

// titles are the ways in words.
var titles = map[string]string{forwarded: "the forwarder", libraries: "a proxy of nothing but the libraries", attached: "a conch that observes the server", withGRPCGo: "a conch that observes the server with wire: grpc-go", "nginx": "nginx", "haproxy": "HAProxy"}

// pairwise combines what was measured in the same round.
func pairwise(a, b []float64, combine func(a, b float64) float64) []float64 {
	out := make([]float64, min(len(a), len(b)))
	for i := range out {
		out[i] = combine(a[i], b[i])
	}
	return out
}

func (b *bench) caller(protocol, grpcAddress, httpAddress string, p payload, callers int) (c loadgen.Caller, closeCaller func(), err error) {
	if protocol == "http" {
		h, err := loadgen.NewHTTP(httpAddress, p.name, loadgen.Emulated(p.elements), callers)
		if err != nil {
			return nil, nil, err
		}
		return h, h.Close, nil
	}
	g, err := loadgen.NewGRPC([]string{grpcAddress}, []loadgen.Model{{Name: p.name}}, loadgen.Emulated(p.elements))
	if err != nil {
		return nil, nil, err
	}
	return g, func() { _ = g.Close() }, nil // all calls have ended: there is nothing to lose
}
