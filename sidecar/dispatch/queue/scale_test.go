// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/sidecar/dispatch/queue"
)

// discards takes batches and does not keep them.
type discards struct{ started []queue.ExecutorID }

func (d *discards) Dispatch(b *queue.Batch)             { d.started = append(d.started, b.Executor) }
func (*discards) Drop(*queue.Request, queue.DropReason) {}

// TestDistinctParametersLeaveNothingBehind: twenty thousand sets of parameters wait at a time, each in a lane of its own, and are
// forgotten as requests go on.
func TestDistinctParametersLeaveNothingBehind(t *testing.T) {
	sink := &discards{}
	s := queue.New(sink, queue.Options{})
	m := s.AddModel(0, queue.ModelSpec{Name: "m", MaxBatch: 8, SLO: queue.Time(time.Second)})
	s.AddExecutor(0, queue.ExecutorSpec{Serves: []queue.Service{{Model: m}}})
	now := queue.Time(0)
	finish := func() {
		for len(sink.started) > 0 {
			p := sink.started[0]
			sink.started = sink.started[1:]
			now++
			s.Complete(now, p)
		}
	}
	const distinct = 20_000
	for i := range distinct {
		s.Enqueue(now, m, &queue.Request{Key: uint64(i), Rows: 1, Arrival: now})
	}
	require.Greater(t, queue.Lanes(s, m), distinct-10)
	finish()
	for range distinct {
		now++
		s.Enqueue(now, m, &queue.Request{Key: 1, Rows: 1, Arrival: now})
		finish()
	}
	require.Less(t, queue.Lanes(s, m), 100)
}

// asked counts the calls of Exec.
type asked struct {
	queue.Discipline
	n int
}

func (a *asked) Exec(now queue.Time, l *queue.Load) queue.Time {
	a.n++
	return a.Discipline.Exec(now, l)
}

// crowded is a scheduler of many models on as many executors as are given, each model on two of them, with a request of each
// model waiting.
func crowded(models, executors int, d queue.Discipline) (*queue.Scheduler, []queue.ModelID, queue.ModelSpec) {
	s := queue.New(&discards{}, queue.Options{})
	line := make(queue.Table, 33)
	for b := 1; b < len(line); b++ {
		line[b] = queue.Time(5+b) * queue.Time(time.Millisecond)
	}
	spec := queue.ModelSpec{Name: "m", MaxBatch: 32, SLO: queue.Time(100 * time.Millisecond), Classes: []queue.Table{line}, Discipline: d}
	ids := make([]queue.ModelID, models)
	serves := make([][]queue.Service, executors)
	s.Reconfigure(0, func() {
		for i := range ids {
			ids[i] = s.AddModel(0, spec)
			for _, p := range []int{i % executors, (i + 1) % executors} {
				serves[p] = append(serves[p], queue.Service{Model: ids[i]})
			}
		}
		for _, list := range serves {
			s.AddExecutor(0, queue.ExecutorSpec{Serves: list})
		}
	})
	for _, id := range ids {
		s.Enqueue(0, id, &queue.Request{Rows: 1})
	}
	return s, ids, spec
}

// TestAProfileIsNothingToOtherModels: a new profile of one model does not call the disciplines of other models.
func TestAProfileIsNothingToOtherModels(t *testing.T) {
	eager, err := queue.NewDiscipline("deferred", nil)
	require.NoError(t, err)
	others, own := &asked{Discipline: eager}, &asked{Discipline: eager}
	s, ids, spec := crowded(400, 32, others)
	before := others.n
	require.Positive(t, before)
	spec.Discipline = own
	require.NoError(t, s.SetModel(0, ids[7], spec))
	require.Equal(t, before, others.n)
	require.Positive(t, own.n)
	for _, id := range ids {
		requests, _ := s.Queued(id)
		require.Equal(t, 1, requests)
	}
}

// BenchmarkSetModel is what a new profile of one model takes, while every model has a request that waits.
func BenchmarkSetModel(b *testing.B) {
	for _, models := range []int{4, 400} {
		b.Run(fmt.Sprintf("%dmodels", models), func(b *testing.B) {
			d, err := queue.NewDiscipline("deferred", nil)
			require.NoError(b, err)
			s, ids, spec := crowded(models, 32, d)
			i := 0
			for b.Loop() {
				if err := s.SetModel(0, ids[i%models], spec); err != nil {
					b.Fatal(err)
				}
				i++
			}
		})
	}
}
