// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package modeldir

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// ErrOutside is wrapped by errors of names whose links lead out of the model's directory.
var ErrOutside = errors.New("a link that is absolute or leads out of the model's directory; put the file there, or make the link relative and inside")

// ErrNotRegular is wrapped by errors of what is neither a file nor a directory.
var ErrNotRegular = errors.New("not a regular file")

// Open opens the regular file at path, which an operator named: wherever links lead.
func Open(path string) (*os.File, fs.FileInfo, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	return opened("open", path, info, func() (*os.File, error) { return os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) })
}

// Root opens a directory; anything else is an error, and is not waited for.
func Root(dir string) (*os.Root, error) { return os.OpenRoot(dir + string(filepath.Separator) + ".") }

// OpenIn opens the regular file with that name, with slashes, below root.
func OpenIn(root *os.Root, name string) (*os.File, fs.FileInfo, error) {
	info, err := root.Stat(filepath.FromSlash(name))
	if err != nil {
		return nil, nil, inside(err)
	}
	return opened("open", filepath.Join(root.Name(), filepath.FromSlash(name)), info, func() (*os.File, error) {
		f, err := root.OpenFile(filepath.FromSlash(name), os.O_RDONLY|syscall.O_NONBLOCK, 0)
		return f, inside(err)
	})
}

// ReadDir lists the directory with that name below root, sorted by name.
func ReadDir(root *os.Root, name string) ([]fs.DirEntry, error) {
	d, err := directory(root.OpenFile(filepath.FromSlash(name), os.O_RDONLY|syscall.O_NONBLOCK, 0))
	if err != nil {
		return nil, inside(err)
	}
	defer d.Close() //nolint:errcheck // only read from
	entries, err := d.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

// opened opens what was seen to be a regular file, and looks again: it may have been replaced meanwhile.
func opened(op, path string, seen fs.FileInfo, open func() (*os.File, error)) (*os.File, fs.FileInfo, error) {
	irregular := &fs.PathError{Op: op, Path: path, Err: ErrNotRegular}
	if !seen.Mode().IsRegular() {
		return nil, nil, irregular
	}
	f, err := open()
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = irregular
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// inside says of an error of a root that a link led out of it in words that help.
func inside(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) && at.Err.Error() == "path escapes from parent" { // package os exports no error for it
		return &fs.PathError{Op: at.Op, Path: at.Path, Err: ErrOutside}
	}
	return err
}

// limit is the largest file that ReadFile reads: configurations and manifests, not weights.
const limit = 64 << 20

// ReadFile is the content of the regular file with that name in the model's directory dir, at most 64 MiB.
func ReadFile(dir, name string) (text []byte, err error) {
	root, err := Root(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // only read from
	f, info, err := OpenIn(root, name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read from
	if info.Size() > limit {
		return nil, fmt.Errorf("%s: %d bytes, and at most %d are read of such a file", filepath.Join(dir, name), info.Size(), limit)
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

// FS is a directory of model directories. Each of these is a tree of its own: what of it leads out of it is an error that wraps ErrOutside, and
// what is neither a file nor a directory can be looked at and not be opened. Names of the first level may be links to anywhere.
func FS(dir string) fs.FS { return repository(dir) }

type repository string

// model opens the model's directory that a name lies in; rest is the name inside.
func (r repository) model(op, name string) (root *os.Root, rest string, err error) {
	if !fs.ValidPath(name) {
		return nil, "", &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	model, rest, _ := strings.Cut(name, "/")
	root, err = Root(filepath.Join(string(r), model))
	return root, rest, err
}

// Open opens a regular file or a directory.
func (r repository) Open(name string) (fs.File, error) {
	if fs.ValidPath(name) && path.Dir(name) == "." { // the repository or a model's directory
		return file(directory(os.OpenFile(filepath.Join(string(r), name), os.O_RDONLY|syscall.O_NONBLOCK, 0)))
	}
	root, rest, err := r.model("open", name)
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // only read from
	if info, err := root.Stat(filepath.FromSlash(rest)); err == nil && info.IsDir() {
		return file(directory(root.OpenFile(filepath.FromSlash(rest), os.O_RDONLY|syscall.O_NONBLOCK, 0)))
	}
	f, _, err := OpenIn(root, rest)
	return file(f, err)
}

// file is f without the trap that a nil *os.File is a file.
func file(f *os.File, err error) (fs.File, error) {
	if err != nil {
		return nil, inside(err)
	}
	return f, nil
}

// directory is f if it is a directory.
func directory(f *os.File, err error) (*os.File, error) {
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.IsDir() {
		err = &fs.PathError{Op: "open", Path: f.Name(), Err: syscall.ENOTDIR}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Stat says what is there, of whatever kind.
func (r repository) Stat(name string) (fs.FileInfo, error) {
	if path.Dir(name) == "." {
		return os.Stat(filepath.Join(string(r), name))
	}
	root, rest, err := r.model("stat", name)
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // only read from
	info, err := root.Stat(filepath.FromSlash(rest))
	return info, inside(err)
}
