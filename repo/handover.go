// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"

	"github.com/protocolbuffers/txtpbfmt/ast"
)

// Original is the operator's own config.pbtxt of a model, as it was imported.
func (s *Store) Original(revision, model string) ([]byte, error) {
	return s.ReadFile(revision, model, ConfigFile)
}

// ReadFile returns the content of an operator's file as it was imported, by its path in the model's directory. It fails with [ErrNoModel] if the
// revision has no such model, and with fs.ErrNotExist if the model has no such file.
func (s *Store) ReadFile(revision, model, path string) ([]byte, error) {
	fail := func(err error) ([]byte, error) {
		return nil, fmt.Errorf("%s of %q of %s: %w", path, model, revision, err)
	}
	r, err := s.revision(revision)
	if err != nil {
		return fail(err)
	}
	m := r.Model(model)
	if m == nil {
		return fail(ErrNoModel)
	}
	i := slices.IndexFunc(m.Files, func(f File) bool { return f.Path == path })
	if i < 0 {
		return fail(fs.ErrNotExist)
	}
	text, err := os.ReadFile(s.files.path(m.Files[i]))
	if err != nil {
		return fail(err)
	}
	return text, nil
}

// Open opens the content of a file of some revision's model.
func (s *Store) Open(f File) (*os.File, error) {
	file, err := os.Open(s.files.path(f))
	if err != nil {
		return nil, fmt.Errorf("content of %s: %w", f.Path, err)
	}
	return file, nil
}

// Disown leaves models that Stage put into dir there, and forgets that it did:
// they are the operator's from now on.
func (s *Store) Disown(dir string, models ...string) error {
	stage := staged{dir}
	defer s.staging.lock(dir)()
	known, err := stage.known()
	if err != nil {
		return fmt.Errorf("disown: %w", err)
	}
	for _, name := range models {
		delete(known, name)
	}
	if err := stage.note(known); err != nil {
		return fmt.Errorf("disown: %w", err)
	}
	return nil
}

// Unmanage makes a config that serves well without Conch out of the operator's
// own: where that forms no batches and could, it has Triton form them, and wait for
// them no longer than delay microseconds. It reports whether it added that.
func Unmanage(text []byte, delay int64) ([]byte, bool, error) {
	c, err := ReadConfig(text)
	if err != nil {
		return nil, false, err
	}
	if ok, _ := Batchable(c); !ok || c.GetSchedulingChoice() != nil || c.GetMaxBatchSize() < 2 {
		return text, false, nil
	}
	nodes, err := parseTree(text)
	if err != nil {
		return nil, false, err
	}
	nodes = append(nodes, &ast.Node{
		Name: "dynamic_batching", PreComments: []string{"# Added by tritonctl release: without Conch, Triton forms the batches."},
		Children: []*ast.Node{{Name: "max_queue_delay_microseconds", Values: []*ast.Value{{Value: strconv.FormatInt(delay, 10)}}}},
	})
	after := pretty(nodes)
	got, err := ReadConfig(after)
	if err != nil || got.GetDynamicBatching().GetMaxQueueDelayMicroseconds() != uint64(delay) {
		return nil, false, &SyntaxError{Text: fmt.Sprintf("dynamic_batching cannot be added to it; add it by hand (%v)", err)}
	}
	return after, true, nil
}
