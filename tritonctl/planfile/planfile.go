// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package planfile reads and writes the files of `tritonctl plan diff -o` and
// `plan apply -f`.
package planfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/tritonctl/factory"
)

// Write writes a plan so that a person can read and edit it. A file that is there is
// replaced.
func Write(path string, f *api.PlanFile) error {
	text, err := json.MarshalIndent(f, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// Read reads a file, or in where path is "-".
func Read(path string, in io.Reader) (*api.PlanFile, error) {
	var text []byte
	var err error
	if path == "-" {
		text, err = io.ReadAll(in)
	} else {
		text, err = os.ReadFile(path)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: plan file: %w", factory.ErrUsage, err)
	}
	var f api.PlanFile
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return nil, fmt.Errorf("%w: plan file %s%s: %w", factory.ErrUsage, path, position(text, err), err)
	}
	if f.Kind != api.PlanFileKind {
		return nil, fmt.Errorf("%w: %s is of kind %q and no plan file (%s); tritonctl plan diff -o FILE.json writes one", factory.ErrUsage, path, f.Kind, api.PlanFileKind)
	}
	return &f, nil
}

// position is the line of a mistake, where it is known.
func position(text []byte, err error) string {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	var offset int64
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &kind):
		offset = kind.Offset
	case errors.Is(err, io.ErrUnexpectedEOF):
		offset = int64(len(bytes.TrimSpace(text)))
	default:
		return ""
	}
	return fmt.Sprintf(":%d", 1+bytes.Count(text[:min(int(offset), len(text))], []byte("\n")))
}
