// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// Options of a hub.
type Options struct {
	Sources []Source
	// Epoch differs between processes: ids of another epoch are not known here. It has no dot.
	Epoch string
	// Period is the time between samples; 0 is a second: with half of it, being watched took more than 1% of a core.
	Period time.Duration
	// Watchers is how many there may be at once; 0 is 100.
	Watchers int
	// QueueFrames and QueueBytes are how much a watcher may leave unread, beyond what it gets first; 0 is 512 events and 8 MiB. The bytes of an
	// event are shared by all watchers.
	QueueFrames, QueueBytes int
	Now                     func() time.Time
	Logger                  *slog.Logger
}

// mostTopics fit into the mask of an id.
const mostTopics = 64

// Hub has the watchers and the producer, which runs while there are watchers.
type Hub struct {
	o      Options
	topics []*topic
	seq    uint64 // of the last change; the producer's alone

	mu       sync.Mutex
	watchers map[*Watcher]bool
	joining  []*Watcher
	running  bool
	stopping bool
	wake     chan struct{} // has room for 1: somebody joins, or has left
	left     chan struct{} // closed, and replaced, when a watcher leaves
}

// New makes a hub. Nothing runs before there is a watcher.
func New(o Options) *Hub {
	if len(o.Sources) > mostTopics {
		panic(fmt.Sprintf("watch: %d topics, of which ids can tell %d apart", len(o.Sources), mostTopics))
	}
	orElse := func(v *int, otherwise int) {
		if *v == 0 {
			*v = otherwise
		}
	}
	orElse(&o.Watchers, 100)
	orElse(&o.QueueFrames, 512)
	orElse(&o.QueueBytes, 8<<20)
	if o.Period == 0 {
		o.Period = time.Second
	}
	h := &Hub{o: o, watchers: map[*Watcher]bool{}, wake: make(chan struct{}, 1), left: make(chan struct{})}
	for i, s := range o.Sources {
		h.topics = append(h.topics, &topic{Source: s, index: i})
	}
	return h
}

// Watch begins to watch some topics, or all if none is named. Last is the id of the last event that the caller has, or empty. The errors are of the
// admin API: CodeInvalid for a topic that there is not, CodeUnavailable where there are too many watchers or conch stops.
func (h *Hub) Watch(topics []api.Topic, last string) (*Watcher, error) {
	w := &Watcher{hub: h, ready: make(chan struct{}, 1)}
	for _, name := range topics {
		i := slices.IndexFunc(h.topics, func(t *topic) bool { return t.Topic == name })
		if i < 0 {
			return nil, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("there is no topic %q; there are %s", name, h.names())}
		}
		w.wants |= 1 << i
	}
	if len(topics) == 0 {
		w.wants = 1<<len(h.topics) - 1
	}
	w.from, w.has = h.parse(last)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.stopping:
		return nil, &api.Error{Code: api.CodeUnavailable, Message: "conch stops"}
	case len(h.watchers) >= h.o.Watchers:
		return nil, &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("too many watchers: there are %d, which is the limit; try again when another has gone", len(h.watchers))}
	}
	h.watchers[w] = true
	h.joining = append(h.joining, w)
	if !h.running {
		h.running = true
		go h.produce()
	}
	h.rouse()
	return w, nil
}

// Stop ends all streams with the reason "stopping" and takes no further watcher. It returns when they are gone, or after the given time.
func (h *Hub) Stop(within time.Duration) {
	limit := time.NewTimer(within)
	defer limit.Stop()
	h.mu.Lock()
	h.stopping = true
	for w := range h.watchers {
		w.cut(api.End{Reason: "stopping", Message: "conch stops"})
	}
	for len(h.watchers) > 0 {
		left := h.left
		h.mu.Unlock()
		select {
		case <-left:
		case <-limit.C:
			return
		}
		h.mu.Lock()
	}
	h.mu.Unlock()
}

func (h *Hub) names() string {
	all := make([]string, len(h.topics))
	for i, t := range h.topics {
		all[i] = string(t.Topic)
	}
	return strings.Join(all, ", ")
}

// rouse has the producer look for who joins or has left.
func (h *Hub) rouse() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// produce samples what is watched until nobody watches.
func (h *Hub) produce() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		h.mu.Lock()
		if len(h.watchers) == 0 {
			h.running = false
			h.mu.Unlock()
			return
		}
		joining := h.joining
		h.joining = nil
		wanted := uint64(0)
		for w := range h.watchers {
			wanted |= w.wants
		}
		h.mu.Unlock()

		now := h.o.Now()
		next := now.Add(h.o.Period)
		var frames []frame
		for _, t := range h.topics {
			if wanted&(1<<t.index) == 0 {
				continue
			}
			if !now.Before(t.next) {
				t.next = now.Add(h.o.Period)
				if c := t.sample(now, h.o.Logger); c.any {
					frames = append(frames, frame{topic: t.index, data: c.data})
				}
			}
			if t.next.Before(next) {
				next = t.next
			}
		}
		h.publish(frames, joining, now)
		timer.Reset(max(0, next.Sub(h.o.Now())))
		select {
		case <-timer.C:
		case <-h.wake:
		}
	}
}

// publish sends changes to those who watch, and to those who join what they do not have.
func (h *Hub) publish(frames []frame, joining []*Watcher, now time.Time) {
	for i := range frames {
		h.seq++
		frames[i].seq = h.seq
		h.topics[frames[i].topic].keep(frames[i])
	}
	first := make([][]frame, len(joining))
	wholes := make([][]byte, len(h.topics))
	for i, w := range joining {
		first[i] = h.first(w, wholes, now)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watchers {
		w.push(frames)
	}
	for i, w := range joining {
		w.begin(first[i])
	}
}

// first is what a watcher that joins gets: the changes since it left, where they are kept, and the whole of the other topics. Wholes are those that
// were made already.
func (h *Hub) first(w *Watcher, wholes [][]byte, now time.Time) (frames []frame) {
	if w.from > h.seq {
		w.has = 0 // an id that was never given
	}
	for _, t := range h.topics {
		if w.from < t.floor || w.wants&(1<<t.index) == 0 {
			w.has &^= 1 << t.index
		}
		if w.has&(1<<t.index) != 0 {
			i, _ := slices.BinarySearchFunc(t.ring, w.from+1, func(f frame, seq uint64) int { return cmp.Compare(f.seq, seq) })
			frames = append(frames, t.ring[i:]...)
		}
	}
	slices.SortFunc(frames, func(a, b frame) int { return cmp.Compare(a.seq, b.seq) })
	for _, t := range h.topics {
		if w.wants&^w.has&(1<<t.index) == 0 {
			continue
		}
		if wholes[t.index] == nil {
			wholes[t.index] = t.whole(now, h.o.Logger)
		}
		frames = append(frames, frame{seq: h.seq, topic: t.index, data: wholes[t.index]})
	}
	if len(frames) == 0 { // who comes back hears at once that nothing has changed, and not with the next change
		frames = append(frames, frame{seq: h.seq, topic: w.anyTopic(), data: update(now, false, nil, nil)})
	}
	return frames
}
