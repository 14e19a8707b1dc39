// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"fmt"
	"time"

	"github.com/conch-serving/conch/sidecar/apply/decide"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/dispatch/router"
)

// GroupFault is a merge group whose executions fail on a partition: its members serve until it is tried again.
type GroupFault struct {
	Partition, Group, Reason string
	// Attempts in a row that have failed, and when it is loaded again.
	Attempts int
	Next     time.Time
}

// groupPause is how much longer than for a load it takes until a group is tried again whose executions fail: its members have to be loaded
// for that, and unloaded again.
const groupPause = 10

// GroupChanged takes in the health of a place of a merge group in the route table. It does not wait. A group whose executions fail is taken out
// of the table at once; it is unloaded and, with a growing delay, loaded again. Meanwhile it serves elsewhere, or its members do. If the fault turns
// out to be that of a request, which fails on its member as well, the group is loaded again at once, and what failed is not counted.
func (r *Reconciler) GroupChanged(h router.PlaceHealth) {
	switch {
	case h.Ejected:
		r.box.put(func(l *loop) { l.groupFaulted(h.Partition, h.Model, errors.New(h.Cause)) })
	case h.Excused:
		r.box.put(func(l *loop) { l.groupCleared(h.Partition, h.Model) })
	}
}

func (l *loop) groupFaulted(route, group string, cause error) {
	l.nothingNew = true // however often it is reported of a partition that is out of the table already
	for _, p := range l.last.Routes.Partitions {
		v := l.server(p.Server)
		if p.ID != route || v == nil {
			continue
		}
		loaded, has := v.Loaded[group]
		key := decide.Load{Key: v.Key, Model: group, Revision: loaded.Revision}
		if has && loaded.Answers && len(loaded.Members) > 0 && !l.loads[key].Ran {
			l.nothingNew = false
			l.takeOut(v, key, cause)
		}
		return
	}
}

// takeOut has a merge group that a server has loaded serve no more, until it is tried again.
func (l *loop) takeOut(v *server, key decide.Load, cause error) {
	k := l.kept[key]
	if pause := l.r.o.Backoff.delay(max(1, k.faults)) * groupPause; time.Since(k.loaded) >= max(pause, l.r.o.Backoff.Stable) {
		k.faults = 0 // it served for longer than it was out
	}
	k.faults++
	l.kept[key] = k
	text := cause.Error()
	f := decide.Failure{
		Attempts: k.faults, Ran: true, Next: time.Now().Add(l.r.o.Backoff.delay(k.faults) * groupPause),
		Reason: "its executions fail, so that its members serve: " + text,
	}
	l.loads[key], l.errs[key] = f, &driver.LoadError{Model: key.Model, Err: fmt.Errorf("its executions fail: %w", cause)}
	l.r.o.Logger.Warn("executions of a merge group fail: its members serve", "group", key.Model, "partition", v.Partition, "attempts", f.Attempts, "again", f.Next, "error", cause)
	if l.r.o.OnGroupFault != nil {
		l.r.o.OnGroupFault(GroupFault{Partition: v.Partition, Group: key.Model, Reason: text, Attempts: f.Attempts, Next: f.Next})
	}
}

func (l *loop) groupCleared(route, group string) {
	l.nothingNew = true
	for _, p := range l.last.Routes.Partitions {
		v := l.server(p.Server)
		if p.ID != route || v == nil {
			continue
		}
		for key, f := range l.loads {
			if key.Key != v.Key || key.Model != group || !f.Ran {
				continue
			}
			l.nothingNew = false
			delete(l.loads, key)
			delete(l.errs, key)
			k := l.kept[key]
			k.faults = max(0, k.faults-1)
			l.kept[key] = k
			l.r.o.Logger.Info("a merge group serves again: the request that failed in it fails without it as well", "group", group, "partition", v.Partition)
		}
		return
	}
}
