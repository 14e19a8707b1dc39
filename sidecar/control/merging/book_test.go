// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package merging_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/internal/graphs"
	"github.com/conch-serving/conch/internal/onnx"
	"github.com/conch-serving/conch/internal/ort"
	"github.com/conch-serving/conch/merger"
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
	// fails says how the start of a scratch server fails; nil: it does not.
	fails func() error
	clock *leaps
	open  func(repo.File) (io.ReadCloser, error)
	made  string // the book's directory
}

// leaps is a clock on which every wait is over at once, and its time gone by.
type leaps struct {
	mu    sync.Mutex
	now   time.Time
	waits []time.Duration
}

func (c *leaps) Now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.now }

func (c *leaps) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	c.waits = append(c.waits, d)
	fired := make(chan time.Time, 1)
	fired <- c.now
	return fired
}

func newWorld(t *testing.T, members int) *world {
	w := &world{t: t, dir: t.TempDir(), events: make(chan string, 100), clock: &leaps{now: time.Unix(1e9, 0)}}
	for i := range members {
		w.write(string(rune('a'+i)), i)
	}
	var err error
	w.store, err = repo.Open(t.TempDir(), repo.Options{})
	require.NoError(t, err)
	w.open = func(f repo.File) (io.ReadCloser, error) { return w.store.Open(f) }
	python := os.Getenv("CONCH_PYTHON")
	w.made = t.TempDir()
	o := merging.Options{
		Dir: w.made, Open: func(f repo.File) (io.ReadCloser, error) { return w.open(f) },
		Clock: w.clock,
		Start: func(ctx context.Context) (merging.Scratch, error) {
			if w.fails != nil {
				if err := w.fails(); err != nil {
					return nil, err
				}
			}
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
			Failed: func(_ string, err error, next time.Time) {
				if next.IsZero() {
					say("failed: " + err.Error())
				} else {
					say("again: " + err.Error())
				}
			},
			Looked: func(refusals []merger.Refusal, err error, _ time.Time) {
				say(fmt.Sprintf("looked: %v %v", refusals, err))
			},
			Changed: func() { say("changed") },
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

			// Nor does it matter that it was made of these members before.
			w.write("b", 1)
			w.read(wish)
			require.Nil(t, w.files.Model(d.GetRecipe().GetName()))
			w.run("made")
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

// TestAStopIsNoFailure: a stop while a group is made does not count as its failure, and
// the files that a killed process left are removed.
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
		Failed:  func(group string, err error, _ time.Time) { t.Errorf("%s: %v", group, err) },
		Changed: func() { t.Error("nothing is on offer") },
	})
	require.True(t, opened)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left)
}

// What something else than the group may have failed is tried again, with a growing delay, and a state says when.
func TestWhatMayPassIsTriedAgain(t *testing.T) {
	w := newWorld(t, 2)
	tries := 0
	w.fails = func() error {
		if tries++; tries <= 8 {
			return fmt.Errorf("no room, %d", tries)
		}
		return nil
	}
	wish := merging.Wish{Groups: []merging.Group{{Members: []string{"a", "b"}}}}
	w.read(wish)
	w.run("changed")
	w.book.Make([]*policy.Recipe{w.offer().GetRecipe()})
	require.Contains(t, w.run("again"), "starting a server to verify it on: no room, 1")
	require.Empty(t, w.offer().GetRefusal(), "it stays on offer")
	state := w.book.States()[0]
	require.Equal(t, merging.State{
		Group: w.offer().GetRecipe().GetName(), Wanted: true, Attempts: 1, Next: w.clock.Now().Add(10 * time.Second),
		Failure: "starting a server to verify it on: no room, 1",
	}, state)
	w.run("made")
	require.Equal(t, 9, tries)
	w.book.Want(w.files, wish)
	state = w.book.States()[0]
	require.True(t, state.Made)
	require.Empty(t, state.Failure)
	minutes := func(m float64) time.Duration { return time.Duration(m * float64(time.Minute)) }
	require.Equal(t, []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, minutes(80. / 60), minutes(160. / 60), minutes(320. / 60), minutes(10), minutes(10)}, w.clock.waits)
}

// A search that fails says so and begins anew; models that it cannot merge are named with the reason.
func TestASearchSaysWhatItLeavesOut(t *testing.T) {
	w := newWorld(t, 3)
	require.NoError(t, os.WriteFile(filepath.Join(w.dir, "c", "1", "model.onnx"), []byte("no graph"), 0o600))
	open := w.open
	failed := false
	w.open = func(f repo.File) (io.ReadCloser, error) {
		if !failed {
			failed = true
			return nil, errors.New("the disk is away")
		}
		return open(f)
	}
	w.read(merging.Wish{Auto: true})
	require.Contains(t, w.run("looked"), "a: the disk is away")
	require.Contains(t, w.run("looked: [{c "), "model.onnx")
	w.run("changed")
	require.Equal(t, []string{"a", "b"}, w.offer().GetRecipe().GetMembers())
}

// An order verifies models without keeping what was made, and says why where it cannot be.
func TestAnOrderVerifiesAndKeepsNothing(t *testing.T) {
	w := newWorld(t, 2)
	w.read(merging.Wish{})
	var steps []string
	m, err := w.book.Verify(t.Context(), []string{"b", "a"}, merger.VerifyOptions{}, func(_, _ int, what string) { steps = append(steps, what) })
	require.NoError(t, err)
	require.Positive(t, m.Verification.Runs)
	require.Contains(t, steps, "a server to verify it on is started")
	require.Greater(t, len(steps), 5)
	require.Empty(t, w.book.Offers())
	left, err := filepath.Glob(filepath.Join(w.made, "*"))
	require.NoError(t, err)
	require.Empty(t, left)

	var refused *merging.RefusedError
	for members, why := range map[string]string{"a": "a group takes two or more", "a a": "a is named twice", "a c": `no model is called "c"`} {
		_, err = w.book.Verify(t.Context(), strings.Fields(members), merger.VerifyOptions{}, func(int, int, string) {})
		require.ErrorAs(t, err, &refused)
		require.ErrorContains(t, err, why)
	}
	w.spoils = "merge."
	_, err = w.book.Verify(t.Context(), []string{"a", "b"}, merger.VerifyOptions{}, func(int, int, string) {})
	require.ErrorAs(t, err, &refused)
	require.ErrorContains(t, err, "differs by")
	w.spoils, steps = "", nil
	tries := 0
	w.fails = func() error {
		if tries++; tries == 1 {
			return errors.New("no room")
		}
		return nil
	}
	_, err = w.book.Verify(t.Context(), []string{"a", "b"}, merger.VerifyOptions{}, func(_, _ int, what string) { steps = append(steps, what) })
	require.NoError(t, err, "the second server does it")
	require.Contains(t, steps, "another server is tried: starting a server to verify it on: no room")
	w.fails = func() error { return errors.New("no room") }
	_, err = w.book.Verify(t.Context(), []string{"a", "b"}, merger.VerifyOptions{}, func(int, int, string) {})
	require.ErrorContains(t, err, "no room")
	require.NotErrorAs(t, err, &refused, "another time it may go better")
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
