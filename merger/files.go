// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merger

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/conch-serving/conch/internal/modeldir"
	"github.com/conch-serving/conch/internal/onnx"
)

// weightFiles are the names of the files that hold the graph's external data.
func (g *graph) weightFiles() map[string]bool {
	files := map[string]bool{}
	for _, t := range g.model.Graph.Initializers {
		if t.Location.File != "" {
			files[t.Location.File] = true
		}
	}
	return files
}

// otherFiles are what the version directory holds besides the graph and its weights, by their names in the model's directory: a model.py, labels.
// Directories are left out; anything else that is no file is an error.
func (g *graph) otherFiles() ([]string, error) {
	entries, err := modeldir.ReadDir(g.root, g.Version)
	if err != nil {
		return nil, err
	}
	weights := g.weightFiles()
	var names []string
	for _, e := range entries {
		if e.Name() != GraphFile && !weights[e.Name()] && !e.IsDir() {
			names = append(names, path.Join(g.Version, e.Name()))
		}
	}
	return names, nil
}

// hashFiles hashes names and contents of files of the model's directory.
func (g *graph) hashFiles(ctx context.Context, h hasher, names []string) error {
	for _, name := range names {
		sum, err := fileDigest(ctx, g.root, name)
		if err != nil {
			return err
		}
		h.text(path.Base(name))
		h.text(sum)
	}
	return nil
}

// fileDigest is that of a regular file below root.
func fileDigest(ctx context.Context, root *os.Root, name string) (string, error) {
	f, _, err := modeldir.OpenIn(root, name)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // only read from
	h := newHasher("file")
	if _, err := io.CopyBuffer(struct{ io.Writer }{h.h}, reader{ctx, f}, make([]byte, 1<<20)); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", h.sum()), nil
}

// copyFiles copies the other files into the version directory of a part.
func (g *graph) copyFiles(ctx context.Context, into string) error {
	entries, err := modeldir.ReadDir(g.root, g.Version)
	if err != nil {
		return err
	}
	weights := g.weightFiles()
	for _, e := range entries {
		if e.IsDir() && e.Name() != "__pycache__" && !holds(e.Name(), weights) {
			return fmt.Errorf("%s: only files can be copied into a part", filepath.Join(g.Dir, g.Version, e.Name()))
		}
	}
	names, err := g.otherFiles()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := g.copyFile(ctx, name, filepath.Join(into, path.Base(name))); err != nil {
			return fmt.Errorf("copying %s: %w", name, err)
		}
	}
	return nil
}

func (g *graph) copyFile(ctx context.Context, name, to string) error {
	in, info, err := modeldir.OpenIn(g.root, name)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // only read from
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, info.Mode().Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(struct{ io.Writer }{out}, reader{ctx, in})
	return errors.Join(err, out.Close())
}

// holds says whether a directory is one of the graph's weights.
func holds(dir string, weights map[string]bool) bool {
	for path := range weights {
		if strings.HasPrefix(path, dir+"/") {
			return true
		}
	}
	return false
}

// digests are those of all files of the parts.
func (m *Manifest) digests(ctx context.Context, dir string) (map[string]string, error) {
	root, err := modeldir.Root(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // only read from
	files := map[string]string{}
	for _, p := range m.Parts {
		err := fs.WalkDir(root.FS(), p.Name, func(name string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case d.IsDir() && d.Name() == "__pycache__":
				return fs.SkipDir
			case d.IsDir():
				return nil
			}
			files[name], err = fileDigest(ctx, root, name)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

// reader stops reading once its context ends.
type reader struct {
	ctx context.Context
	io.Reader
}

func (r reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(p)
}

// until is a source of tensors that ends with its context.
type until struct {
	ctx context.Context
	onnx.Source
}

// Reader is the source's.
func (u until) Reader(t *onnx.Tensor) (io.Reader, error) {
	if err := u.ctx.Err(); err != nil {
		return nil, err
	}
	r, err := u.Source.Reader(t)
	return reader{u.ctx, r}, err
}
