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
	simulated "github.com/conch-serving/conch/sidecar/sim/discipline"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// unit is one time unit of Symphony's example.
const unit queue.Time = 1e9

// rule is a discipline with its parameters and a drop policy.
type rule struct {
	discipline, drop string
	params           map[string]string
}

// model is the one of Symphony's example (section 3.3) under the rule: l(b) = b+5, SLO 12.
func (r rule) model(t *testing.T) queue.ModelSpec {
	t.Helper()
	d, err := simulated.New(r.discipline, r.params)
	require.NoError(t, err)
	p, err := queue.NewDropPolicy(r.drop)
	require.NoError(t, err)
	return queue.ModelSpec{
		Classes: []queue.Table{queue.Linear(unit, 5*unit, 32)}, MaxBatch: 32, SLO: 12 * unit,
		Late: queue.LateDrop, Discipline: d, Drop: p,
	}
}

// example is Symphony's: three executors, request i arriving at (i-1) times
// interval (.75 in the paper) unless it is skipped.
type example struct {
	rule     rule
	interval queue.Time
	skip     map[int]bool
	// later are rules that hold from the arrival of a request on.
	later map[int]rule
	// arrivalsFirst lets a request in before a batch that ends at the same moment.
	arrivalsFirst bool
}

// trace runs the example and returns a line per decision.
func (e example) trace(t *testing.T, requests int) string {
	t.Helper()
	rec := &recorder{}
	s := queue.New(rec, queue.Options{})
	m := s.AddModel(0, e.rule.model(t))
	for rank := range int32(3) {
		s.AddExecutor(0, queue.ExecutorSpec{Rank: rank, Serves: []queue.Service{{Model: m}}})
	}
	for i := 1; ; {
		for e.skip[i] {
			i++
		}
		arrival := queue.Never
		if i <= requests {
			arrival = queue.Time(i-1) * e.interval
		}
		now := min(arrival, rec.end(), s.Next())
		if now == queue.Never {
			return rec.log.String()
		}
		rec.now = now
		switch {
		case now == rec.end() && (now < arrival || !e.arrivalsFirst):
			id := rec.running[0].Executor
			rec.running = rec.running[1:]
			s.Complete(now, id)
		case now == arrival:
			if other, ok := e.later[i]; ok {
				require.NoError(t, s.SetModel(now, m, other.model(t)))
			}
			s.Enqueue(now, m, &queue.Request{Arrival: now, Tag: i})
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
	first, last := b.Requests[0].Tag, b.Requests[len(b.Requests)-1].Tag
	fmt.Fprintf(&r.log, "%6.2f  GPU %d  R%v-R%v  %d requests until %.2f\n",
		seconds(b.Start), b.Executor, first, last, b.Rows, seconds(b.Finish))
	i := len(r.running)
	for i > 0 && r.running[i-1].Finish > b.Finish {
		i--
	}
	r.running = append(r.running[:i], append([]queue.Batch{*b}, r.running[i:]...)...)
}

func (r *recorder) Drop(q *queue.Request, why queue.DropReason) {
	fmt.Fprintf(&r.log, "%6.2f  drop R%v: %v\n", seconds(r.now), q.Tag, why)
}

func seconds(t queue.Time) float64 { return float64(t) / float64(unit) }

// TestSymphonyExample replays figures 4 and 5 of Symphony. begins and drops are from
// the paper's text.
func TestSymphonyExample(t *testing.T) {
	missing := map[int]bool{13: true, 14: true, 15: true}
	deferred, eager := rule{"deferred", "window", nil}, rule{"eager", "prefix", nil}
	const paper = unit * 3 / 4
	for _, c := range []struct {
		name    string
		example example
		begins  string
		drops   string // the first of them; empty: none
	}{
		{"deferred", example{rule: deferred, interval: paper}, "  2.25  GPU 1  R1-R4  4 requests until 11.25\n", ""},
		{"deferred-missing", example{rule: deferred, interval: paper, skip: missing}, "  2.25  GPU 1  R1-R4  4 requests until 11.25\n", ""},
		// Figure 5a: staggered until three are missing, eager from then on. R16 and R25 run alone, and R26 with only one of the six behind it.
		{
			"eager-from-16", example{rule: deferred, interval: paper, skip: missing, later: map[int]rule{16: eager}, arrivalsFirst: true},
			"  2.25  GPU 1  R1-R4  4 requests until 11.25\n", "R35 R37 R38",
		},
		{"eager-missing", example{rule: eager, interval: paper, skip: missing}, "  0.00  GPU 1  R1-R1  1 requests until 6.00\n", "R21 R22 R23"},
		{"target", example{rule: rule{"target", "window", nil}, interval: paper}, "", ""},
		{"timeout", example{rule: rule{"timeout", "none", map[string]string{"max_queue_delay": "3s"}}, interval: paper}, "  3.00  GPU 1  R1-R4  4 requests", ""},
		{"adaptive-missing", example{rule: rule{"adaptive", "reserve", nil}, interval: unit * 4 / 5, skip: missing}, "  0.00  GPU 1  R1-R1  1 requests until 6.00\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := c.example.trace(t, 60)
			golden(t, c.name, got)
			require.True(t, strings.HasPrefix(got, c.begins), got)
			var dropped []string
			for line := range strings.Lines(got) {
				if _, who, ok := strings.Cut(line, "drop "); ok && len(dropped) < 3 {
					dropped = append(dropped, strings.TrimSuffix(strings.TrimSpace(who), ": late"))
				}
			}
			require.Equal(t, c.drops, strings.Join(dropped, " "))
		})
	}
}
