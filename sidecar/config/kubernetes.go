// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"path/filepath"
	"time"
)

// JSON is a value of conch.yaml that others read: what the file says in YAML, as JSON.
type JSON string

// Kubernetes are the settings of driver kubernetes.
type Kubernetes struct {
	// Kubeconfig says how the API server is reached; empty: as a Pod of the cluster does.
	Kubeconfig string `yaml:"kubeconfig"`
	// Namespace of the servers' Pods; empty: that of conch's own Pod, or of the kubeconfig.
	Namespace string `yaml:"namespace"`
	// Release tells the servers of several conches apart, and begins their names.
	Release string `yaml:"release"`
	// Owner is a ConfigMap of the namespace with which the cluster deletes the servers.
	Owner string `yaml:"owner"`
	// Image has a tritonserver.
	Image string `yaml:"image"`
	// PodTemplate is a PodTemplateSpec, merged under what conch sets.
	PodTemplate JSON             `yaml:"podTemplate"`
	Models      KubernetesModels `yaml:"models"`
	GPUs        KubernetesGPUs   `yaml:"gpus"`
	// Lease is how long the release is one conch's that does not renew it.
	Lease Duration `yaml:"lease"`
}

// KubernetesModels say how models get to the Pods.
type KubernetesModels struct {
	// Path is the directory, for conch and for every Pod, below which partitions' models (partitions) and the content of revisions (content) lie.
	Path string `yaml:"path"`
	// Volume is a Kubernetes volume, without its name, that Pods mount there read-only.
	Volume JSON `yaml:"volume"`
}

// KubernetesGPUs say how GPUs are found and asked for.
type KubernetesGPUs struct {
	// Driver is the name of the DRA driver, Class its device class of whole GPUs, MIGClass that of MIG partitions.
	Driver   string `yaml:"driver"`
	Class    string `yaml:"class"`
	MIGClass string `yaml:"migClass"`
	// Resource is the extended resource of the device plugin, for nodes without DRA.
	Resource string `yaml:"resource"`
	// Sharing is mps or none.
	Sharing string `yaml:"sharing"`
	// Grow has Pending Pods stand for GPUs that the load wants and the cluster has not, for an autoscaler of nodes.
	Grow bool `yaml:"grow"`
}

func (c *Config) provisionKubernetes() {
	if c.Driver.Kind != DriverKubernetes {
		return
	}
	k := &c.Driver.Kubernetes
	fill(&c.Driver.TritonServer, "tritonserver")
	fill(&c.Driver.StartTimeout, Duration(5*time.Minute)) // a node may have to pull the image
	fill(&k.Release, "conch")
	fill(&k.Models.Path, filepath.Join(c.State, "partitions"))
	fill(&k.GPUs.Driver, "gpu.nvidia.com")
	fill(&k.GPUs.Class, k.GPUs.Driver)
	fill(&k.GPUs.MIGClass, "mig.nvidia.com")
	fill(&k.GPUs.Resource, "nvidia.com/gpu")
	fill(&k.GPUs.Sharing, "mps")
	fill(&k.Lease, Duration(5*time.Second))
	if c.Limits.SharedMemory == nil {
		c.Limits.SharedMemory = new(Size(0)) // the servers are on other machines
	}
}

func (v *validator) kubernetes(c *Config) {
	k := c.Driver.Kubernetes
	if c.Driver.Kind != DriverKubernetes {
		if k != (Kubernetes{}) {
			v.problem("driver.kubernetes", "belongs to driver.kind kubernetes, not %s", c.Driver.Kind)
		}
		return
	}
	if k.Image == "" {
		v.problem("driver.kubernetes.image", "is missing; name an image with a tritonserver, for example nvcr.io/nvidia/tritonserver:24.10-py3")
	}
	if !filepath.IsAbs(k.Models.Path) {
		v.problem("driver.kubernetes.models.path", "%q is not an absolute path", k.Models.Path)
	}
	v.oneOf("driver.kubernetes.gpus.sharing", k.GPUs.Sharing, "mps", "none")
	if lease := k.Lease.Std(); lease < 4*time.Second || lease > time.Minute || lease%time.Second != 0 {
		v.problem("driver.kubernetes.lease", "%s is not whole seconds from 4s to 60s", lease)
	}
	if !c.GPUs.Auto {
		v.problem("gpus", "are read from the cluster with driver kubernetes; leave it out")
	}
	if c.CPUs.Cores > 0 {
		v.problem("cpus.cores", "driver kubernetes places partitions on GPUs alone")
	}
	if *c.Limits.SharedMemory > 0 {
		v.problem("limits.sharedMemory", "is above 0; servers in Pods share no memory with conch")
	}
	if c.Merge.Auto || len(c.Merge.List) > 0 {
		v.problem("merge", "merge groups are verified on a scratch server of this machine, and driver kubernetes starts none; tritonctl merge verifies on a Triton of yours")
	}
}
