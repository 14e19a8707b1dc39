// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
)

// Image is a container image of a few files, made without a registry.
type Image struct {
	// Name with its tag, for example local/pause:1. Nodes know it as docker.io/NAME.
	Name       string
	Entrypoint []string
	// Path is the environment variable of that name.
	Path string
	// Files by their absolute path in the image: what they hold.
	Files map[string][]byte
	// Dirs are empty directories, mount points for example; Links go from a path to what it is another name of.
	Dirs  []string
	Links map[string]string
}

// Write makes an archive that containerd imports.
func (i Image) Write(file string) error {
	layer, err := i.layer()
	if err != nil {
		return err
	}
	sum := sha256.Sum256(layer)
	config, err := json.Marshal(map[string]any{
		"architecture": "amd64", "os": "linux", "config": map[string]any{"Entrypoint": i.Entrypoint, "Env": []string{"PATH=" + i.Path}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	if err != nil {
		return err
	}
	configSum := sha256.Sum256(config)
	name := hex.EncodeToString(configSum[:]) + ".json"
	manifest, err := json.Marshal([]any{map[string]any{"Config": name, "RepoTags": []string{"docker.io/" + i.Name}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range []struct {
		name string
		text []byte
	}{{name, config}, {"layer.tar", layer}, {"manifest.json", manifest}} {
		if err := add(w, &tar.Header{Name: f.name, Mode: 0o644, Typeflag: tar.TypeReg}, f.text); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(file, out.Bytes(), 0o644)
}

func (i Image) layer() ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, dir := range append([]string{"/tmp", "/proc", "/sys", "/dev", "/etc", "/run"}, i.Dirs...) {
		mode := int64(0o755)
		if dir == "/tmp" {
			mode = 0o1777
		}
		if err := add(w, &tar.Header{Name: dir[1:] + "/", Mode: mode, Typeflag: tar.TypeDir}, nil); err != nil {
			return nil, err
		}
	}
	for _, path := range slices.Sorted(maps.Keys(i.Files)) {
		if err := add(w, &tar.Header{Name: path[1:], Mode: 0o755, Typeflag: tar.TypeReg}, i.Files[path]); err != nil {
			return nil, err
		}
	}
	for _, path := range slices.Sorted(maps.Keys(i.Links)) {
		if err := add(w, &tar.Header{Name: path[1:], Linkname: i.Links[path], Mode: 0o777, Typeflag: tar.TypeSymlink}, nil); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), w.Close()
}

func add(w *tar.Writer, h *tar.Header, text []byte) error {
	h.Size = int64(len(text))
	if err := w.WriteHeader(h); err != nil {
		return fmt.Errorf("%s: %w", h.Name, err)
	}
	_, err := w.Write(text)
	return err
}
