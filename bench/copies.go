// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/conch-serving/conch/internal/clock"
	"github.com/conch-serving/conch/internal/figure"
	"github.com/conch-serving/conch/internal/loadgen"
)

// Moves shorter than this are not of tensors: a frame of HTTP/2 has up to 16 KiB.
const shortestMove = 1024

// copies counts what a process of ours moves in its own memory per byte of tensors, in and out, while one caller calls: a probe of the
// kernel in Go's memmove adds up. It needs Linux's perf and root; without them it says so and reports nothing.
func (b *bench) copies(ctx context.Context, r *figure.Report, pid int, name string, caller loadgen.Caller, p payload) (err error) {
	if runtime.GOARCH != "amd64" || os.Geteuid() != 0 {
		b.say(name + ": bytes copied are not counted: that needs root on amd64")
		return nil
	}
	perf, err := exec.LookPath("perf")
	if err != nil {
		b.say(name + ": bytes copied are not counted: that needs perf (Debian: linux-perf)")
		return nil
	}
	binary, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return err
	}
	// Go's own calling convention: the third argument, the length, is in CX.
	event := fmt.Sprintf("conchbench%d:move", os.Getpid())
	if out, err := exec.CommandContext(ctx, perf, "probe", "-q", "-x", binary, "-a", event+"=runtime.memmove length=%cx:u64").CombinedOutput(); err != nil {
		b.say(fmt.Sprintf("%s: bytes copied are not counted: perf probe: %v: %s", name, err, bytes.TrimSpace(out)))
		return nil
	}
	defer func() {
		err = errors.Join(err, exec.CommandContext(context.WithoutCancel(ctx), perf, "probe", "-q", "-d", event).Run())
	}()
	directory, err := os.MkdirTemp("", "conch-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(directory)) }()
	recorded := filepath.Join(directory, "perf.data")
	const before, length = 500 * time.Millisecond, time.Second
	record := exec.CommandContext(ctx, perf, "record", "-q", "-e", event, "--filter", fmt.Sprintf("length >= %d", shortestMove), "-p", strconv.Itoa(pid), "-o", recorded)
	if err := record.Start(); err != nil {
		return err
	}
	machine := clock.System()
	machine.Sleep(before) // perf does not say when it has begun; nothing moves meanwhile
	got, err := loadgen.Closed(ctx, 1, length, caller, machine)
	stopped := record.Process.Signal(syscall.SIGINT)
	_ = record.Wait() // perf ends by our signal, and says so
	if err := errors.Join(err, stopped); err != nil {
		return err
	}
	moved, err := sumLengths(ctx, perf, recorded)
	if err != nil {
		return err
	}
	tensors := float64(got.Calls) * 2 * 4 * float64(p.elements) // FP32, as many out as in
	r.AddRuns(name+".copied_per_tensor_byte", []float64{moved / tensors}, "ratio",
		fmt.Sprintf("bytes moved within the process in pieces of %d and more, libraries included and the kernel's excluded, per byte of tensors in and out", shortestMove))
	return nil
}

var lengthField = regexp.MustCompile(`length=(\d+)`)

// sumLengths adds up the probe's field length over a recording.
func sumLengths(ctx context.Context, perf, recorded string) (sum float64, err error) {
	script := exec.CommandContext(ctx, perf, "script", "-i", recorded, "-F", "event,trace")
	out, err := script.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := script.Start(); err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if m := lengthField.FindSubmatch(lines.Bytes()); m != nil {
			n, err := strconv.ParseUint(string(m[1]), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("perf script: %q: %w", lines.Text(), err)
			}
			sum += float64(n)
		}
	}
	return sum, errors.Join(lines.Err(), script.Wait())
}
