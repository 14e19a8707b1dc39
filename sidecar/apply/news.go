// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/conch-serving/conch/sidecar/apply/decide"
	"github.com/conch-serving/conch/sidecar/apply/driver"
)

// died takes out a server that has ended, by whatever hand.
func (l *loop) died(v *server) {
	if l.server(v.ID) == nil {
		return
	}
	l.remove(v)
	if delete(l.mutes, v); v.Broken == "" && len(l.mutes) == 0 {
		l.r.cut.Store(nil) // those that did not answer have ended by themselves: conch is not cut off from them
	}
	for slot, t := range l.under {
		if slot.Server == v.ID && t.Kind != decide.LoadIt {
			t.cancel() // a load finds out by itself whether its server lives
		}
	}
	if l.desired == nil {
		return
	}
	if !l.wants(v) {
		l.sweep(v.process.Spec())
		return
	}
	reason := v.process.Death()
	if v.Broken != "" {
		reason = v.Broken
	}
	l.restarts[v.Partition]++
	l.reasons[v.Partition] = reason
	f := l.starts[v.Key]
	if begin := v.process.Begin(); !begin.IsZero() && time.Since(begin) >= l.r.o.Backoff.Stable {
		f = decide.Failure{}
	}
	f.Attempts++
	f.Reason = reason
	f.Next = time.Now()
	if f.Attempts > 1 { // the first is tried again at once
		f.Next = f.Next.Add(l.r.o.Backoff.delay(f.Attempts - 1))
	}
	if l.r.o.Driver.Lasting() {
		f.Next = time.Now() // its operator starts it
	}
	l.starts[v.Key] = f
	l.r.o.Logger.Warn("the partition's server died", "partition", v.Partition, "reason", reason)
	l.tell(v, false, reason)
}

// tell tells OnPartition of a wanted partition.
func (l *loop) tell(v *server, up bool, reason string) {
	if l.r.o.OnPartition == nil || !l.wants(v) {
		return
	}
	e := driver.Event{Partition: v.Partition, Up: up, Reason: reason, Restarts: l.restarts[v.Partition]}
	if v.process != nil {
		e.Endpoint = v.process.Endpoint()
	}
	if up {
		e.Missing = l.missing(v.Key)
	}
	l.r.o.OnPartition(e)
}

// looked takes the models that a server reports as loaded. For a model that conch has
// changed since the read began, the report does not count.
func (l *loop) looked(v *server, look uint64, found map[string]string) {
	if l.server(v.ID) == nil {
		return
	}
	first, awaited := !v.Known, v.looked <= v.stale && look > v.stale
	v.Known, v.looked = true, look
	l.nothingNew = !first && !awaited
	stale := func(model string) bool {
		t := l.under[decide.Slot{Key: v.Key, Server: v.ID, Model: model}]
		return v.touched[model] >= look || t != nil && t.Kind != decide.WarmUp
	}
	for model := range v.Loaded {
		if _, has := found[model]; !has && !stale(model) {
			l.lost(v, model)
			l.nothingNew = false
		}
	}
	for model, revision := range found {
		loaded, has := v.Loaded[model]
		if stale(model) || has && loaded.Revision == revision {
			continue
		}
		l.nothingNew = false
		// It serves, or served the conch before this one.
		v.Loaded[model] = decide.Loaded{Revision: revision, Answers: true, Tried: true, Memory: l.want.Models[model].Memory, Calls: l.calls(model, revision), Members: l.members(model, revision)}
		delete(v.Hung, model)
	}
	if first && !v.reported {
		v.reported = true
		if l.restarts[v.Partition] > 0 {
			l.tell(v, true, l.reasons[v.Partition])
		}
	}
}

// unseen takes in that a look failed. One may be that a model was unloaded meanwhile; a
// server that does not say twice what it has is not waited for.
func (l *loop) unseen(v *server, look uint64) {
	awaited := v.looked <= v.stale && look > v.stale+1
	if awaited {
		v.looked = look
	}
	l.nothingNew = !awaited
}

// broken notes that the server of a partition has to be killed.
func (l *loop) broken(partition, reason string) error {
	v, err := l.serving(partition)
	switch {
	case err != nil:
		return err
	case l.r.o.Driver.Lasting():
		return v.process.Kill(l.r.life)
	case v.Broken == "":
		v.Broken = reason
	}
	return nil
}

// anew notes that another process is to take the place of a partition's server.
func (l *loop) anew(partition, reason string) error {
	v, err := l.serving(partition)
	switch {
	case err != nil:
		return err
	case l.r.o.Driver.Lasting():
		return fmt.Errorf("partition %s: %w", partition, ErrNotOurs)
	case v.Anew == "":
		v.Anew = reason
	}
	return nil
}

// serving is the wanted server of a partition that is up.
func (l *loop) serving(partition string) (*server, error) {
	for _, v := range l.servers {
		if v.Partition == partition && v.Phase == decide.Up && l.wants(v) {
			return v, nil
		}
	}
	return nil, errors.New("no server of partition " + partition + " is up: another is started as soon as it can be (tritonctl partition ls)")
}

// retry forgets failures.
func (l *loop) retry(models []string) {
	for k := range l.loads {
		if len(models) == 0 || slices.Contains(models, k.Model) {
			delete(l.loads, k)
			delete(l.errs, k)
			delete(l.kept, k)
		}
	}
	if len(models) == 0 {
		clear(l.starts)
	}
}
