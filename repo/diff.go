// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package repo

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/protocolbuffers/txtpbfmt/ast"
)

// Comparison is what differs between two revisions.
type Comparison struct {
	// From and To are the revisions.
	From, To string
	// Partial: From is kept no more (Collect). The comparison has what To noted down of it
	// when it was made: sizes before are UnknownSize, and Fields are left out.
	Partial bool
	// Models that differ, sorted by name.
	Models []ModelComparison
}

// The ways in which a model, a file or a field differs.
const (
	Added   = "added"
	Removed = "removed"
	Changed = "changed"
)

// ModelComparison is what differs of one model.
type ModelComparison struct {
	Model string
	// Change is Added, Removed or Changed; empty where only Notes differ.
	Change string
	// Notes say what differs besides files: that it is loaded, or unloaded.
	Notes []string
	// Files that differ, sorted by path; of a new or removed model all.
	Files []FileComparison
	// Fields of the config.pbtxt that differ, in the order of the file.
	Fields []FieldComparison
	// Text says why fields cannot be compared, or that nothing but form differs.
	Text string
}

// UnknownSize is the size of a file of a revision that is kept no more.
const UnknownSize = -1

// FileComparison is a file that differs. A size of 0 is that of no file, or of an
// empty one.
type FileComparison struct {
	Path, Change  string
	Before, After int64
}

// FieldComparison is a field of a config.pbtxt that differs, with its comments.
type FieldComparison struct {
	// Field is its name, with what tells it from others of that name.
	Field, Change string
	// Line is that in the newer file; of a removed field, in the older one.
	Line int
	// Before and After are its text in one form, comments included.
	Before, After string
}

// Compare returns the differences between two revisions. An empty to is the current
// revision, an empty from the parent of to. It fails with [ErrNoRevision] if a named
// revision is unknown.
func (s *Store) Compare(from, to string) (*Comparison, error) {
	after, err := s.revision(to)
	if err != nil {
		return nil, fmt.Errorf("compare: %w", err)
	}
	before := &Revision{}
	parent := from == ""
	if parent {
		from = after.Parent
	}
	if from != "" {
		before, err = s.Get(from)
		if parent && errors.Is(err, ErrNoRevision) {
			return noted(after), nil
		}
		if err != nil {
			return nil, fmt.Errorf("compare: %w", err)
		}
	}
	c := &Comparison{From: before.ID, To: after.ID}
	names := map[string]bool{}
	for _, r := range []*Revision{before, after} {
		for _, m := range r.Models {
			names[m.Name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if compared := s.compareModel(name, before.Model(name), after.Model(name)); compared.Change != "" || len(compared.Notes) > 0 {
			c.Models = append(c.Models, compared)
		}
	}
	return c, nil
}

// noted is what a revision noted down of how it differs from the one before it.
func noted(r *Revision) *Comparison {
	all := map[string]*ModelComparison{}
	model := func(name string) *ModelComparison {
		if all[name] == nil {
			all[name] = &ModelComparison{Model: name}
		}
		return all[name]
	}
	for _, name := range r.Diff.Added {
		compared := model(name)
		compared.Change = Added
		if m := r.Model(name); m != nil {
			for _, f := range m.Files {
				compared.Files = append(compared.Files, FileComparison{Path: f.Path, Change: Added, After: f.Size})
			}
		}
	}
	for _, name := range r.Diff.Removed {
		model(name).Change = Removed
	}
	for _, changed := range r.Diff.Changed {
		compared := model(changed.Model)
		compared.Change = Changed
		size := func(path string) int64 {
			if m := r.Model(changed.Model); m != nil {
				if f := fileOf(m, path); f != nil {
					return f.Size
				}
			}
			return UnknownSize
		}
		for _, path := range changed.Added {
			compared.Files = append(compared.Files, FileComparison{Path: path, Change: Added, After: size(path)})
		}
		for _, path := range changed.Removed {
			compared.Files = append(compared.Files, FileComparison{Path: path, Change: Removed, Before: UnknownSize})
		}
		for _, path := range changed.Changed {
			compared.Files = append(compared.Files, FileComparison{Path: path, Change: Changed, Before: UnknownSize, After: size(path)})
			if path == ConfigFile {
				compared.Text = ConfigFile + " cannot be compared field by field: " + r.Parent + " is kept no more"
			}
		}
		slices.SortFunc(compared.Files, func(a, b FileComparison) int { return strings.Compare(a.Path, b.Path) })
	}
	for _, name := range r.Diff.Unloaded {
		model(name).Notes = append(model(name).Notes, "unloaded")
	}
	for _, name := range r.Diff.Loaded {
		model(name).Notes = append(model(name).Notes, "loaded again")
	}
	c := &Comparison{From: r.Parent, To: r.ID, Partial: true}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		c.Models = append(c.Models, *all[name])
	}
	return c
}

func (s *Store) compareModel(name string, before, after *Model) ModelComparison {
	c := ModelComparison{Model: name}
	switch {
	case before == nil:
		c.Change, before = Added, &Model{}
	case after == nil:
		c.Change, after = Removed, &Model{}
	default:
		d := compare([]*Model{before}, []*Model{after})
		if len(d.Changed) > 0 {
			c.Change = Changed
		}
		if len(d.Unloaded) > 0 {
			c.Notes = append(c.Notes, "unloaded")
		}
		if len(d.Loaded) > 0 {
			c.Notes = append(c.Notes, "loaded again")
		}
		if before.Override == nil && after.Override != nil {
			c.Notes = append(c.Notes, "overridden by a client's load")
		}
	}
	files := map[string]bool{}
	for _, f := range slices.Concat(before.Files, after.Files) {
		files[f.Path] = true
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		was, is := fileOf(before, path), fileOf(after, path)
		switch {
		case was == nil:
			c.Files = append(c.Files, FileComparison{Path: path, Change: Added, After: is.Size})
		case is == nil:
			c.Files = append(c.Files, FileComparison{Path: path, Change: Removed, Before: was.Size})
		case *was != *is:
			c.Files = append(c.Files, FileComparison{Path: path, Change: Changed, Before: was.Size, After: is.Size})
			if path == ConfigFile {
				s.compareConfigs(&c, *was, *is)
			}
		}
	}
	return c
}

func fileOf(m *Model, path string) *File {
	if i := slices.IndexFunc(m.Files, func(f File) bool { return f.Path == path }); i >= 0 {
		return &m.Files[i]
	}
	return nil
}

func (s *Store) compareConfigs(c *ModelComparison, before, after File) {
	var fields [2][]field
	for i, f := range []File{before, after} {
		text, err := os.ReadFile(s.files.path(f))
		if err == nil {
			fields[i], err = fieldsOf(text)
		}
		if err != nil {
			c.Text = ConfigFile + " cannot be compared field by field: " + strings.TrimSpace(reason(err))
			return
		}
	}
	c.Fields = compareFields(fields[0], fields[1])
	if len(c.Fields) == 0 {
		c.Text = ConfigFile + " differs in form or order alone"
	}
}

// field is one field of a config.pbtxt with its comments.
type field struct {
	name string
	line int
	text string
}

// fieldsOf takes a config.pbtxt apart. A list of messages is as many fields.
func fieldsOf(text []byte) ([]field, error) {
	nodes, err := parseTree(text)
	if err != nil {
		return nil, err
	}
	var all []field
	count := map[string]int{}
	add := func(n *ast.Node, line int) {
		name := n.Name
		if n.IsCommentOnly() {
			name = "comment"
		}
		if id := identityOf(n.Children); id != "" {
			name += " " + id
		}
		if count[name]++; count[name] > 1 {
			name = fmt.Sprintf("%s (%d)", name, count[name])
		}
		all = append(all, field{name: name, line: line, text: strings.TrimSpace(string(pretty([]*ast.Node{n})))})
	}
	for _, n := range nodes {
		if !n.ChildrenAsList {
			add(n, nodeLine(n))
			continue
		}
		for i, message := range n.Children {
			if message.IsCommentOnly() && len(message.Children) == 0 {
				continue
			}
			single := *message
			single.Name, single.SkipColon = n.Name, true
			if i == 0 {
				single.PreComments = append(slices.Clone(n.PreComments), message.PreComments...)
			}
			line := nodeLine(message)
			if message.Start.Line == 0 {
				line = nodeLine(n)
			}
			add(&single, line)
		}
	}
	return all, nil
}

// identityOf is what tells one message of a field from the others: its name or key.
func identityOf(children []*ast.Node) string {
	for _, n := range children {
		if (n.Name == "name" || n.Name == "key") && len(n.Values) == 1 {
			return n.Values[0].Value
		}
	}
	return ""
}

func compareFields(before, after []field) []FieldComparison {
	old := map[string]field{}
	for _, f := range before {
		old[f.name] = f
	}
	var all []FieldComparison
	for _, f := range after {
		was, ok := old[f.name]
		delete(old, f.name)
		switch {
		case !ok:
			all = append(all, FieldComparison{Field: f.name, Change: Added, Line: f.line, After: f.text})
		case was.text != f.text:
			all = append(all, FieldComparison{Field: f.name, Change: Changed, Line: f.line, Before: was.text, After: f.text})
		}
	}
	for _, f := range before {
		if _, gone := old[f.name]; gone {
			all = append(all, FieldComparison{Field: f.name, Change: Removed, Line: f.line, Before: f.text})
		}
	}
	return all
}
