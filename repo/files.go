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

// removeOthers removes every file that is not referenced by its path, as long as the fence allows it; with dry it only counts them.
func (s files) removeOthers(ctx context.Context, referenced map[string]bool, dry bool, fence func() error) (count int, size int64, err error) {
	err = s.walk(ctx, func(path string, info fs.FileInfo) error {
		if referenced[path] {
			return nil
		}
		count, size = count+1, size+info.Size()
		if dry {
			return nil
		}
		if err := fence(); err != nil {
			return err
		}
		return os.Remove(path)
	})
	return count, size, err
}

// walk visits every file of the store.
func (s files) walk(ctx context.Context, visit func(path string, info fs.FileInfo) error) error {
	return filepath.WalkDir(s.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || ctx.Err() != nil {
			return errors.Join(err, ctx.Err())
		}
		if d.IsDir() {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		return visit(path, info)
	})
}

// check reads a file and says what is wrong with it; empty where nothing is. A file
// that is there and cannot be opened is an error: its content is not known.
func (s files) check(ctx context.Context, f File) (string, error) {
	in, err := os.Open(s.path(f))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "is missing", nil
	case err != nil:
		return "", err
	}
	defer in.Close() //nolint:errcheck // only read from
	sum := sha256.New()
	size, err := io.Copy(sum, reader{ctx, in})
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err != nil:
		return reason(err), nil
	case size != f.Size:
		return fmt.Sprintf("has %d bytes and had %d", size, f.Size), nil
	case hex.EncodeToString(sum.Sum(nil)) != f.Digest:
		return "has other content than was imported", nil
	}
	return "", nil
}

// place makes to a copy of f's content. It is never a hard link: a server runs as
// the same user, and one that wrote to its model would change that model in every
// partition and every revision. Where the file system can, the copy shares its
// blocks with the original until one of them is written.
func (s files) place(ctx context.Context, f File, to string) (err error) {
	in, err := os.Open(s.path(f))
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
	if err := copyFile(ctx, out, in); err != nil {
		return errors.Join(fmt.Errorf("copy %s: %w", f.Path, err), out.Close())
	}
	if err := out.Close(); err != nil {
		return err
	}
	// Triton loads a model again when a time changes, so that equal files should
	// have equal times.
	return os.Chtimes(to, info.ModTime(), info.ModTime())
}

// copied is how much is copied before the context is asked again.
const copied = 64 << 20

// copyFile copies from one file to another, in the kernel where that can.
func copyFile(ctx context.Context, out, in *os.File) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		switch n, err := io.CopyN(out, in, copied); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case n < copied:
			return nil
		}
	}
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
