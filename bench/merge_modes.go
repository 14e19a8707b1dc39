// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/graphs"
	"github.com/conch-serving/conch/internal/onnx"
	"github.com/conch-serving/conch/internal/ort"
	"github.com/conch-serving/conch/merger"
)

// pairOf is two generated models that share a part of their weights, and the inputs that a run takes.
type pairOf struct {
	name  string
	model func(own uint64) *graphs.Model
	// rows per member at which the modes are timed.
	rows []int64
	// most is the largest batch that the models allow, up to which a merge is verified.
	most  int
	input func(rows int64) onnx.Array
}

// sharedExcept shares everything but a region of tensors whose names begin with one of the prefixes.
func sharedExcept(r graphs.Region, prefixes ...string) func(string) graphs.Region {
	return func(tensor string) graphs.Region {
		for _, p := range prefixes {
			if strings.HasPrefix(tensor, p) {
				return r
			}
		}
		return graphs.Everything()
	}
}

func weightsOf(own uint64, shared func(string) graphs.Region) graphs.Weights {
	return graphs.Weights{Base: 1, Own: own, Shared: shared}
}

func floatsOf(name string, dims ...int64) onnx.Array {
	n := int64(1)
	for _, d := range dims {
		n *= d
	}
	a := onnx.Array{Name: name, Type: onnx.Float, Dims: dims, Data: make([]byte, 4*n)}
	for i := range n {
		a.Data[4*i+3], a.Data[4*i+2] = 0x3e, byte(i*37) // between .125 and .5
	}
	return a
}

func tokensOf(rows, length int64) onnx.Array {
	a := onnx.Array{Name: "TOKENS", Type: onnx.Int64, Dims: []int64{rows, length}, Data: make([]byte, 8*rows*length)}
	for i := range rows * length {
		a.Data[8*i] = byte(i * 37)
	}
	return a
}

// networkRows is the largest batch of whole networks: verifying runs every mode at it several times, which takes a core minutes at 64.
const networkRows = 4

// pairs are chains that share all layers, and BERT-bases that share eight of twelve layers or all but the classifier.
func pairs(quick bool) []pairOf {
	all := []pairOf{{
		name: "chain100", rows: []int64{1, 8, 64}, most: 64,
		model: func(own uint64) *graphs.Model {
			return graphs.Chain(weightsOf(own, sharedExcept(graphs.Region{To: 1}, "layer")), 768, 768, 768, 768, 768)
		},
		input: func(rows int64) onnx.Array { return floatsOf("X", rows, 768) },
	}}
	if quick {
		return all
	}
	text := func(rows int64) onnx.Array { return tokensOf(rows, 32) }
	return append(all,
		pairOf{name: "bert.layers8", rows: []int64{1}, most: networkRows, input: text, model: func(own uint64) *graphs.Model {
			return graphs.BERTBase(weightsOf(own, sharedExcept(graphs.Region{}, "layer8", "layer9", "layer10", "layer11", "pooler", "head")), 32, 2)
		}},
		pairOf{name: "bert.backbone", rows: []int64{1}, most: networkRows, input: text, model: func(own uint64) *graphs.Model {
			return graphs.BERTBase(weightsOf(own, sharedExcept(graphs.Region{}, "head")), 32, 2)
		}},
	)
}

// write puts both models into directories as a Triton would have them.
func (p pairOf) write(dir string) ([]merger.Member, error) {
	var members []merger.Member
	for i, name := range []string{"a", "b"} {
		m := p.model(uint64(2 + i)) //nolint:gosec // small
		version := filepath.Join(dir, name, "1")
		if err := os.MkdirAll(version, 0o755); err != nil {
			return nil, err
		}
		if err := onnx.Write(filepath.Join(version, merger.GraphFile), m.Model, m); err != nil {
			return nil, err
		}
		config := fmt.Sprintf("name: %q\nbackend: \"onnxruntime\"\nmax_batch_size: %d\n", name, p.most)
		if err := os.WriteFile(filepath.Join(dir, name, "config.pbtxt"), []byte(config), 0o644); err != nil { //nolint:gosec // a temporary file
			return nil, err
		}
		found, err := merger.Find(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		members = append(members, found)
	}
	return members, nil
}

// mergeAnalyze measures tritonctl merge analyze of two BERT-bases as a process of its own on one core.
func (b *bench) mergeAnalyze(ctx context.Context, r *figure.Report) error {
	dir, err := os.MkdirTemp("", "conch-merge-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b.say("analyze: writing two encoders of 436 MB")
	p := pairs(false)
	members, err := p[slices.IndexFunc(p, func(x pairOf) bool { return x.name == "bert.layers8" })].write(dir)
	if err != nil {
		return err
	}
	var wall, cpu, memory []float64
	for range b.roundsOr(5) {
		c := exec.CommandContext(ctx, filepath.Join(b.bin, "tritonctl"), "merge", "analyze", "-o", "json", members[0].Dir, members[1].Dir)
		c.Env = append(os.Environ(), "GOMAXPROCS=1")
		start := time.Now()
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("tritonctl merge analyze: %w: %s", err, out)
		}
		wall = append(wall, time.Since(start).Seconds())
		used, ok := c.ProcessState.SysUsage().(*syscall.Rusage)
		if !ok {
			return errors.New("this system does not say what a process used")
		}
		cpu = append(cpu, (c.ProcessState.UserTime() + c.ProcessState.SystemTime()).Seconds())
		memory = append(memory, float64(used.Maxrss)/1024)
	}
	r.AddRuns("merge.analyze_seconds", wall, "s", "two encoders of 436 MB that share 8 of 12 layers, files in the page cache, one core, the process's start included")
	r.AddRuns("merge.analyze_cpu_seconds", cpu, "s", "user and system time of the same")
	r.AddRuns("merge.analyze_memory", memory, "MiB", "resident at most")
	return nil
}

// mergeModes times each mode beside separate sessions, in turns, and compares their memory.
func (b *bench) mergeModes(ctx context.Context, r *figure.Report) error {
	python := os.Getenv("CONCH_PYTHON")
	if python == "" {
		return errors.New("CONCH_PYTHON names no Python with onnxruntime: run make bench BENCH=merge")
	}
	for _, p := range pairs(b.quick) {
		if err := b.mergePair(ctx, r, python, p); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

func (b *bench) mergePair(ctx context.Context, r *figure.Report, python string, p pairOf) error {
	dir, err := os.MkdirTemp("", "conch-merge-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b.say(p.name + ": writing and analysing")
	members, err := p.write(dir)
	if err != nil {
		return err
	}
	a, err := merger.Analyze(ctx, members, merger.Options{})
	if err != nil {
		return err
	}
	defer a.Close() //nolint:errcheck // only read from
	directories := map[string]string{"a": members[0].Dir, "b": members[1].Dir}
	for _, mode := range merger.Modes() {
		report := a.Report.Mode(mode)
		if !report.Feasible {
			b.say(fmt.Sprintf("%s: %s: %s", p.name, mode, report.Reason))
			continue
		}
		into := filepath.Join(dir, string(mode))
		m, err := a.Emit(ctx, into, "merged", mode)
		if err != nil {
			return err
		}
		verified, err := b.mergeVerified(ctx, python, into, directories)
		if err != nil {
			return fmt.Errorf("%s: %w", mode, err)
		}
		b.say(fmt.Sprintf("%s: %s: verified, largest difference %.2g", p.name, mode, verified.Verification.MaxDifference))
		name := "merge." + p.name + "." + strings.ReplaceAll(string(mode), "-", "_")
		r.Add(name+".max_difference", verified.Verification.MaxDifference, "ratio", "largest of any output element, over the largest element")
		if err := b.mergeMode(ctx, r, python, p, m, into, directories, name); err != nil {
			return fmt.Errorf("%s: %w", mode, err)
		}
		if err := os.RemoveAll(into); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) mergeVerified(ctx context.Context, python, dir string, directories map[string]string) (*merger.Manifest, error) {
	run, err := ort.Start(ctx, python)
	if err != nil {
		return nil, err
	}
	m, err := merger.Verify(ctx, dir, directories, run, merger.VerifyOptions{})
	return m, errors.Join(err, run.Close())
}

// resident is the memory of a process with these models loaded and run once, over that of one without any.
func (b *bench) resident(ctx context.Context, python string, load func(*ort.Runtime) error) (float64, error) {
	run, err := ort.Start(ctx, python)
	if err != nil {
		return 0, err
	}
	defer run.Close() //nolint:errcheck // its memory is known by then
	before, err := run.Resident()
	if err != nil {
		return 0, err
	}
	if err := load(run); err != nil {
		return 0, err
	}
	after, err := run.Resident()
	return float64(after - before), err
}

// mergeMode measures one mode.
func (b *bench) mergeMode(ctx context.Context, r *figure.Report, python string, p pairOf, m *merger.Manifest, dir string, directories map[string]string, name string) error {
	separately := func(run *ort.Runtime) error {
		return errors.Join(run.Load(ctx, "a", directories["a"]), run.Load(ctx, "b", directories["b"]))
	}
	merged := func(run *ort.Runtime) error {
		var errs []error
		for _, part := range m.Parts {
			errs = append(errs, run.Load(ctx, part.Name, filepath.Join(dir, part.Name)))
		}
		return errors.Join(errs...)
	}
	// Weights that a session maps from a file are resident once it has read them: both sides run before they are compared.
	separateBytes, err := b.resident(ctx, python, func(run *ort.Runtime) error {
		if err := separately(run); err != nil {
			return err
		}
		_, err := onceSeparately(run, p, 1)
		return err
	})
	if err != nil {
		return err
	}
	mergedBytes, err := b.resident(ctx, python, func(run *ort.Runtime) error {
		if err := merged(run); err != nil {
			return err
		}
		_, err := onceMerged(run, p, m, 1)
		return err
	})
	if err != nil {
		return err
	}
	r.Add(name+".memory_ratio", mergedBytes/separateBytes, "ratio", "resident memory of the sessions after one execution, merged over separate")
	if p.name == "bert.backbone" && m.Mode == merger.Backbone {
		r.Add("merge.memory_ratio", mergedBytes/separateBytes, "ratio", "the same of two BERT-bases that share their backbone: what a merge group of two takes of memory")
	}
	run, err := ort.Start(ctx, python)
	if err != nil {
		return err
	}
	defer run.Close() //nolint:errcheck // it has answered
	if err := errors.Join(separately(run), merged(run)); err != nil {
		return err
	}
	for _, rows := range p.rows {
		ratios, err := b.mergeTimes(run, p, m, rows)
		if err != nil {
			return err
		}
		r.AddRuns(fmt.Sprintf("%s.rows%d.time_ratio", name, rows), ratios, "ratio", "merged over two separate sessions one after the other, one thread, runs in turns")
	}
	return nil
}

// onceSeparately runs each of the pair's models once, one after the other, and says how many seconds that took.
func onceSeparately(run *ort.Runtime, p pairOf, rows int64) (float64, error) {
	total := 0.0
	for _, name := range []string{"a", "b"} {
		_, t, err := run.Measure(name, []onnx.Array{p.input(rows)}, 1)
		if err != nil {
			return 0, err
		}
		total += t.Times[0].Seconds()
	}
	return total, nil
}

// onceMerged runs the merged model once, with so many rows of each member, and says how many seconds that took.
func onceMerged(run *ort.Runtime, p pairOf, m *merger.Manifest, rows int64) (float64, error) {
	feeds := []onnx.Array{p.input(rows), p.input(rows)}
	feeds[0].Name, feeds[1].Name = "a/"+feeds[0].Name, "b/"+feeds[1].Name
	if m.Mode == merger.Backbone {
		whose := onnx.Array{Name: merger.MemberInput, Type: onnx.Int32, Dims: []int64{2 * rows, 1}, Data: make([]byte, 8*rows)}
		for row := rows; row < 2*rows; row++ {
			whose.Data[4*row] = 1
		}
		feeds = []onnx.Array{p.input(2 * rows), whose}
	}
	_, t, err := run.Measure(m.Name, feeds, 1)
	if err != nil {
		return 0, err
	}
	return t.Times[0].Seconds(), nil
}

// mergeTimes runs both sides in turns and divides their times, turn by turn.
func (b *bench) mergeTimes(run *ort.Runtime, p pairOf, m *merger.Manifest, rows int64) ([]float64, error) {
	var ratios []float64
	for turn := range b.roundsOr(15) + 2 {
		before, err := onceSeparately(run, p, rows)
		if err != nil {
			return nil, err
		}
		after, err := onceMerged(run, p, m, rows)
		if err != nil {
			return nil, err
		}
		if ratio := after / before; turn >= 2 && !math.IsNaN(ratio) { // the first two warm both sides up
			ratios = append(ratios, ratio)
		}
	}
	return ratios, nil
}
