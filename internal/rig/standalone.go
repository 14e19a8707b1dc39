// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/conch-serving/conch/internal/minitriton"
)

// ServeMinitriton is a minitriton as a process of its own, for conch's driver "process": it takes the arguments and the environment that
// conch gives a tritonserver, serves until ctx ends, and can be killed as one. Its GPU is its own: partitions that share a GPU do not slow
// each other. What it does not know of the arguments it leaves aside.
func ServeMinitriton(ctx context.Context, arguments []string) error {
	given := map[string]string{}
	for _, a := range arguments {
		if name, value, ok := strings.Cut(strings.TrimPrefix(a, "--"), "="); ok {
			given[name] = value
		}
	}
	share, err := strconv.Atoi(os.Getenv("CONCH_SHARE"))
	if err != nil {
		return fmt.Errorf("rig: minitriton: CONCH_SHARE: %w", err)
	}
	server, err := minitriton.New(minitriton.Options{
		Repository: given["model-repository"],
		Partition:  minitriton.Partition{ID: os.Getenv("CONCH_PARTITION"), GPU: minitriton.NewGPU(os.Getenv("CONCH_GPU")), Share: share},
	})
	if err != nil {
		return fmt.Errorf("rig: minitriton: %w", err)
	}
	// As Triton reads them: a gRPC service on a Unix socket has the port in its path, an HTTP service has none.
	door := func(name string) string {
		if name == "http" && strings.HasPrefix(given["http-address"], "unix:") {
			return given["http-address"]
		}
		return given[name+"-address"] + ":" + given[name+"-port"]
	}
	listeners, err := minitriton.Listen(door("grpc"), door("http"), door("metrics"))
	if err != nil {
		return fmt.Errorf("rig: minitriton: %w", err)
	}
	if err := server.Start(context.WithoutCancel(ctx), listeners); err != nil {
		return fmt.Errorf("rig: minitriton: %w", err)
	}
	select {
	case <-ctx.Done():
	case <-server.Done():
	}
	return server.Close()
}

// AsMinitriton lets a test binary be the server that conch starts: called first in TestMain, it serves until SIGTERM and reports true where the
// arguments are those of a server.
func AsMinitriton() bool {
	if !slices.Contains(os.Args, "--model-control-mode=explicit") {
		return false
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	err := ServeMinitriton(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

// Kill ends the server of a partition at once, as an accident would (driver "process").
func (c *Conch) Kill(partition string) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return fmt.Errorf("rig: %w", err)
	}
	var errs []error
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// A process that ends meanwhile is not the one.
		environment, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil {
			continue
		}
		// A server is the child of its shim, and that one conch's.
		if parentOf(parentOf(e.Name())) != strconv.Itoa(c.Pid()) || !strings.Contains("\x00"+string(environment), "\x00CONCH_PARTITION="+partition+"\x00") {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			errs = append(errs, fmt.Errorf("rig: kill the server of partition %s: %w", partition, err))
			continue
		}
		return nil
	}
	return errors.Join(append(errs, fmt.Errorf("rig: partition %s has no server under conch, process %d", partition, c.Pid()))...)
}

// parentOf a process, by its number; empty where it has ended.
func parentOf(pid string) string {
	stat, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if err != nil {
		return ""
	}
	_, afterName, _ := strings.Cut(string(stat), ") ")
	if fields := strings.Fields(afterName); len(fields) >= 2 {
		return fields[1]
	}
	return ""
}
