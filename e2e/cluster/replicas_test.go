// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"syscall"
	"time"
)

// comeAndGo has several conchs of one release come and go. Each is a process of this machine, beside the cluster.
func (r *rig) comeAndGo() {
	t := r.t
	before, loads := r.servers(), r.loads()
	first, second := r.owner, r.second().join()
	defer second.stop(syscall.SIGKILL)
	second.serves()
	second.metric("conch_handed_on_requests_total{outcome=\"answered\",protocol=\"http\"}")
	if now := r.servers(); fmt.Sprint(now) != fmt.Sprint(before) {
		t.Errorf("the Pods were %v and are %v", before, now)
	}
	second.follows(first)

	t.Log("the follower is killed")
	end := first.load()
	r.flows()
	second.stop(syscall.SIGKILL)
	second.join()
	r.flows()
	r.none(end())

	t.Log("the leader is killed")
	end = second.load()
	r.flows()
	first.stop(syscall.SIGKILL)
	begin := time.Now()
	second.leads()
	t.Logf("the second leads and serves %.1f s after the first was killed", time.Since(begin).Seconds())
	r.flows()
	r.none(end())

	t.Log("from one replica to three, and back to one, which has not led yet")
	end = second.load()
	r.flows()
	first.join()
	third := r.third().join()
	defer third.stop(syscall.SIGKILL)
	third.serves()
	r.flows()
	r.none(end())
	end = third.load()
	r.flows()
	second.stop(syscall.SIGTERM)
	first.stop(syscall.SIGTERM)
	third.leads()
	r.flows()
	r.none(end())

	t.Log("every replica is replaced in turn, as by a rollout")
	first.join()
	end = first.load()
	r.flows()
	third.stop(syscall.SIGTERM)
	first.leads()
	r.flows()
	r.none(end())

	if now := r.servers(); fmt.Sprint(now) != fmt.Sprint(before) {
		t.Errorf("the Pods were %v and are %v", before, now)
	}
	if now := r.loads(); now != loads {
		t.Errorf("%d models were loaded while replicas came and went", now-loads)
	}
}
