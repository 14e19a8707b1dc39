// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/admin/api"
	"github.com/conch-serving/conch/sidecar/apply"
	"github.com/conch-serving/conch/sidecar/apply/decide"
	"github.com/conch-serving/conch/sidecar/control/events"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
	"github.com/conch-serving/conch/sidecar/plan"
	"github.com/conch-serving/conch/sidecar/policyhost"
)

// Hooks are the calls of the parts to the loop. They are ready before the parts are
// made, and none of them waits for the loop.
type Hooks interface {
	// Check judges a plan (policyhost.Options.Check).
	Check(s *policy.Snapshot, p *policy.Plan) error
	// PolicyEvent notes what happened to the policy's process.
	PolicyEvent(e policyhost.Event)
	// ActionDone notes something that the reconciler did.
	ActionDone(a apply.Action)
	// PartitionChanged notes a death or return of a partition's server.
	PartitionChanged(partition string, up bool, reason string)
	// MPSFault notes that a client of MPS has made a GPU fault, and which partitions
	// are started again for it.
	MPSFault(partitions []string)
	// GroupFault notes that a merge group's executions fail, so that its members serve.
	GroupFault(f apply.GroupFault)
	// TakenOver notes that servers of an earlier conch were found.
	TakenOver(t apply.TakeOver)
}

var _ Hooks = (*Control)(nil)

// Check implements Hooks: what a plan is judged by before it counts.
func (c *Control) Check(s *policy.Snapshot, p *policy.Plan) error {
	c.rejected = nil
	violations := plan.Validate(s, p, append(slices.Clone(c.checks), plan.Patience(s))...)
	excess := slices.ContainsFunc(violations, func(v plan.Violation) bool { return v.Code == plan.CodeExcess })
	if len(violations) > 0 && !excess { // what is too long to walk is too long to compare and to show
		c.rejected = p
	}
	return violations.Err()
}

// PolicyEvent implements Hooks.
func (c *Control) PolicyEvent(e policyhost.Event) {
	message := "policy " + e.Policy + ": " + string(e.Kind)
	if e.Text != "" {
		message += ": " + e.Text
	}
	switch e.Kind {
	case policyhost.EventCallFailed, policyhost.EventStartFailed, policyhost.EventSwapFailed:
		// The call that failed reports it with what it was for.
		c.log.Warn(message, "error", e.Err)
	default:
		c.event(api.Event{Kind: events.PolicyState, Message: message, Fields: map[string]string{"policy": e.Policy, "state": string(e.Kind)}})
	}
}

// ActionDone implements Hooks.
func (c *Control) ActionDone(a apply.Action) {
	if errors.Is(a.Err, context.Canceled) {
		return // superseded
	}
	c.metrics.Step(string(a.Kind), a.Duration, a.Err)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.spent[string(a.Kind)] += a.Duration
	if a.Err != nil {
		return
	}
	switch a.Kind {
	case decide.LoadIt:
		c.loads[a.Model], c.loadedAt[a.Model] = a.Duration.Seconds(), c.clock.Now()
	case decide.Start:
		c.starts = a.Duration.Seconds()
	}
}

// PartitionChanged implements Hooks.
func (c *Control) PartitionChanged(partition string, up bool, reason string) {
	kind, message := events.PartitionDown, "partition "+partition+" is down"
	if up {
		kind, message = events.PartitionUp, "partition "+partition+" is up again"
	}
	if reason != "" {
		message += ": " + reason
	}
	c.event(api.Event{Kind: kind, Message: message, Fields: map[string]string{"partition": partition}})
	c.alarm(message)
}

// MPSFault implements Hooks.
func (c *Control) MPSFault(partitions []string) {
	message := "a client of MPS has made a GPU fault, which takes every client on that GPU along: the servers of " + strings.Join(partitions, ", ") + " are started again"
	c.event(api.Event{Kind: events.MPSFault, Message: message, Fields: map[string]string{"partitions": strings.Join(partitions, ",")}})
}

// GroupFault implements Hooks.
func (c *Control) GroupFault(f apply.GroupFault) {
	c.metrics.GroupFault(f.Group)
	c.event(api.Event{
		Kind:    events.GroupFaulted,
		Message: fmt.Sprintf("merge group %s: its executions fail on partition %s: %s; its members serve there until it is tried again at %s", f.Group, f.Partition, f.Reason, f.Next.UTC().Format(time.RFC3339)),
		Fields:  map[string]string{"group": f.Group, "partition": f.Partition, "attempts": strconv.Itoa(f.Attempts), "next": f.Next.UTC().Format(time.RFC3339)},
	})
}

// TakenOver implements Hooks.
func (c *Control) TakenOver(t apply.TakeOver) {
	message := fmt.Sprintf("%s of the conch before taken over: %s", count(len(t.Kept), "running server"), some(t.Kept))
	if len(t.Kept) == 0 {
		message = "no running server of the conch before is as the plan has it"
	}
	if len(t.Missing) > 0 {
		message += fmt.Sprintf("; %d started anew: %s", len(t.Missing), some(t.Missing))
	}
	if len(t.Unwanted) > 0 {
		message += fmt.Sprintf("; %d not in the plan: %s", len(t.Unwanted), some(t.Unwanted))
	}
	c.event(api.Event{Kind: events.TakenOver, Message: message, Fields: map[string]string{
		"kept": strconv.Itoa(len(t.Kept)), "started_anew": strconv.Itoa(len(t.Missing)), "unwanted": strconv.Itoa(len(t.Unwanted)),
	}})
}

// some lists names, the first of many.
func some(names []string) string {
	const most = 8
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// PlaceChanged records that a place of a model was ejected, is on probation, or is healthy again, in metrics and events. It does not block.
func (c *Control) PlaceChanged(h router.PlaceHealth) {
	c.showEjected()
	fields := map[string]string{"model": h.Model, "partition": h.Partition}
	switch {
	case h.Ejected:
		c.metrics.PlaceEjected(h.Model, h.Partition)
		fields["until"] = h.Until.UTC().Format(time.RFC3339)
		c.event(api.Event{Kind: events.PlaceEjected, Fields: fields, Message: fmt.Sprintf(
			"model %s is not executed on partition %s before %s: its executions fail there: %s", h.Model, h.Partition, fields["until"], h.Cause)})
	case h.Cause == "":
		c.event(api.Event{Kind: events.PlaceRestored, Fields: fields, Message: fmt.Sprintf("model %s is executed on partition %s again", h.Model, h.Partition)})
	}
	c.alarm("the health of a place has changed")
}

// showEjected sets the metrics of places whose executions fail.
func (c *Control) showEjected() {
	places := map[[2]string]bool{}
	for _, h := range c.requests.Unhealthy() {
		places[[2]string{h.Model, h.Partition}] = h.Ejected
	}
	c.metrics.Ejected(places)
}
