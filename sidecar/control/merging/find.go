// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merging

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/conch-serving/conch/merger"
	"github.com/conch-serving/conch/repo"
)

// look searches for groups among the models that no group names, and passes the result to Hooks.Looked.
func (b *Book) look(ctx context.Context, files *repo.Revision, named []Group, content string, h Hooks) {
	found, refusals, err := b.find(ctx, files, named)
	if ctx.Err() != nil {
		return
	}
	b.mu.Lock()
	next := time.Time{}
	if err != nil {
		next = b.looking.failed(b.o.Clock.Now())
	} else {
		b.found, b.looked, b.looking = found, content, retry{}
	}
	b.mu.Unlock()
	if err != nil || len(refusals) > 0 {
		h.Looked(refusals, err, next)
	}
}

// find looks for groups among the models that no group names.
func (b *Book) find(ctx context.Context, files *repo.Revision, named []Group) ([]Group, []merger.Refusal, error) {
	var names []string
	for _, m := range files.Models {
		if m.Config == nil || m.Err() != nil || m.Unloaded || m.Derived != nil || m.QueuePolicy() != nil || slices.ContainsFunc(named, func(g Group) bool { return slices.Contains(g.Members, m.Name) }) ||
			!slices.ContainsFunc(m.Files, func(f repo.File) bool { return graphPath.MatchString(f.Path) }) {
			continue
		}
		names = append(names, m.Name)
	}
	if len(names) < 2 {
		return nil, nil, nil
	}
	dir, members, err := b.write(files, names)
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	groups, report, err := merger.Candidates(ctx, members, merger.Options{})
	if err != nil {
		return nil, nil, err
	}
	var all []Group
	for _, group := range groups {
		var g Group
		for _, m := range group {
			g.Members = append(g.Members, m.Name)
		}
		all = append(all, g)
	}
	return all, report.Refusals, nil
}

// analyse says whether and what a group would share.
func (b *Book) analyse(ctx context.Context, files *repo.Revision, e *entry) error {
	if err := mergeable(files, e.recipe.GetMembers()); err != nil {
		return err
	}
	dir, members, err := b.write(files, e.recipe.GetMembers())
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	a, err := merger.Analyze(ctx, members, merger.Options{})
	if err != nil {
		return err
	}
	defer a.Close() //nolint:errcheck // only read from
	r := a.Report.Mode(e.mode)
	switch {
	case r == nil:
		return fmt.Errorf("mode %q: the modes are %v", e.mode, merger.Modes())
	case !r.Feasible:
		return errors.New(r.Reason)
	case !r.Serves:
		return errors.New(merger.NotServed)
	case b.o.Start == nil:
		return errors.New(b.o.Unable)
	}
	b.mu.Lock()
	e.shared, e.bytes = r.SharedBytes, r.MergedBytes
	b.mu.Unlock()
	return nil
}

// mergeable says why models cannot be merged whatever their graphs are; nil: their graphs decide.
func mergeable(files *repo.Revision, names []string) error {
	for _, name := range names {
		m := files.Model(name)
		if served := repo.ServedVersions(m.Config, m.Versions); len(served) != 1 {
			return fmt.Errorf("%s serves %d versions; a member of a merge group has one", name, len(served))
		}
		if m.QueuePolicy() != nil {
			return fmt.Errorf("%s has a queue policy or priorities; the members of a merge group share one queue without", name)
		}
		if m.Override != nil {
			return fmt.Errorf("%s was loaded by a client with files or a configuration of its own", name)
		}
	}
	return nil
}
