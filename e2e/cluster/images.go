// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// TritonImage has the tests' tritonserver.
const TritonImage = "docker.io/local/tritonserver:1"

// Images makes the images of the tests in a directory: the sandbox's, and a tritonserver, which is the one that `make triton` has set up in triton
// (its Pods mount the directories that TritonMounts says, so that nothing is copied).
func Images(dir, clusterBin, triton string) ([]string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	pause, err := os.ReadFile(filepath.Join(clusterBin, "pause"))
	if err != nil {
		return nil, err
	}
	mounts, err := TritonMounts(triton)
	if err != nil {
		return nil, err
	}
	triton = mounts[0]
	all := map[string]Image{
		"pause.tar": {Name: "local/pause:1", Entrypoint: []string{"/pause"}, Path: "/", Files: map[string][]byte{"/pause": pause}},
		"tritonserver.tar": {
			Name: "local/tritonserver:1", Path: "/opt/tritonserver/bin:/usr/bin",
			Files: map[string][]byte{"/opt/tritonserver/bin/tritonserver": fmt.Appendf(nil, "#!/bin/sh\nexec %s/tritonserver \"$@\"\n", triton)},
			Dirs:  mounts,
			Links: map[string]string{"/bin": "usr/bin", "/lib": "usr/lib", "/lib64": "usr/lib64"},
		},
	}
	var files []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		file := filepath.Join(dir, name)
		if err := all[name].Write(file); err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// ConchImage is the name of the image that Conch makes.
const ConchImage = "docker.io/local/conch:1"

// Conch makes an image of the programs in bin, with the C library that they are linked to.
func Conch(file, bin string) error {
	i := Image{Name: "local/conch:1", Path: "/usr/bin", Files: map[string][]byte{}}
	for to, from := range map[string]string{
		"/usr/bin/conch": filepath.Join(bin, "conch"), "/usr/bin/conch-policies": filepath.Join(bin, "conch-policies"), "/usr/bin/tritonctl": filepath.Join(bin, "tritonctl"),
		"/lib64/ld-linux-x86-64.so.2": "/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libc.so.6": "/lib/x86_64-linux-gnu/libc.so.6",
	} {
		text, err := os.ReadFile(from)
		if err != nil {
			return fmt.Errorf("the image of conch: %w", err)
		}
		i.Files[to] = text
	}
	return i.Write(file)
}

// TritonMounts are the directories of this machine that Pods with TritonImage need at the same paths: first that of the tests' tritonserver, then the system's
// libraries, and the Python that its virtual environment was made from, where that lies elsewhere.
func TritonMounts(triton string) ([]string, error) {
	triton, err := filepath.EvalSymlinks(triton)
	if err != nil {
		return nil, fmt.Errorf("the tritonserver of the tests (make triton): %w", err)
	}
	all := []string{triton, "/usr"}
	python, err := filepath.EvalSymlinks(filepath.Join(triton, "venv", "bin", "python"))
	if err != nil {
		return nil, fmt.Errorf("the Python of the tests' tritonserver: %w", err)
	}
	if prefix := filepath.Dir(filepath.Dir(python)); !strings.HasPrefix(prefix+"/", "/usr/") {
		all = append(all, prefix)
	}
	return all, nil
}
