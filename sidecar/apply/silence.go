// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"strings"
	"time"

	"github.com/conch-serving/conch/sidecar/apply/decide"
)

// silence is that of a server that answers no health probe.
type silence struct {
	since       time.Time // when the first that it did not answer was sent
	sent, until time.Time // when the last one was, and given up
	reason      string
}

// cutOff is how long conch may be cut off from all servers before it takes them for broken.
const cutOff = 2 * time.Minute

// answered takes in that a server has answered a probe that was sent at a time.
func (l *loop) answered(v *server, at time.Time) {
	v.answered, v.silent = at, nil
	delete(l.mutes, v)
	l.judge()
}

// mute takes in that a server has not answered a probe that was sent at a time.
func (l *loop) mute(v *server, at time.Time, reason string) {
	if l.server(v.ID) == nil || v.Broken != "" {
		return
	}
	first := v.silent == nil
	if first {
		v.silent = &silence{since: at}
		l.mutes[v] = true
	}
	v.silent.sent, v.silent.until, v.silent.reason = at, time.Now(), reason
	l.judge()
	if first && v.Broken == "" {
		l.r.o.Logger.Warn("a server does not answer; it is taken for broken once one of another node does", "partition", v.Partition, "reason", reason)
	}
}

// judge takes servers for broken that have not answered a probe during which one of another node did. Where none of any node does, it is rather this conch that is cut off from them, which
// serve others on, or will again: to end them all would not mend that.
func (l *loop) judge() {
	for v := range l.mutes {
		if l.server(v.ID) == nil {
			delete(l.mutes, v)
			continue
		}
		elsewhere, heard := false, false
		for _, o := range l.servers {
			if o.Phase == decide.Up && nodeOf(o.GPU) != nodeOf(v.GPU) {
				elsewhere, heard = true, heard || o.answered.After(v.silent.sent) && !o.answered.After(v.silent.until)
			}
		}
		if !elsewhere || heard || time.Since(v.silent.since) >= cutOff {
			if v.Broken == "" {
				v.Broken = v.silent.reason
			}
			delete(l.mutes, v)
			l.nothingNew = false
		}
	}
}

// nodeOf is the node of a GPU's id.
func nodeOf(gpu string) string {
	node, _, _ := strings.Cut(gpu, "/")
	return node
}
