// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package machine is this machine as a policy sees it: its CPUs, and the GPUs that
// conch.yaml or the driver names.
package machine

import (
	"bufio"
	"bytes"
	"log/slog"
	"os"
	"strconv"
	"strings"

	"github.com/conch-serving/conch/estimator/gpu"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/apply/mps"
	"github.com/conch-serving/conch/sidecar/config"
	"github.com/conch-serving/conch/sidecar/control/snapshot"
	"github.com/conch-serving/conch/sidecar/observe"
)

// Node is this machine with its GPUs: those of conch.yaml, the detected ones for auto, or one for each attached endpoint. With driver kubernetes it has
// none. It is an error if the GPUs cannot be detected.
func Node(c *config.Config, daemon mps.Daemon, log *slog.Logger) (*policy.Node, error) {
	name, err := os.Hostname()
	if err != nil {
		name = "localhost"
	}
	node := &policy.Node{Name: name, Cpu: snapshot.CPU(c)}
	if c.Driver.Kind == config.DriverKubernetes {
		return &policy.Node{Name: name}, nil // those of the cluster have the GPUs
	}
	if c.Driver.Kind == config.DriverAttach {
		// The devices are the servers' affair, wherever they are.
		node.Cpu, node.Gpus = nil, nil
		for i := range c.Driver.Endpoints {
			node.Gpus = append(node.Gpus, Device(c, i))
		}
		return node, nil
	}
	settings := c.GPUs
	var found []*policy.GPU
	if settings.Auto || !allEmulated(settings.List) {
		var remark string
		if found, remark, err = observe.DetectGPUs(); err != nil {
			return nil, err
		}
		if remark != "" {
			log.Info("no NVIDIA GPU is used", "reason", remark)
		}
	}
	switch {
	case !settings.Auto:
		node.Gpus = listed(settings.List, found)
	case len(found) > 0:
		node.Gpus = found
	default:
		// Triton's CPU models need a place too.
		node.Gpus = []*policy.GPU{{Id: config.GPUID(0), Type: "CPU", MemoryBytes: hostMemory(), Emulated: true}}
	}
	for _, g := range node.GetGpus() {
		g.SharesEnforced = daemon.Running && !g.GetEmulated()
		if sheet, err := gpu.Find(g.GetType()); err == nil && !g.GetEmulated() {
			g.ContextBytes = uint64(sheet.Context)
		}
	}
	checkMPS(node, daemon, log)
	return node, nil
}

func allEmulated(list []config.GPU) bool {
	for _, g := range list {
		if !g.Emulated {
			return false
		}
	}
	return true
}

// listed are the GPUs of conch.yaml. Those that are not emulated take what is
// not set from the devices found, in their order.
func listed(list []config.GPU, found []*policy.GPU) []*policy.GPU {
	var all []*policy.GPU
	device := uint32(0)
	for _, entry := range list {
		for range entry.Count {
			g := &policy.GPU{
				Id: config.GPUID(len(all)), Type: entry.Type, MemoryBytes: uint64(entry.Memory), SmCount: entry.SMCount,
				BandwidthBytesPerSecond: float64(entry.Bandwidth), CostPerHour: entry.Cost, Emulated: entry.Emulated,
			}
			if !entry.Emulated {
				g.Index = device
				if int(device) < len(found) {
					at := found[device]
					g.Uuid = at.GetUuid()
					if g.MemoryBytes == 0 {
						g.MemoryBytes = at.GetMemoryBytes()
					}
				}
				device++
			}
			all = append(all, g)
		}
	}
	return all
}

// hostMemory reads /proc/meminfo; 0 where there is none.
func hostMemory() uint64 {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "MemTotal:"); ok {
			kibibytes, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 10, 64)
			if err != nil {
				return 0
			}
			return kibibytes << 10
		}
	}
	return 0
}

// checkMPS says what the shares of partitions are worth here.
func checkMPS(node *policy.Node, daemon mps.Daemon, log *slog.Logger) {
	for _, g := range node.GetGpus() {
		if !g.GetEmulated() && !g.GetSharesEnforced() {
			log.Info("thread percentages are recorded, not enforced", "reason", daemon.Reason)
			return
		}
	}
}

// Device is the GPU that stands for the i-th server that others run: the one that conch.yaml lists, or one of which nothing is known. Of the servers behind
// driver.service all have the same.
func Device(c *config.Config, i int) *policy.GPU {
	if c.GPUs.Auto {
		return &policy.GPU{Id: config.GPUID(i), Type: unknownGPU}
	}
	all := listed(c.GPUs.List, nil)
	return all[min(i, len(all)-1)]
}

// unknownGPU is the type of a GPU behind an endpoint whose GPU is not declared.
const unknownGPU = "unknown"
