// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/conch-serving/conch/sidecar/admin/api"
)

// State is what a stream of state has said so far, of the topics that are watched.
type State struct {
	// Time of the last change, on conch's clock.
	Time time.Time
	// Conch and Plan are nil until they are known.
	Conch *api.Conch
	Plan  *api.Plan
	// Models, Requests and Waiting are by name; GPUs and Partitions in conch's order.
	Models     []api.Model
	Requests   []api.ModelRequests
	Waiting    []api.ModelWaiting
	GPUs       []api.GPU
	Partitions []api.Partition
	// Events are the last, oldest first; Executions those that ended in the last half minute; Minutes those of the last hour.
	Events     []api.Event
	Minutes    []api.Minute
	Executions []api.Executed

	known map[api.Topic]bool
}

// Bounds of what a State keeps of topics that only grow.
const (
	keptEvents     = 200
	keptExecutions = 30 // seconds
	keptMinutes    = 60
)

// Knows reports whether every one of the topics has been sent.
func (s *State) Knows(topics ...api.Topic) bool {
	return !slices.ContainsFunc(topics, func(t api.Topic) bool { return !s.known[t] })
}

// Take applies a change. Topics that this build does not know are ignored.
func (s *State) Take(c Change) error {
	if s.known == nil {
		s.known = map[api.Topic]bool{}
	}
	s.known[c.Topic], s.Time = true, c.Time
	switch c.Topic {
	case api.TopicConch:
		return single(&s.Conch, c)
	case api.TopicPlan:
		return single(&s.Plan, c)
	case api.TopicModels:
		return keyed(&s.Models, c, func(m api.Model) string { return m.Name }, true)
	case api.TopicRequests:
		return keyed(&s.Requests, c, func(r api.ModelRequests) string { return r.Model }, true)
	case api.TopicWaiting:
		return keyed(&s.Waiting, c, func(w api.ModelWaiting) string { return w.Model }, true)
	case api.TopicGPUs:
		return keyed(&s.GPUs, c, api.GPU.Key, false)
	case api.TopicPartitions:
		return keyed(&s.Partitions, c, api.Partition.Key, false)
	case api.TopicEvents:
		if err := grow(&s.Events, c); err != nil {
			return err
		}
		s.Events = s.Events[max(0, len(s.Events)-keptEvents):]
	case api.TopicMinutes:
		if err := grow(&s.Minutes, c); err != nil {
			return err
		}
		s.Minutes = s.Minutes[max(0, len(s.Minutes)-keptMinutes):]
	case api.TopicExecutions:
		if err := grow(&s.Executions, c); err != nil {
			return err
		}
		since := float64(c.Time.UnixNano())/1e9 - keptExecutions
		s.Executions = slices.DeleteFunc(s.Executions, func(e api.Executed) bool { return e.End < since })
	}
	return nil
}

func decodeOne[T any](topic api.Topic, text json.RawMessage) (v T, err error) {
	if err := json.Unmarshal(text, &v); err != nil {
		return v, fmt.Errorf("an object of the topic %s: %w", topic, err)
	}
	return v, nil
}

func single[T any](into **T, c Change) error {
	for _, text := range c.Changed {
		v, err := decodeOne[T](c.Topic, text)
		if err != nil {
			return err
		}
		*into = &v
	}
	return nil
}

func keyed[T any](list *[]T, c Change, key func(T) string, sorted bool) error {
	next := slices.Clone(*list) // who was given the list before keeps it
	if c.All {
		next = make([]T, 0, len(c.Changed))
	}
	next = slices.DeleteFunc(next, func(v T) bool { return slices.Contains(c.Gone, key(v)) })
	for _, text := range c.Changed {
		v, err := decodeOne[T](c.Topic, text)
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(next, func(o T) bool { return key(o) == key(v) }); i >= 0 {
			next[i] = v
		} else {
			next = append(next, v)
		}
	}
	if sorted {
		slices.SortStableFunc(next, func(a, b T) int { return cmp.Compare(key(a), key(b)) })
	}
	*list = next
	return nil
}

func grow[T any](list *[]T, c Change) error {
	next := slices.Clone(*list)
	if c.All {
		next = nil
	}
	for _, text := range c.Changed {
		v, err := decodeOne[T](c.Topic, text)
		if err != nil {
			return err
		}
		next = append(next, v)
	}
	*list = next
	return nil
}
