// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merging_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/graphs"
	"github.com/conch-serving/conch/internal/onnx"
	"github.com/conch-serving/conch/internal/ort"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/repo"
	"github.com/conch-serving/conch/sidecar/control/merging"
)

// scratch is ONNX Runtime in the place of a server; it may spoil what one model answers.
type scratch struct {
	*ort.Runtime
	spoils string
}

func (s scratch) Run(ctx context.Context, name string, inputs []onnx.Array) ([]onnx.Array, error) {
	out, err := s.Runtime.Run(ctx, name, inputs)
	if err == nil && strings.HasPrefix(name, s.spoils) && s.spoils != "" {
		for i := range out {
			out[i].Data[len(out[i].Data)-1] ^= 0x40
		}
	}
	return out, err
}

func (s scratch) Close(context.Context) error { return s.Runtime.Close() }

// world is a repository of fine-tunes, and a book about it.
type world struct {
	t      *testing.T
	dir    string
	store  *repo.Store
	files  *repo.Revision
	book   *merging.Book
	spoils string
	events chan string
}

func newWorld(t *testing.T, members int) *world {
	w := &world{t: t, dir: t.TempDir(), events: make(chan string, 100)}
	for i := range members {
		w.write(string(rune('a'+i)), i)
	}
	var err error
	w.store, err = repo.Open(t.TempDir(), repo.Options{})
	require.NoError(t, err)
	python := os.Getenv("CONCH_PYTHON")
	o := merging.Options{
		Dir: t.TempDir(), Open: func(f repo.File) (io.ReadCloser, error) { return w.store.Open(f) },
		Start: func(ctx context.Context) (merging.Scratch, error) {
			r, err := ort.Start(context.WithoutCancel(ctx), python)
			return scratch{r, w.spoils}, err
		},
	}
	if python == "" {
		t.Skip("CONCH_PYTHON is not set: make test sets it")
	}
	w.book = merging.New(o)
	return w
}

// write makes a fine-tune of that number.
func (w *world) write(name string, number int) {
	g := graphs.FineTune(number, 16)
	version := filepath.Join(w.dir, name, "1")
	require.NoError(w.t, os.MkdirAll(version, 0o700))
	require.NoError(w.t, onnx.Write(filepath.Join(version, "model.onnx"), g.Model, g))
	config := fmt.Sprintf("name: %q\nbackend: \"python\"\nmax_batch_size: 4\ninput { name: \"INPUT\" data_type: TYPE_FP32 dims: [ 16 ] }\noutput { name: \"OUTPUT\" data_type: TYPE_FP32 dims: [ 16 ] }\n", name)
	require.NoError(w.t, os.WriteFile(filepath.Join(w.dir, name, "config.pbtxt"), []byte(config), 0o600))
	require.NoError(w.t, os.WriteFile(filepath.Join(version, "model.py"), []byte("# runs it\n"), 0o600))
}

// read imports the repository.
func (w *world) read(wish merging.Wish) {
	var err error
	w.files, err = w.store.Import(w.t.Context(), w.dir, repo.Origin{Time: time.Now()})
	require.NoError(w.t, err)
	w.book.Want(w.files, wish)
}

// run runs the book until an event comes that begins with one of the texts.
func (w *world) run(until ...string) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	done, found := make(chan struct{}), ""
	say := func(text string) {
		for _, u := range until {
			if strings.HasPrefix(text, u) && found == "" {
				found = text
				cancel()
			}
		}
	}
	go func() {
		defer close(done)
		w.book.Run(ctx, merging.Hooks{
			Progress: func(string, string) {},
			Failed:   func(_ string, err error) { say("failed: " + err.Error()) },
			Changed:  func() { say("changed") },
			Made: func(ctx context.Context, m merging.Made) error {
				files, err := w.store.Derive(context.WithoutCancel(ctx), m.Dir, m.Derivation, repo.Origin{Time: time.Now()})
				if err == nil {
					w.files = files
					say("made")
				}
				return err
			},
		})
	}()
	<-done
	require.NotEmpty(w.t, found, "none of %v came", until)
	return found
}

func (w *world) offer() *policy.DerivedModel {
	w.t.Helper()
	all := w.book.Offers()
	require.Len(w.t, all, 1)
	return all[0]
}

func TestAGroupIsOfferedMadeAndKept(t *testing.T) {
	for name, wish := range map[string]merging.Wish{"named": {Groups: []merging.Group{{Members: []string{"c", "a", "b"}}}}, "found": {Auto: true}} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 3)
			w.read(wish)
			w.run("changed")
			d := w.offer()
			require.Equal(t, []string{"a", "b", "c"}, d.GetRecipe().GetMembers())
			require.Empty(t, d.GetRefusal())
			require.False(t, d.GetVerified(), "nothing wants it yet")
			require.Positive(t, d.GetSharedBytes())

			w.book.Make([]*policy.Recipe{d.GetRecipe()})
			w.run("made")
			w.book.Want(w.files, wish)
			require.True(t, w.offer().GetVerified())
			group := w.files.Model(d.GetRecipe().GetName())
			require.Equal(t, []string{"a", "b", "c"}, group.Derived.MemberNames())
			require.Equal(t, "1", group.Derived.Rows[0].Version)

			// A book that begins anew, as after a restart, knows it without looking.
			again := merging.New(merging.Options{})
			again.Want(w.files, wish)
			require.Len(t, again.Offers(), 1)
			require.True(t, again.Offers()[0].GetVerified())

			// A member is another: the group is gone, and made again.
			w.write("b", 7)
			w.read(wish)
			require.Nil(t, w.files.Model(d.GetRecipe().GetName()))
			w.run("made")
			w.book.Want(w.files, wish)
			require.True(t, w.offer().GetVerified())
			require.NotEqual(t, group.Digest, w.files.Model(d.GetRecipe().GetName()).Digest)
		})
	}
}

func TestAGroupThatDiffersFromItsMembersIsRefused(t *testing.T) {
	w := newWorld(t, 2)
	w.spoils = "merge."
	wish := merging.Wish{Groups: []merging.Group{{Members: []string{"a", "b"}}}}
	w.read(wish)
	w.run("changed")
	w.book.Make([]*policy.Recipe{w.offer().GetRecipe()})
	require.Contains(t, w.run("failed"), "differs by")
	require.Contains(t, w.offer().GetRefusal(), "verification")
	require.Nil(t, w.files.Model(w.offer().GetRecipe().GetName()))
}

func TestWhatCannotBeMergedSaysWhy(t *testing.T) {
	w := newWorld(t, 2)
	require.NoError(t, os.Remove(filepath.Join(w.dir, "b", "1", "model.onnx")))
	w.read(merging.Wish{Groups: []merging.Group{{Members: []string{"a", "b"}}, {Members: []string{"a", "nobody"}}}})
	require.Contains(t, w.run("failed"), "b has no version directory with a model.onnx")
	require.Contains(t, w.offer().GetRefusal(), "b has no version")

	unable := merging.New(merging.Options{Dir: t.TempDir(), Open: func(f repo.File) (io.ReadCloser, error) { return w.store.Open(f) }, Unable: "no servers here"})
	w.write("b", 1)
	files, err := w.store.Import(t.Context(), w.dir, repo.Origin{Time: time.Now()})
	require.NoError(t, err)
	unable.Want(files, merging.Wish{Groups: []merging.Group{{Members: []string{"a", "b"}}}})
	w.book = unable
	require.Contains(t, w.run("failed"), "no servers here")
}

// TestAStopIsNoFailure: who stops in the middle has nothing to say against a group, and
// what a killed process left is removed.
func TestAStopIsNoFailure(t *testing.T) {
	w := &world{t: t, dir: t.TempDir()}
	w.write("a", 0)
	w.write("b", 1)
	var err error
	w.store, err = repo.Open(t.TempDir(), repo.Options{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dir := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "models-1", "a"), 0o700))
	opened := false
	w.book = merging.New(merging.Options{Dir: dir, Unable: "no server", Open: func(f repo.File) (io.ReadCloser, error) {
		_, err := os.Stat(filepath.Join(dir, "models-1"))
		require.ErrorIs(t, err, os.ErrNotExist)
		opened = true
		cancel()
		return w.store.Open(f)
	}})
	w.read(merging.Wish{Groups: []merging.Group{{Members: []string{"a", "b"}}}})
	w.book.Run(ctx, merging.Hooks{
		Failed:  func(group string, err error) { t.Errorf("%s: %v", group, err) },
		Changed: func() { t.Error("nothing is on offer") },
	})
	require.True(t, opened)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestNamesOfGroups(t *testing.T) {
	require.Equal(t, merging.Name(merging.Group{Members: []string{"b", "a"}}), merging.Name(merging.Group{Members: []string{"a", "b"}}))
	require.NotEqual(t, merging.Name(merging.Group{Members: []string{"a.b", "c"}}), merging.Name(merging.Group{Members: []string{"a", "b.c"}}))
	var many []string
	for i := range 40 {
		many = append(many, fmt.Sprintf("model%d", i))
	}
	require.Less(t, len(merging.Name(merging.Group{Members: many})), 100)
}
