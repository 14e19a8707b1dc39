// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Command pictures makes docs/pictures from the running program: a recording of `tritonctl top` on a conch of four emulated GPUs under the
// demo's load.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/conch-serving/conch/internal/loadgen"
	"github.com/conch-serving/conch/internal/rig"
	"github.com/conch-serving/conch/internal/zoo"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, "bin", filepath.Join("docs", "pictures")); err != nil {
		fmt.Fprintln(os.Stderr, "pictures:", err)
		os.Exit(1)
	}
}

// rate is what four GPUs can do and three cannot.
const rate = 240

// run makes the pictures with the programs of a directory.
func run(ctx context.Context, bin, into string) (err error) {
	models, err := rig.Zoo(zoo.GTX1080Ti, 2, 16, "ResNet50", "InceptionV3", "MobileNetV2", "VGG16", "DenseNet121", "EfficientNetB0")
	if err != nil {
		return err
	}
	conch, err := rig.StartConch(ctx, rig.ConchOptions{Bin: bin, Models: models, GPUs: 4, GPUType: zoo.GTX1080Ti, Late: "drop"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conch.Close()) }()
	enough, loaded := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := rig.Measure(ctx, conch, loadgen.Load{
			Models: models.Load(), Rate: rate, Measure: time.Hour, Until: enough, Patience: 2 * time.Second, Seed: 1,
		})
		loaded <- err
	}()
	end := sync.OnceFunc(func() { close(enough) })
	defer end()
	fmt.Fprintln(os.Stderr, "-- recording tritonctl top")
	tritonctl := filepath.Join(bin, "tritonctl")
	drain := func() error {
		out, err := exec.CommandContext(ctx, tritonctl, "gpu", "drain", "gpu3", "--reason", "a fan is to be replaced", "--yes", "--admin", conch.Admin).CombinedOutput()
		if err != nil {
			return fmt.Errorf("tritonctl gpu drain: %w: %s", err, out)
		}
		return nil
	}
	frames, err := record(ctx, exec.CommandContext(ctx, tritonctl, "top", "--admin", conch.Admin), []step{
		// The first ten seconds fill the histories and are not shown.
		{at: 12 * time.Second, keys: "j"}, {at: 13 * time.Second, keys: "\r"},
		{at: 16 * time.Second, keys: "q"}, {at: 16500 * time.Millisecond, keys: "2"},
		{at: 18 * time.Second, do: drain},
		{at: 22 * time.Second, keys: "4"}, {at: 24500 * time.Millisecond, keys: "3"}, {at: 27500 * time.Millisecond, keys: "1"},
	}, 10*time.Second, 30*time.Second)
	if err != nil {
		return err
	}
	end()
	if err := <-loaded; err != nil {
		return err
	}
	if err := os.MkdirAll(into, 0o755); err != nil { //nolint:gosec // pictures are for everybody
		return err
	}
	path := filepath.Join(into, "top.svg")
	if err := os.WriteFile(path, draw(frames, "tritonctl top: 20 seconds of a conch on four emulated GPUs, of which one is drained meanwhile"), 0o644); err != nil { //nolint:gosec // the same
		return err
	}
	fmt.Fprintln(os.Stderr, "-- wrote", path)
	return nil
}
