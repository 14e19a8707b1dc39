// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"
)

// replicas has several conchs of one release come and go. Each is a process of this machine, beside the cluster.
func (r *rig) replicas() {
	t := r.t
	before, loads := r.servers(), r.loads()
	launch := func(a *rig) *rig {
		t.Helper()
		a.writeConfig(os.Getenv("CONCH_TRITON_HOME"))
		a.launch()
		a.ready()
		return a
	}
	second := launch(r.second())
	defer second.stop(syscall.SIGKILL)
	second.serves()
	second.metric("conch_handed_on_requests_total{outcome=\"answered\",protocol=\"http\"}")
	if now := r.servers(); fmt.Sprint(now) != fmt.Sprint(before) {
		t.Errorf("the Pods were %v and are %v", before, now)
	}
	second.follows(r)

	t.Log("the follower is killed")
	end := r.load()
	r.flows()
	second.stop(syscall.SIGKILL)
	launch(second)
	r.flows()
	r.none(end())

	t.Log("the leader is killed")
	end = second.load()
	second.flows()
	r.stop(syscall.SIGKILL)
	begin := time.Now()
	second.leads()
	t.Logf("the second leads and serves %.1f s after the first was killed", time.Since(begin).Seconds())
	second.flows()
	second.none(end())

	t.Log("from one replica to three, and back to one, which has not led yet")
	end = second.load()
	second.flows()
	launch(r)
	third := launch(r.third())
	defer third.stop(syscall.SIGKILL)
	third.serves()
	second.flows()
	second.none(end())
	end = third.load()
	third.flows()
	second.stop(syscall.SIGTERM)
	r.stop(syscall.SIGTERM)
	third.leads()
	third.flows()
	third.none(end())

	t.Log("every replica is replaced in turn, as by a rollout")
	launch(r)
	end = r.load()
	r.flows()
	third.stop(syscall.SIGTERM)
	r.leads()
	r.flows()
	r.none(end())

	if now := r.servers(); fmt.Sprint(now) != fmt.Sprint(before) {
		t.Errorf("the Pods were %v and are %v", before, now)
	}
	if now := r.loads(); now != loads {
		t.Errorf("%d models were loaded while replicas came and went", now-loads)
	}
}

// ready waits until conch's readiness probe says that it takes requests.
func (r *rig) ready() {
	r.t.Helper()
	r.eventually("conch is ready", time.Minute, func() error {
		_, err := r.scrape("/readyz")
		return err
	})
}

// leads waits until conch itself executes: then it answers operators.
func (r *rig) leads() {
	r.t.Helper()
	r.eventually("conch leads", time.Minute, func() error {
		_, err := r.tritonctl("plan", "show", "-o", "name")
		return err
	})
	r.ready()
}

// follows checks that a conch answers what it has read of the release's state, and names the owner for the rest.
func (r *rig) follows(owner *rig) {
	r.t.Helper()
	want, err := owner.tritonctl("plan", "history", "-o", "name")
	must(r.t, err)
	r.eventually("the follower has the history", 20*time.Second, func() error {
		got, err := r.tritonctl("plan", "history", "-o", "name")
		if err == nil && got != want {
			err = fmt.Errorf("%q, and not %q", got, want)
		}
		return err
	})
	out, err := r.tritonctl("plan", "apply", "--yes")
	if err == nil || !strings.Contains(fmt.Sprint(out, err), "this replica follows: ask ") {
		r.t.Errorf("the follower takes orders: %s %v", out, err)
	}
}

// metric waits until a series of conch's is above 0.
func (r *rig) metric(series string) {
	r.t.Helper()
	r.eventually(series, 10*time.Second, func() error {
		page, err := r.scrape("/metrics")
		if err == nil && (!strings.Contains(page, series+" ") || strings.Contains(page, series+" 0\n")) {
			err = errors.New(page)
		}
		return err
	})
}

// scrape asks conch's metrics door.
func (r *rig) scrape(path string) (string, error) {
	answer, err := http.Get("http://" + r.port() + "02" + path)
	if err != nil {
		return "", err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("HTTP %d: %s", answer.StatusCode, text)
	}
	return string(text), err
}
