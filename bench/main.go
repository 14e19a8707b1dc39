// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/rig"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(os.Stdout, os.Stderr).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is what all commands share.
type bench struct {
	bin, results, server, only, proxies, abacus string
	seed                                        uint64
	rounds                                      int
	quick                                       bool
	stretch                                     float64
	out, progress                               io.Writer
	start                                       time.Time
}

func command(out, progress io.Writer) *cobra.Command {
	b := &bench{out: out, progress: &inTurn{w: progress}, start: time.Now()}
	root := &cobra.Command{Use: "conch-bench", Short: "Measures the figures of docs/results.md", SilenceUsage: true, SilenceErrors: true}
	program, err := os.Executable()
	if err != nil {
		program = "bin/conch-bench"
	}
	flags := root.PersistentFlags()
	flags.StringVar(&b.bin, "bin", filepath.Dir(program), "directory of conch and conch-policies")
	flags.StringVar(&b.results, "results", "results", "directory of the reports")
	flags.StringVar(&b.server, "tritonserver", os.Getenv("CONCH_TRITONSERVER"), "path of tritonserver, for live-* and queue policies under overload")
	flags.StringVar(&b.proxies, "proxies", filepath.Join(".cache", "proxies"), "directory of nginx and haproxy, for proxy; those that are not there are left out")
	flags.StringVar(&b.abacus, "abacus", os.Getenv("CONCH_ABACUS"), "directory with the predictor that Abacus's authors published, for reproduce-abacus")
	flags.Uint64Var(&b.seed, "seed", 1, "seed of arrivals")
	flags.StringVar(&b.only, "only", "", "measure only what has this in its name, such as grpc.1KB.c64 (proxy), 8on4.triton (live-8on4), burst.minitriton (fidelity) or fig6b (reproduce); the results file stays as it is")
	flags.IntVar(&b.rounds, "rounds", 0, "how often each comparison is made; 0 means the command's own choice")
	flags.Float64Var(&b.stretch, "stretch", defaultStretch, "factor on emulated times and lengths: a busy machine needs more (fidelity)")
	flags.BoolVar(&b.quick, "quick", false, "measure for a part of the time: to see that it works, not to cite (live-*: half, without confirmation; reproduce, ablation, compare: a twentieth); the results file stays as it is")

	measure := func(use, short string, run func(context.Context, *figure.Report) error) {
		root.AddCommand(&cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			r := &figure.Report{
				Command: target(use), File: use, When: b.start, Seed: b.seed,
				Machine: figure.ThisMachine(), Versions: map[string]string{"go": runtime.Version()},
			}
			r.Stamp(ctx, ".")
			if err := run(ctx, r); err != nil {
				return err
			}
			return b.publish(r)
		}})
	}
	measure("core", "The queue alone: on one core, and past that core's capacity", b.core)
	measure("sim", "How many requests a second the simulator simulates, on one core", b.sim)
	measure("proxy", "A call through conch against the same call straight to the server behind it", b.proxy)
	measure("proxy-triton", "The same with a real tritonserver, and a call to each of its ports by the client that Conch has", b.proxyTriton)
	measure("instant", "Calls per second through conch over those of the server alone, a real tritonserver whose model takes no time", b.instant)
	measure("overload", "Goodput and memory of conch at multiples of what it can do", b.overload)
	measure("sizing", "What a machine needs for conch: processor time per request and per byte, memory per connection; --only grpc or http", b.sizing)
	measure("live-1on4", "Goodput over Triton's own best scheduling: one model on four emulated GPUs, real tritonservers; --only 1on4.ROW", b.oneOnFour)
	measure("live-8on4", "Goodput over Triton's own best scheduling: eight models on four emulated GPUs, real tritonservers; --only 8on4.ROW", b.eightOnFour)
	measure("live-overlap", "Eight models on four emulated GPUs where a part of each execution runs beside others, as on a real GPU", b.overlaps)
	measure("advise", "What tritonctl advise says of "+mixSeen.is+", before mix measures them; --only mixN", b.adviseSeen)
	measure("mix", goodputOf+mixSeen.is+"; --only mixN", b.mixSeen)
	measure("advise-unseen", "What tritonctl advise says of "+mixUnseen.is+", before mix-unseen measures them; --only mixN", b.adviseUnseen)
	measure("mix-unseen", goodputOf+mixUnseen.is+"; --only mixN", b.mixUnseen)

	measure("fidelity", "Goodput and p99 of live conch over the simulator's for the same arrivals, on minitriton and real tritonservers; --only SCENARIO.TRITON", b.fidelity)

	measure("estimator", "How far off estimates are on what their fit never saw, and how long one takes; --only neusight, shares, uses, zoo, model_ms or cpu", b.estimator)
	measure("estimator-whole", "How far off estimates of whole models are that no fit has seen, and how often their bounds hold; --only transformers, unseen or bounds", b.estimatorWhole)
	measure("reproduce", "What Symphony's paper and its published scheduler say against the simulator", b.reproduce)
	measure("reproduce-abacus", "What Abacus's paper says of its 21 pairs against the simulator, with the predictor that its authors published (--abacus DIR)", b.reproduceAbacus)
	measure("reproduce-placement", "What INFaaS, USHER and gpulet say of placement against their policies here", b.reproducePlacement)
	measure("ablation", "What each rule of adaptive brings: its goodput over that without the rule, on simulated loads where the rule matters; --only RULE", b.ablation)
	measure("compare", "Goodput of every discipline under a matrix of simulated loads; --only NAME for a part of it", b.matrix)

	measure("pipelines", "What DAGs of models hold in the simulator, by how the deadlines of steps follow from the end's; --only NAME", b.pipelines)
	measure("pipelines-live-chain", ensembleGoodput+"a chain of three", b.chainLive)
	measure("pipelines-live-urgent", ensembleGoodput+"the same with no time for full batches", b.urgentLive)
	measure("pipelines-live-detector", ensembleGoodput+"a detector with two classifiers", b.detectorLive)
	measure("pipelines-live-diamond", ensembleGoodput+"two branches between two steps", b.diamondLive)
	measure("schedulability", "Which of gpulet's 19,682 mixes policies schedule on four GPUs, and which any plan could; --only POLICY", b.schedulability)
	measure("placements", "Placement policies in the simulator: what each holds on fixed GPUs, and how many it needs and what they cost on elastic ones; --only SCENARIO", b.placementMatrix)
	measure("placements-judges", "Loads that placement policies hold in the simulator once they have what conch has, its search and its beginnings, and with profiles that are wrong; --only SCENARIO", b.placementJudges)
	measure("policies-live", "Policies on real tritonservers that emulate partitions with interference, and the simulator with the same plan and arrivals; --only POLICY", b.policiesLive)
	measure("placements-live", "What plans of policies serve on real tritonservers in three scenes, at the same load and arrivals, and in the simulator; --only SCENE", b.placementsLive)
	measure("merge", "Merged models: goodput of fine-tunes in the simulator and on real tritonservers, time and memory of an analysis, of each mode in ONNX Runtime; --only goodput, live, analyze or modes", b.merge)
	measure("swaps", "What requests notice of ten changes of the route table a second, with a thousand models", b.besideSwaps)
	measure("watch", "What it costs conch to be watched by ten clients, under load", b.watching)
	measure("cluster", "The plan way at 1,000 nodes and 4,000 GPUs: the driver kubernetes against a real API server, and plans by conch and symphony", b.cluster)
	measure("gpu", "One real NVIDIA GPU: l(b) of two networks of PyTorch, executions at once in streams and in processes, l(b, share) and pairs of shares under MPS", b.gpu)
	measure("failover", "What clients notice where all of three replicas but one are killed at once, on a real Kubernetes", b.failover)
	measure("hop", "A call through a replica that hands it on against the same call to the owner", b.hop)
	measure("owners", "What models and GPUs hold in the simulator that are divided among two and four owners, over what one owner of all holds; --only NAME", b.owners)
	measure("unseen", "Goodput of adaptive over that of the best other discipline on loads that seeds draw; --only NAME for a part of them", b.unseen)

	root.AddCommand(peers()...)
	root.AddCommand(&cobra.Command{
		Use: "minitriton ARGUMENTS", Short: "A minitriton that takes tritonserver's arguments", Hidden: true,
		DisableFlagParsing: true, Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			defer runtime.KeepAlive(slack())
			return rig.ServeMinitriton(cmd.Context(), args)
		},
	})

	root.AddCommand(b.resultsCommand())
	return root
}

const ensembleGoodput = "Goodput of an ensemble on four emulated GPUs, real tritonservers, by Triton's own scheduling, by Conch that passes it on, and by Conch that executes its steps: "

// publish prints the figures, and replaces the results file with them unless they are a part of what belongs there, or no figures to cite.
func (b *bench) publish(r *figure.Report) error {
	if err := r.Print(b.out); err != nil {
		return err
	}
	path := filepath.Join(b.results, r.File+".json")
	switch {
	case b.quick:
		b.say(path + " is not written: with --quick the figures are not to cite")
	case b.only != "":
		b.say(path + " is not written: with --only the figures are a part of it")
	default:
		if err := r.Write(b.results); err != nil || r.File != "placements" {
			return err
		}
		return drawPlacements(b.results, []*figure.Report{r})
	}
	return r.Validate()
}

// keep writes what a report has so far, for a run of many parts that may be stopped, where publish would write it.
func (b *bench) keep(r *figure.Report) error {
	if b.quick || b.only != "" {
		return nil
	}
	return r.Write(b.results)
}

// inTurn is a writer to which runs on several cores write a line each.
type inTurn struct {
	mu sync.Mutex
	w  io.Writer
}

func (t *inTurn) Write(line []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.w.Write(line)
}

// say prints a line of progress with the seconds since the start.
func (b *bench) say(line string) {
	fmt.Fprintf(b.progress, "[%6.1fs] %s\n", time.Since(b.start).Seconds(), line)
}

// roundsOr is how often to compare.
func (b *bench) roundsOr(n int) int {
	if b.rounds > 0 {
		return b.rounds
	}
	return n
}

// target is how a user runs a command.
func target(use string) string {
	switch use {
	case "reproduce", "compare":
		return "make " + use
	case "reproduce-abacus":
		return "make reproduce ABACUS=DIR"
	case "advise", "mix", "advise-unseen", "mix-unseen":
		return "make bench BENCH=live"
	}
	return "make bench BENCH=" + use
}
