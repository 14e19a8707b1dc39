// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/prometheus/procfs"

	"github.com/conch-serving/conch/estimator/calibrate"
)

// execution names the executions of a batch size by a model.
type execution struct {
	model string
	batch int
}

// stubRunner runs models in the python backend of a server on this machine, and reads what their process takes: the processor time of a batch in place of
// its wall time (a session of one thread that has a processor to itself takes as long, and one that has to share it is not mistaken for a slow one), and
// the peak of its resident memory. A server executes the batch sizes of a model in the order in which they are listed, smaller ones first.
type stubRunner struct {
	calibrate.Runner
	// server is the process whose child executes the model; stub is that child.
	server, stub int
	// peak is the most that the process has held since its model was loaded, in bytes, by model and batch.
	peak map[execution]float64
}

// Load loads a model and finds its process.
func (r *stubRunner) Load(ctx context.Context, m calibrate.Model, file []byte) error {
	before, err := r.stubs()
	if err != nil {
		return err
	}
	if err := r.Runner.Load(ctx, m, file); err != nil {
		return err
	}
	after, err := r.stubs()
	if err != nil {
		return err
	}
	fresh := slices.DeleteFunc(after, func(pid int) bool { return slices.Contains(before, pid) })
	if len(fresh) != 1 {
		return fmt.Errorf("%s: %d processes came with it, of which one executes it", m.Name, len(fresh))
	}
	r.stub = fresh[0]
	// 5 forgets the peak, which loading had.
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", r.stub), []byte("5"), 0); err != nil {
		return fmt.Errorf("%s: peak of resident memory: %w", m.Name, err)
	}
	return nil
}

// Infer runs a batch and gives the processor time that the model's process took meanwhile.
func (r *stubRunner) Infer(ctx context.Context, m calibrate.Model, batch int, input []float32) (time.Duration, error) {
	before, err := r.ran()
	if err != nil {
		return 0, err
	}
	if _, err := r.Runner.Infer(ctx, m, batch, input); err != nil {
		return 0, err
	}
	after, err := r.ran()
	if err != nil {
		return 0, err
	}
	p, err := procfs.NewProc(r.stub)
	if err != nil {
		return 0, err
	}
	status, err := p.NewStatus()
	if err != nil {
		return 0, err
	}
	at := execution{m.Name, batch}
	r.peak[at] = max(r.peak[at], float64(status.VmHWM))
	return after - before, nil
}

// ran is the processor time of all threads of the model's process.
func (r *stubRunner) ran() (time.Duration, error) {
	threads, err := procfs.AllThreads(r.stub)
	if err != nil {
		return 0, fmt.Errorf("threads of the model's process: %w", err)
	}
	var sum uint64
	for _, t := range threads {
		s, err := t.Schedstat()
		if err != nil {
			continue // it ended
		}
		sum += s.RunningNanoseconds
	}
	return time.Duration(sum), nil
}

// stubs are the processes below the server's that execute python models.
func (r *stubRunner) stubs() ([]int, error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return nil, err
	}
	parents, names := map[int]int{}, map[int]string{}
	for _, p := range all {
		if s, err := p.Stat(); err == nil { // it may have ended
			parents[p.PID], names[p.PID] = s.PPID, s.Comm
		}
	}
	var found []int
	for pid, name := range names {
		if name != "triton_python_b" {
			continue
		}
		for at := pid; at > 1; at = parents[at] {
			if at == r.server {
				found = append(found, pid)
				break
			}
		}
	}
	return found, nil
}
