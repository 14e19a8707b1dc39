// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"time"

	"github.com/conch-serving/conch/internal/store"
)

const (
	// cutOff is for how long a conch that leads reaches no server before it steps aside, for one that may reach them. It is before servers are taken for broken.
	cutOff = time.Minute
	// asidePause is after which time a conch of the release may do so again, at first and at most: where none reaches them, another leader mends nothing.
	asidePause, asideLongest = 4 * time.Minute, time.Hour
)

// stepped is when a conch of the release stepped aside the last time, and for how long none does so again. It is part of the release's state.
type stepped struct {
	At    time.Time     `json:"at"`
	Pause time.Duration `json:"pause"`
}

// Where stepped is kept.
const asideBucket, asideKey = "cluster", "aside"

// Reaching gives this conch what says since when it reaches no server; zero where it does.
func (c *Cluster) Reaching(cutOff func() time.Time) {
	if c != nil {
		c.reaching.Store(&cutOff)
	}
}

// mayStepAside gives the lease to another conch, if this one leads and reaches no server, and others may. Where no other takes it, this one leads on.
func (c *Cluster) mayStepAside() {
	since := c.reaching.Load()
	if since == nil || c.Owns() != nil {
		return
	}
	now, cut := time.Now(), (*since)()
	if cut.IsZero() || now.Sub(cut) < cutOff || now.Before(c.asideFrom) {
		return
	}
	c.asideFrom = now.Add(cutOff / 6) // if the rest fails
	var last stepped
	if text, err := c.Store.Get(asideBucket, asideKey); err != nil || len(text) > 0 && json.Unmarshal(text, &last) != nil {
		last = stepped{}
	}
	next := stepped{At: now, Pause: asidePause}
	switch since := now.Sub(last.At); {
	case since < last.Pause && since > -asideLongest: // or a clock was set
		return
	case since < 2*asideLongest:
		next.Pause = min(max(2*last.Pause, asidePause), asideLongest)
	}
	text, err := json.Marshal(next)
	if err == nil {
		err = c.Store.Write(store.Change{Bucket: asideBucket, Key: asideKey, Value: text})
	}
	if err != nil {
		c.log.Warn("this conch reaches no server, and cannot step aside for another one yet", "error", err)
		return
	}
	c.log.Warn("this conch reaches no server on any node, and gives the lease of the release to another one; where none takes it, this one leads on", "since", cut, "again_after", next.Pause)
	c.lease.Load().StepAside()
}
