// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package mps turns a partition into the environment that makes CUDA's
// Multi-Process Service enforce its share of the GPU. It starts nothing: the
// control daemon is the operator's.
package mps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
)

// DefaultPipeDirectory is where CUDA looks for the daemon by default.
const DefaultPipeDirectory = "/tmp/nvidia-mps"

// ControlProgram is the daemon's own client, which comes with the GPU driver.
const ControlProgram = "nvidia-cuda-mps-control"

// patience is how long the daemon may take to answer.
const patience = 2 * time.Second

// Daemon is the MPS control daemon of a machine as Detect found it.
type Daemon struct {
	// PipeDirectory is CUDA_MPS_PIPE_DIRECTORY.
	PipeDirectory string
	// Running reports that the daemon answers.
	Running bool
	// Reason says why it is not used, where it does not.
	Reason string
	// Elsewhere: daemons of other machines are meant, which cannot be asked for faults.
	Elsewhere bool
	// ThreadPercentage is the daemon's default for its clients, which theirs can only
	// tighten; 0 where it does not say.
	ThreadPercentage float64

	control string // the client's program
}

// Detect asks the daemon behind pipeDirectory, or DefaultPipeDirectory if that is
// empty, for its default thread percentage, through control (empty means
// ControlProgram on the path). That its pipe exists says nothing: it outlives the
// daemon.
func Detect(ctx context.Context, pipeDirectory, control string) Daemon {
	if pipeDirectory == "" {
		pipeDirectory = DefaultPipeDirectory
	}
	d := Daemon{PipeDirectory: pipeDirectory}
	info, err := os.Stat(filepath.Join(pipeDirectory, "control"))
	if err != nil || info.Mode()&fs.ModeNamedPipe == 0 {
		d.Reason = "no MPS control daemon has its pipe in " + pipeDirectory
		return d
	}
	if control == "" {
		control = ControlProgram
	}
	d.control = control
	answer, err := d.ask(ctx, "get_default_active_thread_percentage")
	if err != nil {
		d.Reason = err.Error()
		return d
	}
	if d.ThreadPercentage, err = strconv.ParseFloat(answer, 64); err != nil {
		d.Reason = fmt.Sprintf("the MPS control daemon in %s answers %q, which is no thread percentage", pipeDirectory, answer)
		return d
	}
	d.Running = true
	return d
}

// ask puts a command to the daemon through its own client.
func (d Daemon) ask(ctx context.Context, question string) (string, error) {
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	command := exec.CommandContext(within, d.control)
	command.Env = append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+d.PipeDirectory)
	command.Stdin = strings.NewReader(question + "\n")
	command.WaitDelay = 100 * time.Millisecond
	answer, err := command.CombinedOutput()
	text := strings.TrimSpace(string(answer))
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return "", fmt.Errorf("%s is not on the path, so that the daemon in %s cannot be asked whether it lives", d.control, d.PipeDirectory)
	case within.Err() != nil:
		return "", fmt.Errorf("the MPS control daemon in %s did not answer within %s", d.PipeDirectory, patience)
	case err != nil:
		return "", fmt.Errorf("the MPS control daemon in %s does not answer: %s (%w)", d.PipeDirectory, text, err)
	}
	return text, nil
}

// faulted is the status of a server after a fatal fault of one of its clients.
const faulted = "FAULT"

// Faulted asks the daemon whether one of its servers is in the state FAULT: a
// client has made a GPU fault, which MPS reports to every client on that GPU.
// None of them computes again, and no other client is let in, before all of them
// have ended ("Error containment" in NVIDIA's documentation of MPS). The server
// does not say which client or GPU it was.
func (d Daemon) Faulted(ctx context.Context) (bool, error) {
	if !d.Running || d.Elsewhere {
		return false, nil
	}
	list, err := d.ask(ctx, "get_server_list")
	if err != nil {
		return false, err
	}
	for server := range strings.FieldsSeq(list) {
		if _, err := strconv.Atoi(server); err != nil {
			return false, fmt.Errorf("the MPS control daemon in %s lists %q, which is no server", d.PipeDirectory, list)
		}
		status, err := d.ask(ctx, "get_server_status "+server)
		if err != nil {
			return false, err
		}
		if strings.Contains(status, faulted) {
			return true, nil
		}
	}
	return false, nil
}

// Share is how a partition's share of its GPU is put into force.
type Share struct {
	// Environment are NAME=VALUE pairs for the partition's process.
	Environment []string
	// Enforced is false where the share is only recorded; Reason says why.
	Enforced bool
	Reason   string
}

// Of is the share of partition p on GPU g. One on CPUs sees no device.
//
// The process sees one device, by its unique id where the driver knows one:
// under MPS a client counts the devices of the daemon, not of the machine.
// Percentage and memory limit (MPS v2: CUDA_MPS_ACTIVE_THREAD_PERCENTAGE,
// CUDA_MPS_PINNED_DEVICE_MEM_LIMIT) can only tighten what the daemon allows.
func Of(p *policy.Partition, g *policy.GPU, d Daemon) Share {
	if p.OnCPU() {
		return Share{Environment: []string{"CUDA_VISIBLE_DEVICES="}, Reason: "the partition is on CPUs, of which MPS knows nothing"}
	}
	if g.GetEmulated() {
		return Share{Environment: []string{"CUDA_VISIBLE_DEVICES="}, Reason: "the GPU is emulated"}
	}
	device := g.GetUuid()
	if device == "" {
		device = strconv.FormatUint(uint64(g.GetIndex()), 10)
	}
	s := Share{Environment: []string{"CUDA_VISIBLE_DEVICES=" + device}}
	if !d.Running {
		s.Reason = cmp.Or(d.Reason, "no MPS control daemon answers in "+d.PipeDirectory)
		return s
	}
	s.Enforced = true
	s.Environment = append(s.Environment,
		"CUDA_MPS_PIPE_DIRECTORY="+d.PipeDirectory,
		"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="+strconv.FormatUint(uint64(p.GetThreadPercentage()), 10))
	if limit := p.GetMemoryLimitBytes(); limit > 0 {
		// MPS reads whole mebibytes; rounding down keeps neighbours' memory theirs.
		s.Environment = append(s.Environment, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0="+strconv.FormatUint(max(limit>>20, 1), 10)+"M")
	}
	return s
}
