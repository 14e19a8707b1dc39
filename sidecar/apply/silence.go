// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"time"

	"github.com/conch-serving/conch/sidecar/apply/decide"
)

// silence is that of a server that answers no health probe.
type silence struct {
	since       time.Time // when the first that it did not answer was sent
	sent, until time.Time // when the last one was, and given up
	reason      string
}

const (
	// cutOff is how long conch may be cut off from all servers before it takes them for broken.
	cutOff = 2 * time.Minute
	// returns is how long some of them may take to answer again after the first: connections are tried again after pauses that have grown.
	returns = 30 * time.Second
)

// answered takes in that a server has answered a probe that was sent at a time.
func (l *loop) answered(v *server, at time.Time) {
	v.answered, v.silent = at, nil
	l.r.cut.Store(nil)
	delete(l.mutes, v)
	for m := range l.mutes {
		if decide.NodeOf(m.GPU) != decide.NodeOf(v.GPU) && m.silent.during(at) {
			l.takeForBroken(m)
		}
	}
}

// mute takes in that a server has not answered a probe that was sent at a time. It is broken if one of another node has answered one meanwhile. Where none of any node does, it is
// rather this conch that is cut off from them, which serve others on, or will again: to end them all would not mend that.
func (l *loop) mute(v *server, at time.Time, reason string) {
	if l.server(v.ID) == nil || v.Broken != "" {
		delete(l.mutes, v)
		return
	}
	first := v.silent == nil
	if first {
		v.silent = &silence{since: at}
	}
	l.mutes[v] = true
	v.silent.sent, v.silent.until, v.silent.reason = at, time.Now(), reason
	elsewhere, heard, all := false, false, true
	for _, o := range l.servers {
		if o.Phase != decide.Up || o.Broken != "" {
			continue
		}
		all = all && l.mutes[o]
		if decide.NodeOf(o.GPU) != decide.NodeOf(v.GPU) {
			elsewhere, heard = true, heard || v.silent.during(o.answered)
		}
	}
	if all && elsewhere && !heard && l.r.cut.Load() == nil {
		now := time.Now()
		l.r.cut.Store(&now)
	}
	switch {
	case !elsewhere || time.Since(v.silent.since) >= cutOff:
		l.cutSince = time.Time{}
		l.takeForBroken(v)
	case heard:
		l.takeForBroken(v)
	case all:
		l.cutSince = time.Now()
	}
	if first && v.Broken == "" {
		l.r.o.Logger.Warn("a server does not answer; it is taken for broken once one of another node does", "partition", v.Partition, "reason", reason)
	}
}

// CutOff is since when no server of any node has answered this conch, those of before and those that were started meanwhile; zero where one does, all have ended by
// themselves, or none is wanted. It is not known where all are on one node.
func (r *Reconciler) CutOff() time.Time {
	if since := r.cut.Load(); since != nil {
		return *since
	}
	return time.Time{}
}

// during reports whether a time is in the last probe that was not answered.
func (s *silence) during(at time.Time) bool { return at.After(s.sent) && !at.After(s.until) }

// takeForBroken has a server ended that does not answer, unless conch was cut off from all a moment ago.
func (l *loop) takeForBroken(v *server) {
	if !l.cutSince.IsZero() && time.Since(l.cutSince) < returns {
		return
	}
	v.Broken = v.silent.reason
	delete(l.mutes, v)
	l.nothingNew = false
}
