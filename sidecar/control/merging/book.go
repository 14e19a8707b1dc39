// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merging

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/conch-serving/conch/merger"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
)

// Group is what an operator names: models to merge, and how.
type Group struct {
	Members []string
	// Mode is of package merger; the backbone if empty.
	Mode merger.Mode
}

// Wish is what an operator wants of merging.
type Wish struct {
	Groups []Group
	// Auto finds groups among all models that no group names.
	Auto bool
}

// Scratch is a server of its own to verify a merge on. Close ends it.
type Scratch interface {
	merger.Runner
	Close(ctx context.Context) error
}

// Options of New.
type Options struct {
	// Dir is where directories of models are made; it is the book's alone.
	Dir string
	// Open opens the content of a model's file.
	Open func(repo.File) (io.ReadCloser, error)
	// Start starts a scratch server; nil: nothing can be verified, so that nothing is made, for the reason Unable.
	Start  func(ctx context.Context) (Scratch, error)
	Unable string
}

// Made is a merge group that was made and verified.
type Made struct {
	// Dir has its model directories; it is removed when the hook returns.
	Dir        string
	Derivation repo.Derivation
	// Runs and MaxDifference of the verification.
	Runs          int
	MaxDifference float64
}

// Hooks tell what becomes of groups. They are called by Run, one at a time.
type Hooks struct {
	// Progress is a step of making a group.
	Progress func(group, text string)
	// Failed says why a group will not be made before a member changes.
	Failed func(group string, err error)
	// Made hands over a group; an error means that it could not be kept, and is to be made again.
	Made func(ctx context.Context, m Made) error
	// Changed: other groups are on offer.
	Changed func()
}

// Book holds what is known of merge groups. Its methods are safe for concurrent use.
type Book struct {
	o Options

	mu    sync.Mutex
	files *repo.Revision
	wish  Wish
	// found are groups of Auto, by the content of all models; looked is which.
	found  []Group
	looked string
	known  map[string]*entry
	make   map[string]bool // by the name of the recipe
	wake   chan struct{}
}

// entry is a group of members with certain content.
type entry struct {
	recipe  *policy.Recipe
	mode    merger.Mode
	members map[string]string // digests
	// analysed, and if so what came of it.
	analysed              bool
	refusal               string
	shared, bytes         int64
	separateTime, oneTime float64
	made                  bool
}

// New makes an empty book.
func New(o Options) *Book {
	return &Book{o: o, known: map[string]*entry{}, make: map[string]bool{}, wake: make(chan struct{}, 1)}
}

// Want says which models there are and which groups are wanted of them. It does not wait.
func (b *Book) Want(files *repo.Revision, w Wish) {
	b.mu.Lock()
	b.files, b.wish = files, w
	b.mu.Unlock()
	b.poke()
}

// Make has the groups made that a plan wants. It does not wait.
func (b *Book) Make(recipes []*policy.Recipe) {
	b.mu.Lock()
	clear(b.make)
	for _, r := range recipes {
		b.make[r.GetName()] = true
	}
	b.mu.Unlock()
	b.poke()
}

func (b *Book) poke() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Offers are the groups that could be, or are, sorted by name: those of which something is known by now.
func (b *Book) Offers() []*policy.DerivedModel {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []*policy.DerivedModel
	for _, g := range b.groups() {
		e := b.entry(g)
		if e == nil {
			continue
		}
		d := &policy.DerivedModel{Recipe: e.recipe, Refusal: e.refusal, SharedBytes: uint64(e.shared), MemoryBytes: uint64(e.bytes)} //nolint:gosec // sizes
		if m := b.files.Model(e.recipe.GetName()); m != nil && m.Derived != nil {
			d.Verified, d.Digest, d.Refusal = true, m.Derived.Digest, ""
			d.SharedBytes, d.MemoryBytes = uint64(m.Derived.SharedBytes), uint64(m.Size()) //nolint:gosec // sizes
		} else if !e.analysed {
			continue
		}
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b *policy.DerivedModel) int {
		return strings.Compare(a.GetRecipe().GetName(), b.GetRecipe().GetName())
	})
	return all
}

// groups that are wanted. Guarded by mu.
func (b *Book) groups() []Group {
	all := slices.Clone(b.wish.Groups)
	if !b.wish.Auto {
		return all
	}
	// What was made before is there at once, after a restart too.
	for _, m := range b.files.Models {
		if members := m.Derived.MemberNames(); len(members) > 0 {
			all = append(all, Group{Members: members})
		}
	}
	if b.looked == b.content() {
		for _, g := range b.found {
			if !slices.ContainsFunc(all, func(o Group) bool { return Name(o) == Name(g) }) {
				all = append(all, g)
			}
		}
	}
	return all
}

// content identifies that of all models. Guarded by mu.
func (b *Book) content() string {
	h := sha256.New()
	for _, m := range b.files.Models {
		if m.Derived == nil {
			_, _ = fmt.Fprintln(h, m.Name, m.Digest) // a hash never fails
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// maxName is the longest name of a group that lists its members.
const maxName = 80

// Name of a group: one set of members has one name, so that what its rows mean does not change under a name.
func Name(g Group) string {
	members := slices.Sorted(slices.Values(g.Members))
	name := "merge." + strings.Join(members, ".")
	if g.Mode != "" && g.Mode != merger.Backbone {
		name = string(g.Mode) + "." + strings.Join(members, ".")
	}
	sum := sha256.Sum256([]byte(strings.Join(members, "\x00")))
	if len(name) > maxName {
		name = name[:maxName-20] + "." + strconv.Itoa(len(members))
	}
	return name + "." + hex.EncodeToString(sum[:4])
}

// entry of a group with the members' present content; nil where a member is not there. Guarded by mu.
func (b *Book) entry(g Group) *entry {
	members := slices.Sorted(slices.Values(g.Members))
	e := &entry{mode: g.Mode, members: map[string]string{}, recipe: &policy.Recipe{
		Name: Name(g), Kind: policy.RecipeKind_RECIPE_KIND_MERGE, Members: members, Mode: modes[g.Mode],
	}}
	if e.mode == "" {
		e.mode = merger.Backbone
	}
	key := e.recipe.Name
	for _, name := range members {
		m := b.files.Model(name)
		if m == nil || m.Config == nil || m.Err() != nil || m.Unloaded {
			return nil
		}
		e.members[name] = m.Digest
		key += " " + m.Digest
	}
	if known := b.known[key]; known != nil {
		return known
	}
	b.known[key] = e
	return e
}

var modes = map[merger.Mode]policy.MergeMode{
	"": policy.MergeMode_MERGE_MODE_BACKBONE, merger.Backbone: policy.MergeMode_MERGE_MODE_BACKBONE,
	merger.SuperOp: policy.MergeMode_MERGE_MODE_SUPEROP, merger.SuperOpPadded: policy.MergeMode_MERGE_MODE_SUPEROP_PADDED,
}

// Run analyses, makes and verifies what is wanted until ctx ends. It removes first what
// a process that was killed left in Dir.
func (b *Book) Run(ctx context.Context, h Hooks) {
	if left, err := filepath.Glob(filepath.Join(b.o.Dir, "*")); err == nil {
		for _, path := range left {
			_ = os.RemoveAll(path) // what cannot be removed now is tried again at the next start
		}
	}
	for ctx.Err() == nil {
		if !b.step(ctx, h) {
			select {
			case <-ctx.Done():
			case <-b.wake:
			}
		}
	}
}

// step does the next thing; false where there is nothing to do.
func (b *Book) step(ctx context.Context, h Hooks) bool {
	b.mu.Lock()
	files := b.files
	if files == nil {
		b.mu.Unlock()
		return false
	}
	if content := b.content(); b.wish.Auto && b.looked != content {
		named := b.wish.Groups
		b.mu.Unlock()
		found := b.find(ctx, files, named)
		b.mu.Lock()
		b.found, b.looked = found, content
		b.mu.Unlock()
		return true
	}
	var analyse, produce *entry
	for _, g := range b.groups() {
		e := b.entry(g)
		switch {
		case e == nil || files.Model(e.recipe.GetName()) != nil && files.Model(e.recipe.GetName()).Derived != nil:
		case !e.analysed:
			analyse = e
		case e.refusal == "" && !e.made && b.make[e.recipe.GetName()]:
			produce = e
		}
	}
	b.mu.Unlock()
	switch {
	case analyse != nil:
		err := b.analyse(ctx, files, analyse)
		if ctx.Err() != nil {
			return false // the group is not what failed
		}
		b.settle(analyse, err, h)
		h.Changed()
	case produce != nil:
		err := b.produce(ctx, files, produce, h)
		if ctx.Err() != nil {
			return false
		}
		var again *notKept
		if !errors.As(err, &again) {
			b.settle(produce, err, h)
		}
		if err != nil {
			h.Changed()
		}
		return again == nil
	default:
		return false
	}
	return true
}

// settle notes what came of an entry.
func (b *Book) settle(e *entry, err error, h Hooks) {
	b.mu.Lock()
	e.analysed = true
	if err != nil {
		e.refusal = err.Error()
	}
	b.mu.Unlock()
	if err != nil {
		h.Failed(e.recipe.GetName(), err)
	}
}

// notKept: a group was made, and its keeper would not have it.
type notKept struct{ error }

// write puts models as the operator wrote them into directories of their own.
func (b *Book) write(files *repo.Revision, names []string) (dir string, members []merger.Member, err error) {
	if err := os.MkdirAll(b.o.Dir, 0o755); err != nil {
		return "", nil, err
	}
	if dir, err = os.MkdirTemp(b.o.Dir, "models-"); err != nil {
		return "", nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	for _, name := range names {
		for _, f := range files.Model(name).Files {
			if err := b.copy(f, filepath.Join(dir, name, filepath.FromSlash(f.Path))); err != nil {
				return dir, nil, fmt.Errorf("%s: %w", name, err)
			}
		}
		m, err := merger.Find(filepath.Join(dir, name))
		if err != nil {
			return dir, nil, fmt.Errorf("%s has no version directory with a %s", name, merger.GraphFile)
		}
		members = append(members, m)
	}
	return dir, members, nil
}

func (b *Book) copy(f repo.File, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	from, err := b.o.Open(f)
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644) //nolint:gosec // the scratch server may be another user
	if err != nil {
		return errors.Join(err, from.Close())
	}
	_, err = io.Copy(out, from)
	return errors.Join(err, out.Close(), from.Close())
}

// find looks for groups among the models that no group names.
func (b *Book) find(ctx context.Context, files *repo.Revision, named []Group) []Group {
	var names []string
	for _, m := range files.Models {
		if m.Config == nil || m.Err() != nil || m.Unloaded || m.Derived != nil || slices.ContainsFunc(named, func(g Group) bool { return slices.Contains(g.Members, m.Name) }) ||
			!slices.ContainsFunc(m.Files, func(f repo.File) bool { return filepath.Base(f.Path) == merger.GraphFile }) {
			continue
		}
		names = append(names, m.Name)
	}
	if len(names) < 2 {
		return nil
	}
	dir, members, err := b.write(files, names)
	if err != nil {
		return nil
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
	groups, _, err := merger.Candidates(ctx, members, merger.Options{})
	if err != nil {
		return nil
	}
	var all []Group
	for _, group := range groups {
		var g Group
		for _, m := range group {
			g.Members = append(g.Members, m.Name)
		}
		all = append(all, g)
	}
	return all
}

// analyse says whether and what a group would share.
func (b *Book) analyse(ctx context.Context, files *repo.Revision, e *entry) error {
	for name := range e.members {
		m := files.Model(name)
		if served := repo.ServedVersions(m.Config, m.Versions); len(served) != 1 {
			return fmt.Errorf("%s serves %d versions; a member of a merge group has one", name, len(served))
		}
		if m.Override != nil {
			return fmt.Errorf("%s was loaded by a client with files or a configuration of its own", name)
		}
	}
	dir, members, err := b.write(files, e.recipe.GetMembers())
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // temporary
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

// produce makes a group, verifies it on a scratch server, and hands it over.
func (b *Book) produce(ctx context.Context, files *repo.Revision, e *entry, h Hooks) (err error) {
	name := e.recipe.GetName()
	dir, members, err := b.write(files, e.recipe.GetMembers())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	h.Progress(name, "the members' graphs are merged")
	a, err := merger.Analyze(ctx, members, merger.Options{})
	if err != nil {
		return err
	}
	into := filepath.Join(dir, ".merge")
	m, err := a.Emit(ctx, into, name, e.mode)
	if err = errors.Join(err, a.Close()); err != nil {
		return err
	}
	h.Progress(name, "a server to verify it on is started")
	run, err := b.o.Start(ctx)
	if err != nil {
		return fmt.Errorf("starting a server to verify it on: %w", err)
	}
	directories := map[string]string{}
	for _, one := range members {
		directories[one.Name] = one.Dir
	}
	m, err = merger.Verify(ctx, into, directories, run, merger.VerifyOptions{Progress: func(done, total int, what string) {
		if done*4%max(total, 1) < 4 {
			h.Progress(name, fmt.Sprintf("verified %d of %d batches; next are %s", done, total, what))
		}
	}})
	err = errors.Join(err, run.Close(context.WithoutCancel(ctx)))
	if err == nil {
		_, err = merger.Load(into) // what is handed over is what was run
	}
	if err != nil {
		return fmt.Errorf("verification: %w", err)
	}
	d := repo.Derivation{
		Recipe: name, Mode: string(m.Mode), Digest: m.Digest, Members: e.members, Parts: []string{name}, RowInput: merger.MemberInput, SharedBytes: m.SharedBytes,
	}
	for _, member := range m.Members {
		version := repo.ServedVersions(files.Model(member.Name).Config, files.Model(member.Name).Versions)[0]
		d.Rows = append(d.Rows, repo.RowOf{Name: member.Name, Version: strconv.FormatInt(version, 10), Outputs: member.As})
	}
	if err := h.Made(ctx, Made{Dir: into, Derivation: d, Runs: m.Verification.Runs, MaxDifference: m.Verification.MaxDifference}); err != nil {
		return &notKept{err}
	}
	b.mu.Lock()
	e.made = true
	b.mu.Unlock()
	return nil
}
