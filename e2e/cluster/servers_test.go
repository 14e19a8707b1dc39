// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"strings"
	"time"
)

// loads counts the models that the servers' own logs say were loaded.
func (r *rig) loads() int {
	r.t.Helper()
	n := 0
	for name := range r.servers() {
		n += strings.Count(r.kubectl("logs", "-n", namespaceOfTests, name), "successfully loaded '")
	}
	return n
}

// servers are the Pods of conch.
func (r *rig) servers() map[string]string {
	r.t.Helper()
	return r.pods("conch.io/release=conch")
}

// pods are those with a label, by name: their unique ids. Those that are going are left out.
func (r *rig) pods(label string) map[string]string {
	r.t.Helper()
	out := r.kubectl("get", "pods", "-n", namespaceOfTests, "-l", label, "-o", `jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.metadata.deletionTimestamp}{"\n"}{end}`)
	all := map[string]string{}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 2 {
			all[f[0]] = f[1]
		}
	}
	return all
}

// renews waits until conch has renewed its lease after a moment.
func (r *rig) renews(after time.Time) {
	r.t.Helper()
	r.eventually("conch renews its lease", time.Minute, func() error {
		text, err := r.Kubectl(r.t.Context(), "get", "lease", "-n", namespaceOfTests, "conch-leader", "-o", "jsonpath={.spec.renewTime}")
		if err != nil {
			return err
		}
		renewed, err := time.Parse(time.RFC3339, text)
		if err == nil && !renewed.After(after) {
			err = fmt.Errorf("the last time was %s", text)
		}
		return err
	})
}

// replan waits until all GPUs may be used, and orders a plan for them: by itself conch moves nothing to a node that is back while that gains less than it disturbs.
func (r *rig) replan() {
	r.t.Helper()
	r.replanBy(r.owner)
}

// replanBy is replan, ordered from another replica.
func (r *rig) replanBy(c *replica) {
	r.t.Helper()
	r.eventually("a plan for all GPUs", time.Minute, func() error {
		slices, err := r.Kubectl(r.t.Context(), "get", "resourceslices", "-o", "name")
		if err != nil {
			return err
		}
		if n := len(strings.Fields(slices)); n != nodesOfTests {
			return fmt.Errorf("%d nodes offer GPUs", n)
		}
		if _, err := c.tritonctl("plan", "apply", "--yes"); err != nil {
			return err
		}
		if n := len(r.servers()); n < r.all() {
			return fmt.Errorf("it has %d servers", n)
		}
		return nil
	})
}

func (r *rig) awaitServers(want int, on string) {
	r.t.Helper()
	r.eventually(fmt.Sprintf("%d servers on %s", want, on), 2*time.Minute, func() error {
		out, err := r.Kubectl(r.t.Context(), "get", "pods", "-n", namespaceOfTests, "-l", "conch.io/release=conch", "-o", `jsonpath={range .items[*]}{.spec.nodeName} {.status.conditions[?(@.type=="Ready")].status} {.metadata.deletionTimestamp}{"\n"}{end}`)
		if err != nil {
			return err
		}
		n := 0
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) == 2 && f[1] == "True" && strings.HasPrefix(f[0], on) {
				n++
			}
		}
		if n != want {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
}
