// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// up brings the test cluster up and down: up, down, or kubectl with its arguments.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/conch-serving/conch/e2e/cluster"
)

func main() {
	dir := flag.String("dir", "/var/lib/conch-cluster", "the cluster's state; the path is short, for sockets lie below it")
	bin := flag.String("bin", "", "the directory of its programs (scripts/setup/cluster.sh)")
	triton := flag.String("triton", "", "the directory of the tests' tritonserver")
	root := flag.String("project", ".", "the directory of the project: its bin is what Conch's image has")
	nodes := flag.Int("nodes", 2, "how many nodes")
	gpus := flag.Int("gpus", 2, "how many emulated GPUs a node has")
	mps := flag.Bool("mps", true, "whether the DRA driver can share a GPU")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, cluster.Options{
		Dir: *dir, Bin: *bin, Nodes: *nodes, GPUs: *gpus, NoMPS: !*mps, Log: func(format string, args ...any) { fmt.Fprintf(os.Stderr, "   "+format+"\n", args...) },
	}, *triton, *root, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o cluster.Options, triton, root string, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("say up, down or kubectl ARGUMENTS")
	}
	switch args[0] {
	case "up":
		var err error
		if o.Images, err = cluster.Images(filepath.Join(o.Dir, "images"), o.Bin, triton); err != nil {
			return err
		}
		conch := filepath.Join(o.Dir, "images", "conch.tar")
		if err := cluster.Conch(conch, filepath.Join(root, "bin")); err != nil {
			return err
		}
		o.Images = append(o.Images, conch)
		c, err := cluster.New(o)
		if err != nil {
			return err
		}
		if err := c.Up(ctx); err != nil {
			return err
		}
		values, err := cluster.ChartValues(o.Dir, root, triton)
		if err != nil {
			return err
		}
		fmt.Printf("export KUBECONFIG=%s\nhelm install serving deploy/helm/conch --values %s --wait\n", c.Kubeconfig(), values)
		return nil
	case "down":
		c, err := cluster.New(o)
		if err != nil {
			return err
		}
		return c.Down(ctx)
	case "kubectl":
		c, err := cluster.New(o)
		if err != nil {
			return err
		}
		out, err := c.Kubectl(ctx, args[1:]...)
		fmt.Print(out)
		return err
	}
	return fmt.Errorf("%q is none of up, down, kubectl", args[0])
}
