// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package watch_test

import (
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/watch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a state and a log that a test changes.
type world struct {
	mu      sync.Mutex
	models  map[string]any
	log     []watch.Entry
	kept    int
	sampled atomic.Int64
	encoded atomic.Int64
}

// counted counts how often it is encoded.
type counted struct {
	of   *world
	Name string
	V    any
}

func (c counted) MarshalJSON() ([]byte, error) {
	c.of.encoded.Add(1)
	return json.Marshal(map[string]any{"name": c.Name, "v": c.V})
}

func (w *world) set(name string, v any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if v == nil {
		delete(w.models, name)
	} else {
		w.models[name] = v
	}
}

func (w *world) happen() {
	w.mu.Lock()
	defer w.mu.Unlock()
	id := uint64(1)
	if n := len(w.log); n > 0 {
		id = w.log[n-1].ID + 1
	}
	w.log = append(w.log, watch.Entry{ID: id, Value: id})
	w.log = w.log[max(0, len(w.log)-w.kept):]
}

func (w *world) sources() []watch.Source {
	return []watch.Source{
		{Topic: api.TopicModels, State: func() ([]watch.Object, error) {
			w.sampled.Add(1)
			w.mu.Lock()
			defer w.mu.Unlock()
			var all []watch.Object
			for name, v := range w.models {
				all = append(all, watch.Object{Key: name, Value: counted{w, name, v}})
			}
			return all, nil
		}},
		{Topic: api.TopicEvents, First: 3, Since: func(after uint64) (all []watch.Entry) {
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, e := range w.log {
				if e.ID > after {
					all = append(all, e)
				}
			}
			return all
		}},
	}
}

func newWorld() *world { return &world{models: map[string]any{}, kept: 1000} }

func (w *world) hub(more func(*watch.Options)) *watch.Hub {
	o := watch.Options{Sources: w.sources(), Epoch: "e", Period: 500 * time.Millisecond, Now: time.Now, Logger: slog.New(slog.DiscardHandler)}
	if more != nil {
		more(&o)
	}
	return watch.New(o)
}

// reader is what a client knows.
type reader struct {
	models map[string]any
	log    []uint64
	last   string
	// wholes counts events with the whole state, by topic.
	wholes map[api.Topic]int
	end    *api.End
}

func newReader() *reader {
	return &reader{models: map[string]any{}, wholes: map[api.Topic]int{}}
}

func (r *reader) read(t require.TestingT, w *watch.Watcher) (events int) {
	all, end := w.Take()
	r.end = end
	for _, e := range all {
		r.take(t, e)
	}
	return len(all)
}

func (r *reader) take(t require.TestingT, e watch.Event) {
	r.last = e.ID
	var u api.Update
	require.NoError(t, json.Unmarshal(e.Data, &u), string(e.Data))
	if u.All {
		r.wholes[e.Topic]++
	}
	switch e.Topic {
	case api.TopicModels:
		if u.All {
			clear(r.models)
		}
		for _, text := range u.Changed {
			var m map[string]any
			require.NoError(t, json.Unmarshal(text, &m))
			r.models[m["name"].(string)] = m["v"]
		}
		for _, name := range u.Gone {
			require.Contains(t, r.models, name)
			delete(r.models, name)
		}
	case api.TopicEvents:
		if u.All {
			r.log = nil
		}
		for _, text := range u.Changed {
			var id uint64
			require.NoError(t, json.Unmarshal(text, &id))
			r.log = append(r.log, id)
		}
	}
}

func begin(t *testing.T, h *watch.Hub, last string, topics ...api.Topic) *watch.Watcher {
	t.Helper()
	w, err := h.Watch(topics, last)
	require.NoError(t, err)
	t.Cleanup(w.Close)
	synctest.Wait()
	return w
}

func TestTheStateComesFirstAndThenWhatChanges(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld()
		w.set("a", 1.)
		w.set("b", 1.)
		for range 5 {
			w.happen()
		}
		h, r := w.hub(nil), newReader()
		stream := begin(t, h, "")
		require.Equal(t, 2, r.read(t, stream))
		require.Equal(t, map[string]any{"a": 1., "b": 1.}, r.models)
		require.Equal(t, []uint64{3, 4, 5}, r.log, "the last of a log come first")

		time.Sleep(10 * time.Second)
		require.Zero(t, r.read(t, stream), "nothing has changed")

		w.set("a", 2.)
		w.set("b", nil)
		w.happen()
		time.Sleep(time.Second)
		require.Equal(t, 2, r.read(t, stream))
		require.Equal(t, map[string]any{"a": 2.}, r.models)
		require.Equal(t, []uint64{3, 4, 5, 6}, r.log)
		require.Equal(t, map[api.Topic]int{api.TopicModels: 1, api.TopicEvents: 1}, r.wholes)
	})
}

func TestNothingIsComputedWithoutWatchersAndOnceForMany(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld()
		w.set("a", 1.)
		h := w.hub(nil)
		time.Sleep(time.Minute)
		require.Zero(t, w.sampled.Load())

		events := begin(t, h, "", api.TopicEvents)
		time.Sleep(time.Minute)
		require.Zero(t, w.sampled.Load(), "nobody watches models")
		events.Close()

		var all []*watch.Watcher
		for range 100 {
			all = append(all, begin(t, h, "", api.TopicModels))
		}
		require.EqualValues(t, 1, w.sampled.Load())
		require.EqualValues(t, 1, w.encoded.Load())
		time.Sleep(1100 * time.Millisecond)
		require.EqualValues(t, 3, w.sampled.Load(), "every half second, however many watch")
		require.EqualValues(t, 3, w.encoded.Load())
		_, err := h.Watch(nil, "")
		require.Equal(t, api.CodeUnavailable, api.CodeOf(err))
		require.ErrorContains(t, err, "too many watchers: there are 100")
		for _, s := range all {
			s.Close()
		}
		synctest.Wait()
		time.Sleep(time.Minute)
		require.EqualValues(t, 3, w.sampled.Load())
		_, err = h.Watch([]api.Topic{"weather"}, "")
		require.Equal(t, api.CodeInvalid, api.CodeOf(err))
		require.ErrorContains(t, err, `there is no topic "weather"; there are models, events`)
	})
}

func TestAWatcherThatReadsTooSlowlyIsCutOffAndNobodyElse(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld()
		h := w.hub(func(o *watch.Options) { o.QueueFrames = 5 })
		slow, quick, r := begin(t, h, ""), begin(t, h, ""), newReader()
		for i := range 20 {
			w.set("a", float64(i))
			time.Sleep(600 * time.Millisecond)
			synctest.Wait()
			r.read(t, quick)
			require.Nil(t, r.end)
		}
		require.Equal(t, map[string]any{"a": 19.}, r.models)
		<-slow.Ready()
		events, end := slow.Take()
		require.Empty(t, events)
		require.Equal(t, "slow", end.Reason)
		require.Contains(t, end.Message, "7 events were not read in time") // two of them came first
	})
}

func TestBytesBoundWhatAWatcherLeavesUnread(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld()
		big := strings.Repeat("x", 1000)
		w.set("a", big) // what comes first may be larger than the bound
		h := w.hub(func(o *watch.Options) { o.QueueBytes = 900 })
		slow := begin(t, h, "", api.TopicModels)
		w.set("a", "y")
		time.Sleep(time.Second)
		r := newReader()
		r.read(t, slow)
		require.Equal(t, map[string]any{"a": "y"}, r.models)
		w.set("a", big)
		time.Sleep(time.Second)
		r.read(t, slow)
		require.Equal(t, "slow", r.end.Reason)
	})
}

func TestAWatcherThatComesBackGetsWhatItMissed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld()
		w.set("a", 1.)
		h, r := w.hub(nil), newReader()
		first := begin(t, h, "")
		r.read(t, first)
		first.Close()
		time.Sleep(time.Hour)
		w.set("a", 2.)
		w.set("b", 3.)
		w.happen()
		other := begin(t, h, "") // has changes made while r is away
		w.set("a", 4.)
		time.Sleep(time.Second)
		other.Close()

		again := begin(t, h, r.last)
		r.read(t, again)
		require.Equal(t, map[string]any{"a": 4., "b": 3.}, r.models)
		require.Equal(t, []uint64{1}, r.log)
		require.Equal(t, map[api.Topic]int{api.TopicModels: 1, api.TopicEvents: 1}, r.wholes, "the whole state came once only")
		again.Close()

		// Nothing was missed: that is said, or the reader would not know that it is connected until something changes.
		again = begin(t, h, r.last)
		require.Equal(t, 1, r.read(t, again))
		require.Equal(t, map[string]any{"a": 4., "b": 3.}, r.models)
		require.Equal(t, map[api.Topic]int{api.TopicModels: 1, api.TopicEvents: 1}, r.wholes)
		again.Close()

		// More changes than are kept.
		again = begin(t, h, "")
		for i := range 300 {
			w.set("a", float64(i))
			time.Sleep(600 * time.Millisecond) // more than a period: every change is sent
		}
		again.Close()
		again = begin(t, h, r.last)
		r.read(t, again)
		require.Equal(t, map[string]any{"a": 299., "b": 3.}, r.models)
		require.Equal(t, map[api.Topic]int{api.TopicModels: 2, api.TopicEvents: 1}, r.wholes, "of the other topic all changes are kept")
		again.Close()

		// Ids that mean nothing here.
		for _, last := range []string{"", "other." + r.last[2:], "e.zzzz.3", "e.1", "e.1.!", "..", r.last + ".1"} {
			r = newReader()
			again = begin(t, h, last)
			r.read(t, again)
			require.Equal(t, map[string]any{"a": 299., "b": 3.}, r.models, last)
			require.Equal(t, []uint64{1}, r.log, last)
			again.Close()
		}
	})
}

func TestAConnectionThatBreaksWithinTheWholeStateGoesOnThere(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld()
		w.set("a", 1.)
		w.happen()
		h, r := w.hub(nil), newReader()
		first := begin(t, h, "")
		events, _ := first.Take()
		require.Len(t, events, 2)
		r.take(t, events[0]) // and not the second
		first.Close()
		w.set("a", 2.)
		time.Sleep(time.Second)
		again := begin(t, h, r.last)
		r.read(t, again)
		require.Equal(t, map[string]any{"a": 2.}, r.models)
		require.Equal(t, []uint64{1}, r.log)
		// Other topics than before: what was not watched comes whole.
		again.Close()
		again = begin(t, h, "", api.TopicEvents)
		r = newReader()
		r.read(t, again)
		again.Close()
		again = begin(t, h, r.last)
		r.read(t, again)
		require.Equal(t, map[string]any{"a": 2.}, r.models)
		require.Equal(t, map[api.Topic]int{api.TopicModels: 1, api.TopicEvents: 1}, r.wholes)
	})
}

func TestEntriesThatWereLostMakeTheLogWholeAgain(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld()
		w.kept = 4
		h, r := w.hub(nil), newReader()
		stream := begin(t, h, "", api.TopicEvents)
		for range 9 {
			w.happen()
		}
		time.Sleep(time.Second)
		r.read(t, stream)
		require.Equal(t, []uint64{7, 8, 9}, r.log)
		require.Equal(t, 2, r.wholes[api.TopicEvents])
	})
}

func TestASourceThatFailsHurtsNothingElse(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld()
		w.set("a", 1.)
		fail := func() ([]watch.Object, error) { return nil, errors.New("not now") }
		h := w.hub(func(o *watch.Options) {
			o.Sources = append(o.Sources, watch.Source{Topic: api.TopicPlan, State: func() ([]watch.Object, error) { return fail() }})
		})
		stream, r := begin(t, h, ""), newReader()
		r.read(t, stream)
		require.Equal(t, map[string]any{"a": 1.}, r.models)
		fail = func() ([]watch.Object, error) { panic("a bug") }
		w.set("a", 2.)
		w.set("b", math.NaN())
		time.Sleep(time.Second)
		r.read(t, stream)
		require.Equal(t, map[string]any{"a": 2.}, r.models)
	})
}

func TestStopEndsEveryStream(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		w := newWorld()
		w.set("a", 1.)
		h := w.hub(func(o *watch.Options) { o.Watchers = 200 })
		var ended atomic.Int64
		for range 200 {
			stream, err := h.Watch(nil, "")
			require.NoError(t, err)
			go func() {
				defer stream.Close()
				for range stream.Ready() {
					if _, end := stream.Take(); end != nil && end.Reason == "stopping" {
						ended.Add(1)
						return
					}
				}
			}()
		}
		time.Sleep(time.Minute)
		start := time.Now()
		h.Stop(2 * time.Second)
		require.Zero(t, time.Since(start))
		require.EqualValues(t, 200, ended.Load())
		_, err := h.Watch(nil, "")
		require.ErrorContains(t, err, "conch stops")
	})
	bubble.Test(t, func(t *testing.T) {
		h := newWorld().hub(nil)
		stuck := begin(t, h, "")
		start := time.Now()
		h.Stop(2 * time.Second)
		require.Equal(t, 2*time.Second, time.Since(start), "a watcher that does not leave is not waited for")
		stuck.Close()
		synctest.Wait()
	})
}

// Whatever happens, and however often a reader is cut off: what it knows in the end is what there is.
func TestAReaderKnowsWhatThereIs(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.SliceOfN(rapid.IntRange(0, 9), 1, 60).Draw(rt, "steps")
		bubble.Test(t, func(t *testing.T) {
			w := newWorld()
			w.kept = 5
			h := w.hub(func(o *watch.Options) { o.QueueFrames = 3 })
			r := newReader()
			stream, err := h.Watch(nil, "")
			require.NoError(rt, err)
			for i, step := range seed {
				switch step {
				case 0, 1, 2:
					w.set(string(rune('a'+step)), float64(i))
				case 3:
					w.set("a", nil)
				case 4, 5:
					w.happen()
				case 6:
					time.Sleep(500 * time.Millisecond)
				case 7:
					r.read(rt, stream)
				case 8: // the connection breaks after some of what was sent
					events, _ := stream.Take()
					for _, e := range events[:len(events)/2] {
						r.take(rt, e)
					}
					stream.Close()
					synctest.Wait()
					stream, err = h.Watch(nil, r.last)
					require.NoError(rt, err)
				case 9:
					time.Sleep(time.Minute)
				}
			}
			for {
				time.Sleep(time.Second)
				synctest.Wait()
				if r.read(rt, stream); r.end == nil {
					break
				}
				stream.Close()
				stream, err = h.Watch(nil, r.last)
				require.NoError(rt, err)
			}
			stream.Close()
			synctest.Wait()
			require.Equal(rt, w.models, r.models)
			for i := 1; i < len(r.log); i++ {
				require.Equal(rt, r.log[i-1]+1, r.log[i])
			}
			if n := len(w.log); n > 0 {
				require.Equal(rt, w.log[n-1].ID, r.log[len(r.log)-1])
			}
		})
	})
}
