// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package mps turns a partition into the environment that makes CUDA's
// Multi-Process Service enforce its share of the GPU. It starts nothing: the
// control daemon is the operator's.
package mps

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/conch-serving/conch/plugins/policy"
)

// DefaultPipeDirectory is where CUDA looks for the daemon unless told otherwise.
const DefaultPipeDirectory = "/tmp/nvidia-mps"

// Daemon is the MPS control daemon of a machine as Detect found it.
type Daemon struct {
	// PipeDirectory is CUDA_MPS_PIPE_DIRECTORY.
	PipeDirectory string
	// Running reports that the daemon's control pipe exists.
	Running bool
}

// Detect looks for the daemon's control pipe in pipeDirectory, or in
// DefaultPipeDirectory if that is empty. The pipe of a daemon that was killed
// remains, so that Running can be wrong one way only.
func Detect(pipeDirectory string, stat func(string) (fs.FileInfo, error)) Daemon {
	if pipeDirectory == "" {
		pipeDirectory = DefaultPipeDirectory
	}
	if stat == nil {
		stat = os.Stat
	}
	info, err := stat(filepath.Join(pipeDirectory, "control"))
	return Daemon{PipeDirectory: pipeDirectory, Running: err == nil && info.Mode()&fs.ModeNamedPipe != 0}
}

// Share is how a partition's share of its GPU is put into force.
type Share struct {
	// Environment are NAME=VALUE pairs for the partition's process.
	Environment []string
	// Enforced is false where the share is only recorded; Reason says why.
	Enforced bool
	Reason   string
}

// Of is the share of partition p on GPU g.
//
// The process sees one device, by its unique id where the driver knows one:
// under MPS a client counts the devices of the daemon, not of the machine.
// Percentage and memory limit (MPS v2: CUDA_MPS_ACTIVE_THREAD_PERCENTAGE,
// CUDA_MPS_PINNED_DEVICE_MEM_LIMIT) can only tighten what the daemon allows.
func Of(p *policy.Partition, g *policy.GPU, d Daemon) Share {
	if g.GetEmulated() {
		return Share{Environment: []string{"CUDA_VISIBLE_DEVICES="}, Reason: "the GPU is emulated"}
	}
	device := g.GetUuid()
	if device == "" {
		device = strconv.FormatUint(uint64(g.GetIndex()), 10)
	}
	s := Share{Environment: []string{"CUDA_VISIBLE_DEVICES=" + device}}
	if !d.Running {
		s.Reason = "no MPS control daemon answers in " + d.PipeDirectory
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
