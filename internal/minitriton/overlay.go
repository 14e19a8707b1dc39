// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// filePrefix is what a load parameter that carries a file begins with; the file's path in the model directory follows.
const filePrefix = "file:"

// loadRequest is what a load request asks for beside a name.
type loadRequest struct {
	config  *string           // JSON of a config that replaces config.pbtxt; nil takes the file's
	files   map[string][]byte // by path: they replace the whole model directory; nil takes the directory's
	callers []string          // the ensembles for whose sake; none for the model's own
}

// set takes one parameter of a load request.
func (l *loadRequest) set(name string, value []byte) *Error {
	switch {
	case name == "config":
		text := string(value)
		l.config = &text
	case strings.HasPrefix(name, filePrefix):
		if l.files == nil {
			l.files = map[string][]byte{}
		}
		l.files[strings.TrimPrefix(name, filePrefix)] = value
	default:
		return invalid("unrecognized load parameter '%s'.", name)
	}
	return nil
}

// overlay writes the files of a load request into a directory of their own, as Triton does, and returns it.
func overlay(files map[string][]byte) (string, error) {
	dir, err := os.MkdirTemp("", "minitriton-")
	if err != nil {
		return "", err
	}
	for name, data := range files {
		path := filepath.Join(dir, name)
		if !filepath.IsLocal(name) || path == dir {
			err = fmt.Errorf("%q is no path inside a model directory", name)
		}
		if err == nil {
			err = os.MkdirAll(filepath.Dir(path), 0o755)
		}
		if err == nil {
			err = os.WriteFile(path, data, 0o644)
		}
		if err != nil {
			_ = os.RemoveAll(dir)
			return "", err
		}
	}
	return dir, nil
}
