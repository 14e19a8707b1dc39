// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// Watcher is one stream. It is used by one goroutine.
type Watcher struct {
	hub   *Hub
	wants uint64 // topics, by their bits
	ready chan struct{}

	// Guarded by the hub's lock.
	queue []frame
	bytes int // of queue, but what came first
	first int // frames of queue that came first
	end   *api.End
	begun bool // it has what comes first

	// has are the topics whose state the watcher has, up to the event with the number from. They are the producer's until the watcher has begun, and
	// then Take's.
	has  uint64
	from uint64
}

// Event is one event of a stream.
type Event struct {
	ID    string
	Topic api.Topic
	// Data is an api.Update as JSON. It is shared: it must not be changed.
	Data []byte
}

// Ready receives when Take has something.
func (w *Watcher) Ready() <-chan struct{} { return w.ready }

// Take returns the events that are there, and how the stream ends if it does: after these events, or in place of some of them if the watcher was too
// slow.
func (w *Watcher) Take() (events []Event, end *api.End) {
	w.hub.mu.Lock()
	queue, end := w.queue, w.end
	w.queue, w.bytes, w.first = nil, 0, 0
	w.hub.mu.Unlock()
	events = make([]Event, len(queue))
	for i, f := range queue {
		w.has, w.from = w.has|1<<f.topic, f.seq
		events[i] = Event{ID: w.hub.id(w.from, w.has), Topic: w.hub.topics[f.topic].Topic, Data: f.data}
	}
	return events, end
}

// Alive is an event without a change and without an id: it says that nothing has changed, and that the stream is whole.
func (w *Watcher) Alive() Event {
	return Event{Topic: w.hub.topics[w.anyTopic()].Topic, Data: update(w.hub.o.Now(), false, nil, nil)}
}

// anyTopic is one that the watcher watches.
func (w *Watcher) anyTopic() int { return bits.TrailingZeros64(w.wants) }

// Close ends the stream.
func (w *Watcher) Close() {
	h := w.hub
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.watchers[w] {
		return
	}
	delete(h.watchers, w)
	w.queue = nil
	close(h.left)
	h.left = make(chan struct{})
	h.rouse()
}

// begin gives a watcher what it gets first. The hub's lock is held.
func (w *Watcher) begin(frames []frame) {
	if w.begun = true; w.end != nil {
		return
	}
	w.queue, w.first = frames, len(frames)
	w.rouse()
}

// push gives a watcher the changes that it wants, or cuts it off if it has left too many unread. The hub's lock is held.
func (w *Watcher) push(frames []frame) {
	if !w.begun || w.end != nil {
		return
	}
	for _, f := range frames {
		if w.wants&(1<<f.topic) == 0 {
			continue
		}
		if len(w.queue)-w.first >= w.hub.o.QueueFrames || w.bytes+len(f.data) > w.hub.o.QueueBytes {
			w.cut(api.End{Reason: "slow", Message: fmt.Sprintf("%d events were not read in time; connect again", len(w.queue))})
			return
		}
		w.queue, w.bytes = append(w.queue, f), w.bytes+len(f.data)
		w.rouse()
	}
}

// cut ends a watcher's stream. The hub's lock is held.
func (w *Watcher) cut(end api.End) {
	if w.end != nil {
		return
	}
	w.end = &end
	if end.Reason == "slow" {
		w.queue, w.bytes, w.first = nil, 0, 0
	}
	w.rouse()
}

func (w *Watcher) rouse() {
	select {
	case w.ready <- struct{}{}:
	default:
	}
}

// id names a moment of a stream: the epoch, the number of the last change, and the topics whose state its reader has, as bits.
func (h *Hub) id(seq, has uint64) string {
	return h.o.Epoch + "." + strconv.FormatUint(seq, 36) + "." + strconv.FormatUint(has, 36)
}

// parse reads an id; what is no id of this epoch is the moment before everything.
func (h *Hub) parse(id string) (seq, has uint64) {
	parts := strings.Split(id, ".")
	if len(parts) != 3 || parts[0] != h.o.Epoch {
		return 0, 0
	}
	seq, err := strconv.ParseUint(parts[1], 36, 64)
	has, err2 := strconv.ParseUint(parts[2], 36, 64)
	if err != nil || err2 != nil {
		return 0, 0
	}
	return seq, has
}
