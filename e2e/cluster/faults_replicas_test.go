// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"time"
)

// outage of the API server: longer than a lease, and than the longest pause after which a watch is begun anew.
const outage = time.Minute

// pause of a leader: longer than its lease, and shorter than what a client waits.
const pause = 10 * time.Second

// apiServerDown stops it for a while under load, which goes on until the cluster has heard of every node and Pod again.
func (r *rig) apiServerDown() {
	r.t.Helper()
	r.unmoved(func() {
		must(r.t, r.StopAPIServer())
		time.Sleep(outage) // of this length: it is the fault
		must(r.t, r.StartAPIServer(r.t.Context()))
		back := time.Now()
		r.renews(back)
		r.eventually("the cluster has heard of the nodes", 3*time.Minute, func() error {
			nodes, err := r.Kubectl(r.t.Context(), "get", "nodes", "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.conditions[?(@.type=="Ready")]}{"\n"}{end}`)
			if err != nil {
				return err
			}
			// One that is called ready may be so since before the outage.
			heard := 0
			for line := range strings.Lines(nodes) {
				name, text, _ := strings.Cut(line, " ")
				var ready struct {
					Status            string
					LastHeartbeatTime time.Time
				}
				if err := json.Unmarshal([]byte(text), &ready); err != nil {
					return fmt.Errorf("node %s: %w", name, err)
				}
				if ready.Status == "True" && ready.LastHeartbeatTime.After(back) {
					heard++
				}
			}
			if heard < nodesOfTests {
				return fmt.Errorf("of %d", heard)
			}
			return nil
		})
		r.t.Logf("the last node is ready %.0f s after the outage", time.Since(back).Seconds())
		r.awaitServers(r.all(), "node-")
	})
}

// unmoved does something to replicas under load. No request fails, and the Pods are the same afterwards.
func (r *rig) unmoved(do func()) {
	r.t.Helper()
	before := r.servers()
	end := r.load()
	r.flows()
	do()
	r.flows()
	sent, failed := end()
	r.measured(sent, failed)
	r.none(sent, failed)
	if now := r.servers(); !maps.Equal(now, before) {
		r.t.Errorf("the Pods were %v and are %v", before, now)
	}
}

// leaderKilled kills the conch that leads; another one goes on from the same Pods, and the one that was killed is started again.
func (r *rig) leaderKilled() {
	r.t.Helper()
	r.unmoved(func() {
		killed := r.owner
		killed.stop(syscall.SIGKILL)
		r.awaitOwner("the one before was killed", r.others())
		killed.again()
	})
}

// leaderPaused pauses the conch that leads until another one does, and for longer than its lease. It ends when it goes on.
func (r *rig) leaderPaused() {
	r.t.Helper()
	r.unmoved(func() {
		paused := r.owner
		paused.signal(syscall.SIGSTOP)
		rest := time.After(pause)
		r.awaitOwner("the one before was paused", r.others())
		r.flows()
		<-rest
		paused.signal(syscall.SIGCONT)
		paused.yields()
		paused.again()
	})
}

// followerKilled kills a conch that hands on, and starts it again.
func (r *rig) followerKilled() {
	r.t.Helper()
	r.unmoved(func() {
		killed := r.others()[0]
		killed.stop(syscall.SIGKILL)
		r.flows()
		killed.again()
	})
}

// allButOneKilled kills the conch that leads and all others but one, which leads then.
func (r *rig) allButOneKilled() {
	r.t.Helper()
	r.unmoved(func() {
		all := r.others()
		last := all[len(all)-1]
		for _, c := range r.replicas {
			if c != last {
				c.signal(syscall.SIGKILL)
			}
		}
		r.awaitOwner("all others were killed", []*replica{last})
		r.flows()
		r.revive()
	})
}

// replaced ends every conch and starts it again, one after the other.
func (r *rig) replaced() {
	r.t.Helper()
	r.unmoved(func() {
		for _, c := range r.replicas {
			r.leave([]*replica{c})
			r.flows()
			c.again()
		}
		r.awaitOwner("every replica was replaced", r.replicas)
	})
}

// scaled ends all replicas but the one that leads, starts them again, and ends all but one of those that have not led. All are there again afterwards.
func (r *rig) scaled() {
	r.t.Helper()
	r.unmoved(func() {
		others := r.others()
		r.leave(others)
		r.flows()
		for _, c := range others {
			c.again()
		}
		r.flows()
		last := others[len(others)-1]
		r.leave(slices.DeleteFunc(slices.Clone(r.replicas), func(c *replica) bool { return c == last }))
		r.awaitOwner("it was scaled to one replica", []*replica{last})
		r.flows()
		r.revive()
	})
}

// leave ends replicas at once, as a cluster ends their Pods: first clients are sent elsewhere.
func (r *rig) leave(all []*replica) {
	r.t.Helper()
	for _, c := range all {
		c.away.Store(true)
	}
	r.flows()
	for _, c := range all {
		c.signal(syscall.SIGTERM)
	}
	for _, c := range all {
		c.ends() // a second signal would kill it
	}
}

// others are the replicas that do not lead.
func (r *rig) others() []*replica {
	return slices.DeleteFunc(slices.Clone(r.replicas), func(c *replica) bool { return c == r.owner })
}

// awaitOwner waits until one of some replicas leads, which orders go to from now on. It says how long that took after a fault.
func (r *rig) awaitOwner(fault string, among []*replica) {
	r.t.Helper()
	begin := time.Now()
	r.eventually("another replica leads", time.Minute, func() error {
		var errs []error
		for _, c := range among {
			err := c.asOwner()
			if err == nil {
				r.owner = c
				return nil
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	r.owner.ready()
	r.t.Logf("%s leads %.1f s after %s", r.owner.name(), time.Since(begin).Seconds(), fault)
}

// revive starts the replicas that have ended again.
func (r *rig) revive() {
	r.t.Helper()
	for _, c := range r.replicas {
		if c.hasEnded() {
			c.again()
		}
	}
}
