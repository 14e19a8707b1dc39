// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"time"
)

// orders gives an operator's commands under load, and leaves everything as it was.
func (r *rig) orders() {
	t := r.t
	before := r.servers()
	end := r.load()
	do := func(command ...string) string {
		t.Helper()
		begin := time.Now()
		out, err := r.owner.tritonctl(command...)
		must(t, err)
		t.Logf("tritonctl %s: %.1f s", strings.Join(command, " "), time.Since(begin).Seconds())
		return out
	}
	says := func(out string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("%q is not in\n%s", w, out)
			}
		}
	}

	// A plan by hand, and back.
	first := strings.TrimSpace(do("plan", "show", "-o", "name"))
	do("policy", "use", "static", "--set", "partitions="+sharesOfTests, "--set", r.placement("two", "one"))
	do("plan", "apply", "--yes")
	r.settles()
	says(do("plan", "rollback", "--dry-run"), "one", "two")
	says(do("plan", "rollback", "--reason", "as it was", "--yes"), "is pinned: no other takes its place until tritonctl plan unpin")
	r.settles()
	file := filepath.Join(t.TempDir(), "plan.json")
	do("plan", "diff", "-o", file)
	if _, err := r.owner.tritonctl("plan", "apply", "-f", file, "--yes"); err == nil || !strings.Contains(err.Error(), "tritonctl plan unpin lets another take its place") {
		t.Errorf("a plan is applied over one that is pinned: %v", err)
	}
	do("plan", "unpin")
	r.eventually("the plan in the file is applied", time.Minute, func() error { // the policy's own may be, between diff and apply
		if _, err := r.owner.tritonctl("plan", "diff", "-o", file); err != nil {
			return err
		}
		_, err := r.owner.tritonctl("plan", "apply", "-f", file, "--pin", "--reason", "by hand", "--yes")
		return err
	})
	r.settles()
	do("plan", "unpin")
	do("policy", "use", "static", "--set", "partitions="+sharesOfTests)
	do("plan", "apply", "--yes")
	r.settles()
	says(do("plan", "history"), "as it was")
	t.Logf("from plan %s to %s", first, strings.TrimSpace(do("plan", "show", "-o", "name")))

	// A node that gets nothing new keeps what it has.
	here := r.servers()
	says(do("node", "cordon", "node-2", "--reason", "a fan"), "cordoned")
	says(do("node", "ls"), "node-1", "node-2", "cordoned", "PARTITIONS")
	r.flows()
	if now := r.servers(); !maps.Equal(now, here) {
		t.Errorf("the Pods were %v and are %v", here, now)
	}
	do("node", "uncordon", "node-2")

	// A partition: its Pod's log, by conch and by the cluster, and another server.
	partition := strings.Fields(do("partition", "ls", "-o", "name"))[0]
	says(do("partition", "get", partition), "ready")
	says(do("logs", partition), "successfully loaded '")
	if last := strings.TrimSpace(do("logs", partition, "--tail", "1")); last == "" || strings.Contains(last, "\n") {
		t.Errorf("the last line of the log: %q", last)
	}
	pod := ""
	for line := range strings.Lines(r.kubectl("get", "pods", "-L", "conch.io/partition", "-l", "conch.io/release=conch", "-n", namespaceOfTests)) {
		if f := strings.Fields(line); f[0] != "NAME" && strings.HasPrefix(f[0], "conch-"+label(partition)+"-") {
			pod = f[0]
		}
	}
	if pod == "" {
		t.Errorf("no Pod of partition %s is shown", partition)
	} else {
		says(r.kubectl("logs", "-n", namespaceOfTests, pod), "successfully loaded '")
	}
	says(do("partition", "restart", partition, "--yes"), "serves again")
	r.settles()
	if _, still := r.servers()[pod]; still {
		t.Errorf("%s serves on after a restart", pod)
	}

	says(do("advise", "--for", "5s", "--seeds", "1"), "req")
	r.none(end())
	if n := len(r.servers()); n != len(before) {
		t.Errorf("there were %d servers and are %d", len(before), n)
	}
}

// label is the value of the label of a partition, as long as that is short: what had to be changed of its id has a digest behind it.
func label(partition string) string {
	return strings.NewReplacer(".", "-", "/", "-").Replace(partition)
}

// placement is a parameter of policy static: the models by node, the first on node-1.
func (r *rig) placement(names ...string) string {
	var places []string
	for n, model := range names {
		var gpus []string
		for g := range r.gpus {
			gpus = append(gpus, fmt.Sprintf("%s.gpu-%d", NodeName(n+1), g))
		}
		places = append(places, model+" = "+strings.Join(gpus, ", "))
	}
	return "placement=" + strings.Join(places, "; ")
}

// budgetDeleted deletes the servers' PodDisruptionBudget, which is made again.
func (r *rig) budgetDeleted() {
	r.t.Helper()
	r.kubectl("delete", "pdb", "-n", namespaceOfTests, "conch-servers")
	r.eventually("the disruption budget is there again", time.Minute, func() error {
		least, err := r.Kubectl(r.t.Context(), "get", "pdb", "-n", namespaceOfTests, "conch-servers", "-o", "jsonpath={.spec.minAvailable}")
		if err == nil && least != fmt.Sprint(r.all()-1) {
			err = fmt.Errorf("it keeps %s", least)
		}
		return err
	})
}
