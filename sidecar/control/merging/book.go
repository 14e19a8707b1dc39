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
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

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
	// Clock is the machine's unless given.
	Clock Clock
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

// Hooks are called with the results for groups, by Run, one at a time.
type Hooks struct {
	// Progress is a step of making a group.
	Progress func(group, text string)
	// Failed says why a group will not be made before a member changes, or, where it may be something else's fault than the group's, before
	// next; that is zero otherwise.
	Failed func(group string, err error, next time.Time)
	// Looked is called after a search for groups among all models, with the models that cannot be merged with any other and why, or with the
	// error of the search and when it begins anew.
	Looked func(refusals []merger.Refusal, err error, next time.Time)
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
	found   []Group
	looked  string
	looking retry
	known   map[string]*entry
	make    map[string]bool // by the name of the recipe
	wake    chan struct{}
	// turn is held while a scratch server is in use: there is one at a time.
	turn chan struct{}
}

// entry is a group of members with certain content.
type entry struct {
	recipe  *policy.Recipe
	mode    merger.Mode
	members map[string]string // digests
	// analysed, and if so the result.
	analysed      bool
	refusal       string
	shared, bytes int64
	// made: it was handed over, and the files that came since have it.
	made bool
	// making is when the next try is, after one that something else than the group may have failed.
	making retry
	// failure is the message of the try that failed; busy: a step of the group is under way.
	failure string
	busy    bool
}

// New makes an empty book.
func New(o Options) *Book {
	if o.Clock == nil {
		o.Clock = machine{}
	}
	return &Book{o: o, known: map[string]*entry{}, make: map[string]bool{}, wake: make(chan struct{}, 1), turn: make(chan struct{}, 1)}
}

// Want says which models there are and which groups are wanted of them. It does not wait.
func (b *Book) Want(files *repo.Revision, w Wish) {
	b.mu.Lock()
	b.files, b.wish = files, w
	for _, e := range b.known {
		e.made = e.made && b.has(e) // a member was another meanwhile, or the files are those of before
	}
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
	digests := []string{e.recipe.Name}
	for _, name := range members {
		m := b.files.Model(name)
		if m == nil || m.Config == nil || m.Err() != nil || m.Unloaded {
			return nil
		}
		e.members[name] = m.Digest
		digests = append(digests, m.Digest)
	}
	key := strings.Join(digests, " ")
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
		if b.step(ctx, h) {
			continue
		}
		var again <-chan time.Time
		if wait, ok := b.untilNext(); ok {
			again = b.o.Clock.After(wait)
		}
		select {
		case <-ctx.Done():
		case <-b.wake:
		case <-again:
		}
	}
}

// step does the next thing; false where there is nothing to do by now.
func (b *Book) step(ctx context.Context, h Hooks) bool {
	b.mu.Lock()
	files, now := b.files, b.o.Clock.Now()
	if files == nil {
		b.mu.Unlock()
		return false
	}
	if content := b.content(); b.wish.Auto && b.looked != content && b.looking.due(now) {
		named := b.wish.Groups
		b.mu.Unlock()
		b.look(ctx, files, named, content, h)
		return ctx.Err() == nil
	}
	var analyse, produce *entry
	for _, g := range b.groups() {
		e := b.entry(g)
		switch {
		case e == nil || b.has(e) || e.refusal != "" || !e.making.due(now):
		case !e.analysed:
			analyse = e
		case !e.made && b.make[e.recipe.GetName()]:
			produce = e
		}
	}
	next := analyse
	if next == nil {
		next = produce
	}
	if next != nil {
		next.busy = true
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
		b.settle(produce, err, h)
		if err != nil {
			h.Changed()
		}
	default:
		return false
	}
	return true
}

// has reports whether the files have what the entry makes. Guarded by mu.
func (b *Book) has(e *entry) bool {
	m := b.files.Model(e.recipe.GetName())
	return m != nil && m.Derived != nil
}

// settle notes the result of an entry: a failure that another try may not have is tried again, any other is the group's refusal.
func (b *Book) settle(e *entry, err error, h Hooks) {
	var passing *passingError
	b.mu.Lock()
	e.busy = false
	next := time.Time{}
	switch {
	case err == nil:
		e.analysed, e.making, e.failure = true, retry{}, ""
	case errors.As(err, &passing):
		next = e.making.failed(b.o.Clock.Now())
		e.failure = err.Error()
	default:
		e.analysed, e.refusal, e.failure = true, err.Error(), ""
	}
	b.mu.Unlock()
	if err != nil {
		h.Failed(e.recipe.GetName(), err, next)
	}
}

// write puts models as the operator wrote them into directories of their own.
func (b *Book) write(files *repo.Revision, names []string) (dir string, members []merger.Member, err error) {
	if err := os.MkdirAll(b.o.Dir, 0o755); err != nil {
		return "", nil, passing(err)
	}
	if dir, err = os.MkdirTemp(b.o.Dir, "models-"); err != nil {
		return "", nil, passing(err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	for _, name := range names {
		for _, f := range files.Model(name).Files {
			if err := b.copy(f, filepath.Join(dir, name, filepath.FromSlash(f.Path))); err != nil {
				return dir, nil, passing(fmt.Errorf("%s: %w", name, err))
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

// graphPath is where a member has its graph.
var graphPath = regexp.MustCompile(`^[0-9]+/` + regexp.QuoteMeta(merger.GraphFile) + `$`)
