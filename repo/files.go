// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// files is the content-addressed part of a store: every file under the name of
// its digest, read-only, in one of 256 directories.
type files struct{ root string }

// path is where the content of f lies. Hard links share their mode, so that an
// executable file is another file than one that is not.
func (s files) path(f File) string {
	name := f.Digest
	if len(name) < 2 {
		return filepath.Join(s.root, "none")
	}
	if f.Executable {
		name += "x"
	}
	return filepath.Join(s.root, name[:2], name)
}

func (s files) has(f File) bool {
	info, err := os.Stat(s.path(f))
	return err == nil && info.Size() == f.Size
}

// add copies content into the store and returns its File, without a Path.
func (s files) add(ctx context.Context, content io.Reader, executable bool) (f File, err error) {
	tmp, err := os.CreateTemp(s.root, "incoming-*")
	if err != nil {
		return File{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, tmp.Close(), os.Remove(tmp.Name()))
		}
	}()
	sum := sha256.New()
	size, err := io.Copy(io.MultiWriter(tmp, sum), reader{ctx, content})
	if err != nil {
		return File{}, err
	}
	f = File{Digest: hex.EncodeToString(sum.Sum(nil)), Size: size, Executable: executable}
	mode := fs.FileMode(0o444)
	if executable {
		mode = 0o555
	}
	if err := tmp.Chmod(mode); err != nil {
		return File{}, err
	}
	if s.has(f) {
		return f, errors.Join(tmp.Close(), os.Remove(tmp.Name()))
	}
	if err := tmp.Sync(); err != nil {
		return File{}, err
	}
	if err := os.MkdirAll(filepath.Dir(s.path(f)), 0o755); err != nil {
		return File{}, err
	}
	if err := os.Rename(tmp.Name(), s.path(f)); err != nil {
		return File{}, err
	}
	return f, tmp.Close()
}

// sweep removes what a crash left half written.
func (s files) sweep() error {
	left, err := filepath.Glob(filepath.Join(s.root, "incoming-*"))
	if err != nil {
		return err
	}
	for _, path := range left {
		err = errors.Join(err, os.Remove(path))
	}
	return err
}

// removeOthers removes every file that is not referenced by its path.
func (s files) removeOthers(ctx context.Context, referenced map[string]bool) (count int, size int64, err error) {
	err = filepath.WalkDir(s.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if d.IsDir() || referenced[path] {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if err := os.Remove(path); err != nil {
			return err
		}
		count, size = count+1, size+info.Size()
		return nil
	})
	return count, size, err
}

// place makes to a file with the content of f: a hard link, or a copy where the
// file systems differ or links are not to be had.
func (s files) place(ctx context.Context, f File, to string) (err error) {
	from := s.path(f)
	if os.Link(from, to) == nil {
		return nil
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // only read from
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, reader{ctx, in}); err != nil {
		return errors.Join(fmt.Errorf("copy %s: %w", f.Path, err), out.Close())
	}
	if err := out.Close(); err != nil {
		return err
	}
	// Triton loads a model again when a time changes, so that equal files should
	// have equal times.
	return os.Chtimes(to, info.ModTime(), info.ModTime())
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
