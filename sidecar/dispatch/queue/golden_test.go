// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"flag"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// unit is one time unit of Symphony's example.
const unit queue.Time = 1e9

// trace runs Symphony's example (section 3.3): l(b) = b+5, SLO 12, three
// partitions, request i arriving at (i-1) times interval (.75 in the paper)
// unless it is skipped. It returns a line per decision.
func trace(t *testing.T, discipline, drop string, interval queue.Time, requests int, skip map[int]bool) string {
	t.Helper()
	d, err := queue.NewDiscipline(discipline, nil)
	require.NoError(t, err)
	p, err := queue.NewDropPolicy(drop)
	require.NoError(t, err)
	rec := &recorder{}
	s := queue.New(rec, queue.Options{})
	m := s.AddModel(0, queue.ModelSpec{
		Classes: []queue.Table{queue.Linear(unit, 5*unit, 32)}, MaxBatch: 32, SLO: 12 * unit,
		Late: queue.LateDrop, Discipline: d, Drop: p,
	})
	for rank := range int32(3) {
		s.AddPartition(0, queue.PartitionSpec{Rank: rank, Serves: []queue.Service{{Model: m}}})
	}
	for i := 1; ; {
		for skip[i] {
			i++
		}
		arrival := queue.Never
		if i <= requests {
			arrival = queue.Time(i-1) * interval
		}
		now := min(arrival, rec.end(), s.Next())
		if now == queue.Never {
			return rec.log.String()
		}
		rec.now = now
		switch now {
		case rec.end():
			id := rec.running[0].Partition
			rec.running = rec.running[1:]
			s.Complete(now, id)
		case arrival:
			s.Enqueue(now, m, &queue.Request{Arrival: now, Owner: i})
			i++
		default:
			s.Advance(now)
		}
	}
}

// recorder is a sink that writes down what happens.
type recorder struct {
	log     strings.Builder
	now     queue.Time
	running []queue.Batch // by end
}

func (r *recorder) end() queue.Time {
	if len(r.running) == 0 {
		return queue.Never
	}
	return r.running[0].Finish
}

func (r *recorder) Dispatch(b *queue.Batch) {
	first, last := b.Requests[0].Owner, b.Requests[len(b.Requests)-1].Owner
	fmt.Fprintf(&r.log, "%6.2f  GPU %d  R%v-R%v  %d requests until %.2f\n",
		seconds(b.Start), b.Partition, first, last, b.Rows, seconds(b.Finish))
	i := len(r.running)
	for i > 0 && r.running[i-1].Finish > b.Finish {
		i--
	}
	r.running = append(r.running[:i], append([]queue.Batch{*b}, r.running[i:]...)...)
}

func (r *recorder) Drop(q *queue.Request, why queue.DropReason) {
	fmt.Fprintf(&r.log, "%6.2f  drop R%v: %v\n", seconds(r.now), q.Owner, why)
}

func seconds(t queue.Time) float64 { return float64(t) / float64(unit) }

// TestSymphonyExample replays figures 4 and 5 of Symphony.
func TestSymphonyExample(t *testing.T) {
	missing := map[int]bool{13: true, 14: true, 15: true}
	for _, c := range []struct {
		name, discipline, drop string
		interval               queue.Time
		skip                   map[int]bool
		drops                  bool
	}{
		{"deferred", "deferred", "window", unit * 3 / 4, nil, false},
		{"deferred-missing", "deferred", "window", unit * 3 / 4, missing, false},
		{"eager-missing", "eager", "prefix", unit * 3 / 4, missing, true},
		{"target", "target", "window", unit * 3 / 4, nil, false},
		{"adaptive-missing", "adaptive", "reserve", unit * 4 / 5, missing, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := trace(t, c.discipline, c.drop, c.interval, 60, c.skip)
			golden(t, c.name, got)
			require.Equal(t, c.drops, strings.Contains(got, "drop"))
			switch c.discipline {
			case "deferred":
				require.True(t, strings.HasPrefix(got, "  2.25  GPU 1  R1-R4  4 requests until 11.25\n"), "the paper's first batch")
			case "adaptive":
				require.True(t, strings.HasPrefix(got, "  0.00  GPU 1  R1-R1  1 requests until 6.00\n"), "all GPUs are free: nobody waits")
			}
		})
	}
}
