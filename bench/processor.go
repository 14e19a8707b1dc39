// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/prometheus/procfs"

	"github.com/conch-serving/conch/internal/figure"
)

// The processes that a call goes through.
const (
	clientProcess = iota
	proxyProcess
	serverProcess
	processes
)

var processNames = [processes]string{"client", "proxy", "server"}

// pids are the numbers of the processes of one way; 0: it has no such process; below 0: those of a process group, as kill(2) has them.
type pids [processes]int

// processorTime reads the processor time, user and system, that each process has taken since it started, in seconds.
func (p pids) processorTime() (seconds [processes]float64, err error) {
	for i, pid := range p {
		switch {
		case pid > 0:
			seconds[i], err = timeOf(pid)
		case pid < 0:
			seconds[i], err = timeOfGroup(-pid)
		}
		if err != nil {
			return seconds, fmt.Errorf("processor time of the %s: %w", processNames[i], err)
		}
	}
	return seconds, nil
}

func timeOf(pid int) (float64, error) {
	process, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	stat, err := process.Stat()
	return stat.CPUTime(), err
}

// timeOfGroup adds up the processes of a group that run.
func timeOfGroup(group int) (sum float64, err error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return 0, err
	}
	found := false
	for _, process := range all {
		if stat, err := process.Stat(); err == nil && stat.PGRP == group { // others end meanwhile
			sum, found = sum+stat.CPUTime(), true
		}
	}
	if !found {
		return 0, fmt.Errorf("no process is in the group %d", group)
	}
	return sum, nil
}

// account is the processor time of each process per call, in microseconds, over several trials. Where all processors are busy, its sum says
// why one way carries more than another.
type account [processes][]float64

func (a *account) add(before, after [processes]float64, calls int) {
	for i := range a {
		a[i] = append(a[i], 1e6*(after[i]-before[i])/float64(max(1, calls)))
	}
}

func (a *account) report(r *figure.Report, name string, p pids) {
	for i := range a {
		if p[i] != 0 {
			r.AddRuns(name+"."+processNames[i]+"_cpu_us", a[i], "us/req", "processor time of this process, user and system")
		}
	}
}

// serverPID is what the launcher has left.
func serverPID(directory string) (int, error) {
	data, err := os.ReadFile(filepath.Join(directory, pidFile))
	if err != nil {
		return 0, fmt.Errorf("process of the server: %w", err)
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(data)))
	if err != nil {
		return 0, fmt.Errorf("process of the server: %w", err)
	}
	return pid, nil
}
