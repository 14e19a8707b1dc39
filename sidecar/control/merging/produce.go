// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merging

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/conch-serving/conch/merger"
	"github.com/conch-serving/conch/repo"
)

// product is a group that was made and verified, in a directory that goes with it.
type product struct {
	*merger.Manifest
	dir, into string
}

func (p product) close() error {
	if p.dir == "" {
		return nil
	}
	return os.RemoveAll(p.dir)
}

// telling receives the progress of making a group: a step, or done of all batches.
type telling func(done, all int, what string)

// create makes a group and verifies it on a scratch server. Close what comes out, with an error too.
func (b *Book) create(ctx context.Context, files *repo.Revision, names []string, name string, mode merger.Mode, v merger.VerifyOptions, tell telling) (p product, err error) {
	select {
	case b.turn <- struct{}{}:
		defer func() { <-b.turn }()
	case <-ctx.Done():
		return p, context.Cause(ctx)
	}
	dir, members, err := b.write(files, names)
	p.dir, p.into = dir, filepath.Join(dir, ".merge")
	if err != nil {
		return p, err
	}
	tell(0, 0, "the members' graphs are merged")
	a, err := merger.Analyze(ctx, members, merger.Options{})
	if err != nil {
		return p, err
	}
	_, err = a.Emit(ctx, p.into, name, mode)
	if err = errors.Join(err, a.Close()); err != nil {
		return p, ofFiles(err)
	}
	tell(0, 0, "a server to verify it on is started")
	run, err := b.o.Start(ctx)
	if err != nil {
		return p, passing(fmt.Errorf("starting a server to verify it on: %w", err))
	}
	directories := map[string]string{}
	for _, member := range members {
		directories[member.Name] = member.Dir
	}
	v.Progress = tell
	p.Manifest, err = merger.Verify(ctx, p.into, directories, run, v)
	err = errors.Join(err, run.Close(context.WithoutCancel(ctx)))
	if err == nil {
		_, err = merger.Load(ctx, p.into) // what is handed over is what was run
	}
	switch {
	case errors.Is(err, merger.ErrDiffers):
		return p, fmt.Errorf("verification: %w", err)
	case err != nil: // the server, or what it was given; not what came out
		return p, passing(fmt.Errorf("verification: %w", err))
	}
	return p, nil
}

// produce makes a group that a plan wants, and hands it over.
func (b *Book) produce(ctx context.Context, files *repo.Revision, e *entry, h Hooks) (err error) {
	name := e.recipe.GetName()
	p, err := b.create(ctx, files, e.recipe.GetMembers(), name, e.mode, merger.VerifyOptions{}, func(done, all int, what string) {
		switch {
		case all == 0:
			h.Progress(name, what)
		case done*4%all < 4:
			h.Progress(name, fmt.Sprintf("verified %d of %d batches; next are %s", done, all, what))
		}
	})
	defer func() { err = errors.Join(err, p.close()) }()
	if err != nil {
		return err
	}
	d := repo.Derivation{
		Recipe: name, Mode: string(p.Mode), Digest: p.Digest, Members: e.members, Parts: []string{name}, RowInput: merger.MemberInput, SharedBytes: p.SharedBytes,
	}
	for _, member := range p.Members {
		version := repo.ServedVersions(files.Model(member.Name).Config, files.Model(member.Name).Versions)[0]
		d.Rows = append(d.Rows, repo.RowOf{Name: member.Name, Version: strconv.FormatInt(version, 10), Outputs: member.As})
	}
	made := func(is bool) { b.mu.Lock(); e.made = is; b.mu.Unlock() }
	made(true) // before Want is called of it
	if err := h.Made(ctx, Made{Dir: p.into, Derivation: d, Runs: p.Verification.Runs, MaxDifference: p.Verification.MaxDifference}); err != nil {
		made(false)
		return passing(fmt.Errorf("it was made, and could not be kept: %w", err))
	}
	return nil
}

// RefusedError says why models of the repository cannot be merged, or with which result a merge was verified.
type RefusedError struct{ error }

// Unwrap gives the reason.
func (e *RefusedError) Unwrap() error { return e.error }

// Verify makes a group of models of the repository and verifies it on a scratch server, without keeping it. Where the server fails, and not
// the group, a second server is tried. The error is a *RefusedError unless a later try may go better.
func (b *Book) Verify(ctx context.Context, members []string, o merger.VerifyOptions, tell func(done, all int, what string)) (m *merger.Manifest, err error) {
	b.mu.Lock()
	files := b.files
	b.mu.Unlock()
	refused := func(format string, args ...any) error { return &RefusedError{fmt.Errorf(format, args...)} }
	switch {
	case b.o.Start == nil:
		return nil, refused("%s", b.o.Unable)
	case files == nil:
		return nil, errors.New("the repository was not read yet")
	case len(members) < 2:
		return nil, refused("%d models: a group takes two or more", len(members))
	}
	for i, name := range members {
		m := files.Model(name)
		switch {
		case slices.Contains(members[:i], name):
			return nil, refused("%s is named twice", name)
		case m == nil || m.Derived != nil:
			return nil, refused("no model is called %q in the repository", name)
		case m.Err() != nil:
			return nil, refused("%s: %w", name, m.Err())
		}
	}
	if err := mergeable(files, members); err != nil {
		return nil, &RefusedError{err}
	}
	for second := false; ; second = true {
		m, err := b.verifyOnce(ctx, files, members, o, tell)
		var passes *passingError
		switch {
		case err == nil || ctx.Err() != nil:
			return m, err
		case !errors.As(err, &passes):
			return m, &RefusedError{err}
		case second:
			return m, err
		}
		tell(0, 0, fmt.Sprintf("another server is tried: %v", err)) // Triton's python stubs crash now and then as they start
	}
}

func (b *Book) verifyOnce(ctx context.Context, files *repo.Revision, members []string, o merger.VerifyOptions, tell telling) (m *merger.Manifest, err error) {
	p, err := b.create(ctx, files, members, Name(Group{Members: members}), merger.Backbone, o, tell)
	return p.Manifest, errors.Join(err, p.close())
}
