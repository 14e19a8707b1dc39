// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package conditions

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/apply/decide"
)

// Kind of a subject.
type Kind string

// Kinds of subject.
const (
	Partition Kind = "partition"
	Model     Kind = "model"
	Group     Kind = "group"
	// OfCluster is where servers are Pods, by the name of the release.
	OfCluster Kind = "cluster"
)

// Subject is what has conditions.
type Subject struct {
	Kind Kind
	Name string
}

// All are the conditions of everything, in the order of the API's types.
type All map[Subject][]api.Condition

// Of are those of one subject.
func (a All) Of(k Kind, name string) []api.Condition { return a[Subject{k, name}] }

// Wanted is what the plan asks for of models.
type Wanted struct {
	// Places are the partitions of each model in the plan.
	Places map[string][]string
	// Groups are the merge groups that are wanted.
	Groups []Grouping
	// Without says why a model has none, by name: a reason's word, and a sentence.
	Without map[string][2]string
	// Cluster has to carry the plan out; nil without one.
	Cluster *Cluster
}

// Cluster is that of a release.
type Cluster struct {
	Release string
	// Silent is since when its API server does not answer, and Cause how that shows; zero: it answers.
	Silent time.Time
	Cause  string
}

func ofCluster(c *Cluster) []api.Condition {
	all := []api.Condition{{Type: api.ConditionReady, Holds: c.Silent.IsZero()}, {Type: api.ConditionProgressing}, {Type: api.ConditionDegraded, Holds: !c.Silent.IsZero()}}
	if c.Silent.IsZero() {
		return all
	}
	for _, i := range []int{0, 2} {
		all[i].Reason = "api_server_silent"
		all[i].Message = fmt.Sprintf("the API server has not answered since %s: requests go on, and what a plan changes in the cluster waits: %s", c.Silent.UTC().Format(time.RFC3339), c.Cause)
	}
	return all
}

// Grouping is a merge group that is wanted, in Places of the plan. Where it was not made, Failure says why, and Making that it is.
type Grouping struct {
	Name    string
	Places  []string
	Made    bool
	Making  bool
	Failure string
	// Attempts have failed in a row; the next is at RetryAt, or zero: when a member changes.
	Attempts int
	RetryAt  time.Time
}

// ofGroup is ofModel for a merge group, which may have to be made first.
func ofGroup(o apply.Observed, g Grouping) []api.Condition {
	if g.Made {
		return ofModel(o, g.Name, g.Places)
	}
	all := []api.Condition{
		{Type: api.ConditionReady, Reason: "not_made", Message: "it was not made yet: its members serve"},
		{Type: api.ConditionProgressing, Holds: g.Making}, {Type: api.ConditionDegraded, Holds: g.Failure != ""},
	}
	if g.Making {
		all[1].Reason, all[1].Message = "making", "it is made and verified"
	}
	if g.Failure != "" {
		all[0].Message = g.Failure
		all[2].Reason, all[2].Message, all[2].Attempts, all[2].RetryAt = "not_made", g.Failure, g.Attempts, g.RetryAt
	}
	return all
}

// Tracker remembers when conditions turned. The zero value is ready to use.
type Tracker struct {
	mu   sync.Mutex
	last All
}

// Look returns the present conditions. A condition's Since is when it last changed,
// as seen by the calls of Look.
func (t *Tracker) Look(o apply.Observed, w Wanted, now time.Time) All {
	all := All{}
	for _, p := range o.Partitions {
		if !p.Retiring {
			all[Subject{Partition, p.ID}] = ofPartition(o, p)
		}
	}
	for model, places := range w.Places {
		all[Subject{Model, model}] = ofModel(o, model, places)
	}
	for _, g := range w.Groups {
		all[Subject{Group, g.Name}] = ofGroup(o, g)
	}
	for model, why := range w.Without {
		all[Subject{Model, model}] = []api.Condition{
			{Type: api.ConditionReady, Reason: why[0], Message: why[1]}, {Type: api.ConditionProgressing}, {Type: api.ConditionDegraded},
		}
	}
	if w.Cluster != nil {
		all[Subject{OfCluster, w.Cluster.Release}] = ofCluster(w.Cluster)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for subject, list := range all {
		for i := range list {
			before, known := api.ConditionOf(t.last[subject], list[i].Type)
			switch {
			case known && before.Holds == list[i].Holds:
				list[i].Since = before.Since
			case list[i].Since.IsZero() || known:
				list[i].Since = now
			}
		}
	}
	t.last = all
	return all
}

// Turned are the subjects whose condition of a type holds in one of two looks and
// not in the other, sorted.
func Turned(before, after All, t api.ConditionType) (turned []Subject) {
	for subject, list := range after {
		is, _ := api.ConditionOf(list, t)
		was, _ := api.ConditionOf(before[subject], t)
		if is.Holds != was.Holds {
			turned = append(turned, subject)
		}
	}
	slices.SortFunc(turned, func(a, b Subject) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name)) })
	return turned
}

// Differs reports whether what is observed is not what is desired: a server that
// is missing or one too many, a model that is not served as the plan asks.
func Differs(o apply.Observed) bool {
	return !o.Settled || len(o.Conditions) > 0 || slices.ContainsFunc(o.Partitions, func(p apply.PartitionState) bool {
		return p.Retiring || !p.Up || len(p.Missing) > 0
	})
}

func ofPartition(o apply.Observed, p apply.PartitionState) []api.Condition {
	ready := api.Condition{Type: api.ConditionReady, Holds: p.Up && len(p.Missing) == 0}
	about := slices.DeleteFunc(slices.Clone(o.Conditions), func(c apply.Condition) bool { return c.Partition != p.ID })
	switch {
	case ready.Holds:
	case !p.Up:
		ready.Reason, ready.Message = "down", cmp.Or(p.Reason, "its server is not up")
	default:
		ready.Reason, ready.Message = "models_missing", "it does not serve yet as the plan asks: "+strings.Join(p.Missing, ", ")
	}
	return []api.Condition{ready, progressing(about, true), degraded(about, true)}
}

func ofModel(o apply.Observed, model string, places []string) []api.Condition {
	ready := api.Condition{Type: api.ConditionReady}
	for _, p := range o.Partitions {
		ready.Holds = ready.Holds || p.Up && slices.Contains(p.Models, model)
	}
	own := slices.DeleteFunc(slices.Clone(o.Conditions), func(c apply.Condition) bool { return c.Model != model })
	around := slices.DeleteFunc(slices.Clone(o.Conditions), func(c apply.Condition) bool {
		return c.Model != model && (c.Model != "" || !slices.Contains(places, c.Partition))
	})
	// A failure of its server is a condition of the server.
	p, d := progressing(around, false), degraded(own, false)
	if !ready.Holds {
		ready.Reason, ready.Message = "down", "no partition serves it"
		switch {
		case d.Holds:
			ready.Reason, ready.Message = d.Reason, d.Message
		case p.Holds:
			ready.Reason, ready.Message = p.Reason, p.Message
		default:
			if server := degraded(around, false); server.Holds {
				ready.Reason, ready.Message = server.Reason, server.Message
			}
		}
	}
	return []api.Condition{ready, p, d}
}

func progressing(about []apply.Condition, named bool) api.Condition {
	return first(api.ConditionProgressing, about, named, func(k decide.ConditionKind) bool { return k != decide.IsFailing })
}

func degraded(about []apply.Condition, named bool) api.Condition {
	return first(api.ConditionDegraded, about, named, func(k decide.ConditionKind) bool { return k == decide.IsFailing })
}

// first is the condition that the oldest of what it is about makes; named says of
// which model it is.
func first(t api.ConditionType, about []apply.Condition, named bool, is func(decide.ConditionKind) bool) api.Condition {
	out := api.Condition{Type: t}
	for _, c := range about {
		if !is(c.Kind) || out.Holds && !c.Since.Before(out.Since) {
			continue
		}
		out = api.Condition{Type: t, Holds: true, Reason: string(c.Kind), Message: c.Reason, Since: c.Since, Attempts: c.Attempts, RetryAt: c.Next}
		if named && c.Model != "" {
			out.Message = c.Model + ": " + c.Reason
		} else if !named && c.Partition != "" {
			out.Message = c.Partition + ": " + c.Reason
		}
	}
	return out
}
