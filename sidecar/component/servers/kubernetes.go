// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package servers

import (
	"context"

	"github.com/conch-serving/conch/estimator/gpu"
	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes"
	"github.com/conch-serving/conch/sidecar/config"
)

// PodOptions are the options of the driver whose servers are Pods, as far as a configuration has them.
func PodOptions(c *config.Config) kubernetes.Options {
	d, k := c.Driver, c.Driver.Kubernetes
	return kubernetes.Options{
		Release: k.Release, Owner: k.Owner, Image: k.Image, Server: d.TritonServer, BackendDir: d.BackendDirectory,
		Arguments: d.Arguments, Environment: d.Environment, Template: string(k.PodTemplate), ModelsPath: k.Models.Path, ModelsVolume: string(k.Models.Volume),
		GPUDriver: k.GPUs.Driver, GPUClass: k.GPUs.Class, MIGClass: k.GPUs.MIGClass, GPUResource: k.GPUs.Resource, Sharing: kubernetes.Sharing(k.GPUs.Sharing), Grow: k.GPUs.Grow, Complete: dataSheet,
		Stretch: d.Stretch, StartTimeout: d.StartTimeout.Std(), DrainTimeout: c.Limits.Drain.Std(),
	}
}

// inCluster makes the driver whose servers are Pods.
func inCluster(ctx context.Context, o Options) (*Servers, error) {
	of := PodOptions(o.Config)
	of.Connection, of.DRA, of.Credentials, of.Logger = o.Cluster.Connection, o.Cluster.DRA, o.Credentials, o.Log.With("part", "driver")
	of.Leaving, of.Changed, of.Fence = o.Leaving, o.NodesChanged, o.Cluster.Owns
	pods, err := kubernetes.New(ctx, of)
	if err != nil {
		return nil, err
	}
	return &Servers{Driver: pods, Pods: pods, Nodes: pods.Nodes}, nil
}

// dataSheet is what is known of a type of GPU besides what the cluster says.
func dataSheet(f kubernetes.GPUFacts) kubernetes.GPUFacts {
	if sheet, err := gpu.Find(f.Type); err == nil {
		f.SMCount, f.BandwidthBytesPerSecond, f.ContextBytes = uint32(sheet.SMs), sheet.Bandwidth, uint64(sheet.Context)
	}
	return f
}
