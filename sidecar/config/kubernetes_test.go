// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/config"
)

func provisioned(t *testing.T, text string) *config.Config {
	c, err := config.Parse("conch.yaml", []byte(text))
	require.NoError(t, err)
	c.Provision(config.Environment{})
	return c
}

// What conch.yaml says in Kubernetes' words is handed on as JSON.
func TestKubernetes(t *testing.T) {
	c := provisioned(t, `
repository: /models
state: /state
driver:
  kind: kubernetes
  kubernetes:
    image: triton:1
    models: {volume: {persistentVolumeClaim: {claimName: models}}}
    podTemplate:
      spec: {tolerations: [{key: gpu, operator: Exists, tolerationSeconds: 3}]}
`)
	require.NoError(t, c.Validate(config.Environment{}))
	require.Equal(t, config.Kubernetes{
		Image: "triton:1", Release: "conch", Models: config.KubernetesModels{Path: "/state/partitions", Volume: `{"persistentVolumeClaim":{"claimName":"models"}}`},
		GPUs:        config.KubernetesGPUs{Driver: "gpu.nvidia.com", Class: "gpu.nvidia.com", MIGClass: "mig.nvidia.com", Resource: "nvidia.com/gpu", Sharing: "mps"},
		Lease:       config.Duration(5 * time.Second),
		PodTemplate: `{"spec":{"tolerations":[{"key":"gpu","operator":"Exists","tolerationSeconds":3}]}}`,
	}, c.Driver.Kubernetes)
	require.Equal(t, 5*time.Minute, c.Driver.StartTimeout.Std())
	require.Zero(t, *c.Limits.SharedMemory)
}

func TestKubernetesProblems(t *testing.T) {
	for text, want := range map[string]string{
		"driver: {kind: kubernetes}\n": "driver.kubernetes.image: is missing",
		"driver: {kind: kubernetes, kubernetes: {image: x, models: {path: models}}}\n":                `driver.kubernetes.models.path: "models" is not an absolute path`,
		"driver: {kind: kubernetes, kubernetes: {image: x, lease: 3s}}\n":                             `driver.kubernetes.lease: 3s is not whole seconds from 4s to 60s`,
		"driver: {kind: kubernetes, kubernetes: {image: x, gpus: {sharing: time}}}\n":                 `driver.kubernetes.gpus.sharing: "time" is not known`,
		"driver: {kind: kubernetes, kubernetes: {image: x}}\ngpus: [{type: T4}]\n":                    "gpus: are read from the cluster",
		"driver: {kind: kubernetes, kubernetes: {image: x}}\ncpus: {cores: 2}\n":                      "cpus.cores: driver kubernetes places partitions on GPUs alone",
		"driver: {kind: kubernetes, kubernetes: {image: x}}\nlimits: {sharedMemory: 1MiB}\n":          "limits.sharedMemory: is above 0",
		"driver: {kind: kubernetes, kubernetes: {image: x}}\nmerge: auto\n":                           "merge: merge groups are verified on a scratch server",
		"driver: {kind: process, tritonserver: /bin/true, kubernetes: {image: x}}\n":                  "driver.kubernetes: belongs to driver.kind kubernetes, not process",
		"driver: {kind: kubernetes, kubernetes: {image: x}, endpoints: [{grpc: \"localhost:8001\"}]}": "driver.endpoints: are servers that others run",
	} {
		c := provisioned(t, "repository: /models\n"+text)
		err := c.Validate(config.Environment{})
		var invalid *config.InvalidError
		require.True(t, errors.As(err, &invalid), text)
		require.ErrorContains(t, err, want)
	}
}
