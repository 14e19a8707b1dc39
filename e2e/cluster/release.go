// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Models makes a model repository below a directory: two emulating models, one and two, of those in root, which is the project's.
func Models(dir, root string) (repository string, err error) {
	repository = filepath.Join(dir, "models")
	program, err := os.ReadFile(filepath.Join(root, "internal/pymodels/emulate/model.py"))
	if err != nil {
		return "", err
	}
	config, err := os.ReadFile(filepath.Join(root, "e2e/models/emulated/config.pbtxt"))
	if err != nil {
		return "", err
	}
	for _, name := range []string{"one", "two"} {
		model := filepath.Join(repository, name)
		if err := os.MkdirAll(filepath.Join(model, "1"), 0o755); err != nil {
			return "", err
		}
		for file, text := range map[string][]byte{"config.pbtxt": bytes.Replace(config, []byte(`"emulated"`), []byte(`"`+name+`"`), 1), "1/model.py": program} {
			if err := os.WriteFile(filepath.Join(model, file), text, 0o644); err != nil {
				return "", err
			}
		}
	}
	return repository, nil
}

// ChartValues writes what the chart of Conch is installed with on a cluster that has the images of Images and Conch: a model repository, an empty directory that Conch
// shares with its servers, and values that name them, all below a directory. It returns the file of the values.
func ChartValues(dir, root, triton string) (file string, err error) {
	repository, err := Models(dir, root)
	if err != nil {
		return "", err
	}
	shared := filepath.Join(dir, "shared")
	if err := os.RemoveAll(shared); err != nil {
		return "", err
	}
	if err := os.MkdirAll(shared, 0o777); err != nil {
		return "", err
	}
	if err := os.Chmod(shared, 0o777); err != nil { // Conch's Pod is of another user
		return "", err
	}
	inside, outside, err := mounts(triton)
	if err != nil {
		return "", err
	}
	name, tag, _ := strings.Cut(ConchImage, ":")
	file = filepath.Join(dir, "values.yaml")
	return file, os.WriteFile(file, fmt.Appendf(nil, `# Of Conch's chart on this cluster, whose images come from no registry.
mode: cluster
image: {repository: %s, tag: %q, pullPolicy: Never}
triton: {image: %q}
models: {volume: {hostPath: {path: %s}}}
cluster:
  models: {path: /var/lib/conch-models, volume: {hostPath: {path: %s}}}
  gpus: {driver: %s}
  podTemplate:
    spec:
      containers: [{name: server, imagePullPolicy: Never, volumeMounts: [%s]}]
      volumes: [%s]
resources: {requests: {cpu: 100m, memory: 128Mi}}
`, name, tag, TritonImage, repository, shared, Driver, inside, outside), 0o644)
}

// mounts of a Pod's container that runs the tests' tritonserver, and the Pod's volumes.
func mounts(triton string, others ...string) (inside, outside string, err error) {
	dirs, err := TritonMounts(triton)
	var inContainer, volumes []string
	for i, dir := range append(dirs, others...) {
		inContainer = append(inContainer, fmt.Sprintf("{name: m%d, mountPath: %s, readOnly: true}", i, dir))
		volumes = append(volumes, fmt.Sprintf("{name: m%d, hostPath: {path: %s}}", i, dir))
	}
	return strings.Join(inContainer, ", "), strings.Join(volumes, ", "), err
}
