// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package minitriton

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// at is a time in milliseconds after an arbitrary beginning.
func at(ms int) time.Time {
	return time.Unix(1_000_000, 0).Add(time.Duration(ms) * time.Millisecond)
}

func rowsOf(p *payload) []int {
	if p == nil {
		return nil
	}
	var rows []int
	for _, r := range p.requests {
		rows = append(rows, r.rows)
	}
	return rows
}

// sim drives a batcher by hand.
type sim struct {
	*batcher
	t       *testing.T
	dropped int
}

func newSim(t *testing.T, b batcher) *sim {
	s := &sim{batcher: &b, t: t}
	if s.instances == 0 {
		s.instances = 1
	}
	s.dropCanceled = func(*request) { s.dropped++ }
	return s
}

func (s *sim) arrive(ms, rows int, shape ...int64) *request {
	r := &request{ctx: context.Background(), rows: rows, enqueued: at(ms), inputs: []tensor{{name: "X", shape: append([]int64{int64(rows)}, shape...)}}}
	require.Nil(s.t, s.add(r))
	s.form(at(ms))
	return r
}

func (s *sim) takes(ms int, want ...int) {
	s.t.Helper()
	s.form(at(ms))
	require.Equal(s.t, want, rowsOf(s.take(at(ms))), "at %d ms", ms)
	s.form(at(ms))
}

func dynamic(maxBatch int, delay time.Duration, preferred ...int) batcher {
	if len(preferred) == 0 {
		preferred = []int{maxBatch}
	}
	return batcher{dynamic: true, maxBatch: maxBatch, preferred: preferred, delay: delay}
}

func TestWithoutDynamicBatchingEveryRequestRunsAlone(t *testing.T) {
	s := newSim(t, batcher{maxBatch: 8})
	for _, rows := range []int{1, 3, 2} {
		s.arrive(0, rows)
	}
	s.takes(0, 1)
	s.takes(0, 3)
	s.takes(0, 2)
	s.takes(0)
}

// The cases are those measured on the real server.
func TestDynamicBatching(t *testing.T) {
	t.Run("eight calls run as one and seven", func(t *testing.T) {
		s := newSim(t, dynamic(8, 0))
		s.arrive(0, 1)
		s.takes(0, 1)
		for range 7 {
			s.arrive(1, 1)
		}
		s.takes(10, 1, 1, 1, 1, 1, 1, 1)
	})
	t.Run("batches of 3, 2, 8, 1 run as 5, 8, 1", func(t *testing.T) {
		s := newSim(t, dynamic(8, 0))
		for _, rows := range []int{3, 2, 8, 1} {
			s.arrive(0, rows)
		}
		s.takes(1, 3, 2)
		s.takes(2, 8)
		s.takes(3, 1)
	})
	t.Run("preferred 4 and 200 ms: four at once, two when their time is up", func(t *testing.T) {
		s := newSim(t, dynamic(8, 200*time.Millisecond, 4))
		for range 4 {
			s.arrive(0, 1)
		}
		s.takes(0, 1, 1, 1, 1)
		for range 2 {
			s.arrive(0, 1)
		}
		s.takes(199)
		s.takes(200, 1, 1)
	})
	t.Run("a full batch does not wait", func(t *testing.T) {
		s := newSim(t, dynamic(4, time.Second))
		for range 3 {
			s.arrive(0, 1)
		}
		s.takes(0)
		s.arrive(1, 1)
		s.takes(1, 1, 1, 1, 1)
	})
	t.Run("says when it wants to be asked again", func(t *testing.T) {
		s := newSim(t, dynamic(4, 100*time.Millisecond))
		s.arrive(0, 1)
		require.Equal(t, 70*time.Millisecond, s.form(at(30)))
	})
	t.Run("another shape ends a batch at once", func(t *testing.T) {
		b := dynamic(8, time.Second)
		b.equalShapes = true
		s := newSim(t, b)
		s.arrive(0, 1, 3)
		s.arrive(0, 1, 3)
		s.takes(0)
		s.arrive(1, 1, 4)
		s.takes(1, 1, 1)
		s.takes(1)
		s.takes(1001, 1)
	})
	t.Run("two payloads per instance are made ahead, and what is ahead runs though its caller goes", func(t *testing.T) {
		s := newSim(t, dynamic(2, 0))
		cancels := make([]context.CancelFunc, 0, 12)
		for i := range 12 {
			ctx, cancel := context.WithCancel(context.Background())
			cancels = append(cancels, cancel)
			require.Nil(t, s.add(&request{ctx: ctx, rows: 1, enqueued: at(0)}))
			if i == 1 {
				s.takes(0, 1, 1)
			}
		}
		s.form(at(0))
		for _, cancel := range cancels {
			cancel()
		}
		s.takes(1, 1, 1)
		require.Equal(t, 6, s.dropped)
		s.takes(2, 1, 1)
		s.takes(3)
	})
	t.Run("payloads beyond the delay merge when taken", func(t *testing.T) {
		s := newSim(t, dynamic(8, 10*time.Millisecond, 4))
		for range 4 {
			s.arrive(0, 1)
		}
		for range 3 {
			s.arrive(5, 1)
		}
		s.form(at(16))
		s.takes(30, 1, 1, 1, 1, 1, 1, 1)
	})
}

// Whatever arrives when: nothing is lost or doubled, order is kept, no batch is too large or mixes shapes, and nothing waits beyond the
// delay while an instance is free.
func TestBatcherInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := batcher{dynamic: rapid.Bool().Draw(t, "dynamic"), maxBatch: rapid.IntRange(1, 6).Draw(t, "max"), instances: rapid.IntRange(1, 2).Draw(t, "instances"),
			delay: time.Duration(rapid.IntRange(0, 5).Draw(t, "delay")) * time.Millisecond, equalShapes: rapid.Bool().Draw(t, "shapes")}
		b.preferred = []int{rapid.IntRange(1, b.maxBatch).Draw(t, "preferred")}
		b.dropCanceled = func(*request) { t.Fatal("nobody cancelled") }
		var sent, got []*request
		now := 0
		take := func() {
			p := b.take(at(now))
			if p == nil {
				for _, r := range b.waiting {
					if b.delay == 0 || at(now).Sub(r.enqueued) >= b.delay {
						t.Fatalf("a request of %v waits at %v with a free instance", r.enqueued, at(now))
					}
				}
				return
			}
			rows := 0
			for _, r := range p.requests {
				rows += r.rows
				if b.equalShapes && b.dynamic && r.inputs[0].shape[1] != p.requests[0].inputs[0].shape[1] {
					t.Fatal("shapes mixed")
				}
			}
			if rows != p.rows || rows > b.maxBatch || !b.dynamic && len(p.requests) != 1 {
				t.Fatalf("payload of %d rows (%d said) in %d requests", rows, p.rows, len(p.requests))
			}
			got = append(got, p.requests...)
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += rapid.IntRange(0, 3).Draw(t, "ms")
			if rapid.Bool().Draw(t, "arrival") {
				rows := rapid.IntRange(1, b.maxBatch).Draw(t, "rows")
				r := &request{ctx: context.Background(), rows: rows, enqueued: at(now), inputs: []tensor{{name: "X", shape: []int64{int64(rows), rapid.Int64Range(1, 2).Draw(t, "dim")}}}}
				sent = append(sent, r)
				require.Nil(t, b.add(r))
				b.form(at(now))
				continue
			}
			b.form(at(now))
			take()
			b.form(at(now))
		}
		for range len(sent) + 1 {
			now += 10
			b.form(at(now))
			take()
		}
		if len(got) != len(sent) || b.pending() != 0 {
			t.Fatalf("%d sent, %d taken, %d pending", len(sent), len(got), b.pending())
		}
		for i := range got {
			if got[i] != sent[i] {
				t.Fatalf("request %d taken out of order", i)
			}
		}
	})
}
