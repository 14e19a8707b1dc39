// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestConchOnAClusterOfTwoNodes is one walk through the life of a conch on a real cluster: each step begins where the one before has ended.
func TestConchOnAClusterOfTwoNodes(t *testing.T) {
	r := newRig(t, 2)
	step := func(name string, do func()) bool {
		ok := t.Run(name, func(t *testing.T) {
			before := r.t
			r.t = t
			defer func() { r.t = before }()
			do()
		})
		if !ok {
			t.FailNow()
		}
		return ok
	}
	var before map[string]string

	step("the chart's manifests are what the API server takes, and Conch's Pod is restricted", func() {
		page, err := os.ReadFile("../deploy/testdata/chart-cluster.golden.yaml")
		must(r.t, err)
		r.kubectl("label", "namespace", namespaceOfTests, "pod-security.kubernetes.io/warn=restricted")
		for manifest := range strings.SplitSeq(string(page), "---\n") {
			if strings.TrimSpace(manifest) == "" || strings.Contains(manifest, "monitoring.coreos.com") {
				continue
			}
			file := filepath.Join(r.t.TempDir(), "manifest.yaml")
			must(r.t, os.WriteFile(file, []byte(manifest), 0o644))
			r.kubectl("apply", "--dry-run=server", "--warnings-as-errors", "-n", namespaceOfTests, "-f", file)
		}
		r.kubectl("label", "namespace", namespaceOfTests, "pod-security.kubernetes.io/warn-")
	})

	step("shares of 40 and 60 percent of each of four GPUs", func() {
		t := r.t
		t.Logf("serves %.1f s after conch's start", r.owner.start().Seconds())
		r.awaitServers(8, "node-")
		if claims := strings.Fields(r.kubectl("get", "resourceclaims", "-n", namespaceOfTests, "-o", "name")); len(claims) != 4 {
			t.Errorf("claims: %v; want one for each GPU", claims)
		}
		shares := map[string]int{}
		// What a process of a server was really given, by Conch and by the claim.
		for name := range r.servers() {
			env := r.kubectl("exec", "-n", namespaceOfTests, name, "--", "/usr/bin/env")
			share, _, _ := strings.Cut(r.kubectl("get", "pod", "-n", namespaceOfTests, name, "-o", `jsonpath={.metadata.annotations.conch\.io/share}`), "%")
			shares[share]++
			for _, want := range []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=" + share, "CONCH_SHARE=" + share, "CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps"} {
				if !strings.Contains(env, want) {
					t.Errorf("%s has not %s:\n%s", name, want, env)
				}
			}
		}
		if shares["40"] != 4 || shares["60"] != 4 {
			t.Errorf("shares: %v; want 40 and 60 of each GPU", shares)
		}
		before = r.servers()

		// The commands of docs/kubernetes.md that show what there is.
		page, err := os.ReadFile("../../docs/kubernetes.md")
		must(t, err)
		_, columns, found := strings.Cut(string(page), "    kubectl get pods -l conch.io/release=conch -o custom-columns='")
		if !found {
			t.Fatal("docs/kubernetes.md does not say how Pods are shown")
		}
		columns, _, _ = strings.Cut(columns, "'")
		r.eventually("the Pods are shown", time.Minute, func() error {
			table, err := r.Kubectl(t.Context(), "get", "pods", "-n", namespaceOfTests, "-l", "conch.io/release=conch", "-o", "custom-columns="+columns)
			if err == nil && (strings.Count(strings.TrimSpace(table), "\n") != 8 || !strings.Contains(table, "40% of node-1.gpu-0") || !strings.Contains(table, " one") || strings.Contains(table, "<none>")) {
				err = fmt.Errorf("as\n%s", table)
			}
			return err
		})
		for _, of := range []struct{ command, want string }{{"node ls", "node-1"}, {"gpu ls", "node-2.gpu-1"}, {"partition ls", "node-1.gpu-0"}, {"version", ", replica "}, {"events", " owns them"}} {
			if out, err := r.owner.tritonctl(strings.Fields(of.command)...); err != nil || !strings.Contains(out, of.want) {
				t.Errorf("tritonctl %s: %v\n%s", of.command, err, out)
			}
		}
	})

	step("conch is killed, and the next one serves from the same Pods", func() {
		t := r.t
		r.owner.stop(syscall.SIGKILL)
		t.Logf("serves again %.1f s after its start", r.owner.start().Seconds())
		if now := r.servers(); fmt.Sprint(now) != fmt.Sprint(before) {
			t.Errorf("the Pods were %v and are %v", before, now)
		}
	})

	step("conch is stopped and started", func() {
		t := r.t
		r.owner.stop(syscall.SIGTERM)
		t.Logf("serves again %.1f s after its start", r.owner.start().Seconds())
		if now := r.servers(); fmt.Sprint(now) != fmt.Sprint(before) {
			t.Errorf("the Pods were %v and are %v", before, now)
		}
	})

	step("a Pod is deleted by hand", func() {
		r.podDeleted()
		all, err := r.owner.tritonctl("partition", "ls", "-o", "name")
		must(r.t, err)
		_, err = r.owner.tritonctl("partition", "restart", strings.Fields(all)[0], "--yes")
		must(r.t, err)
		r.awaitServers(8, "node-")
		r.eventually("the Pod's events say what conch's do", time.Minute, func() error {
			out, err := r.Kubectl(r.t.Context(), "get", "events", "-n", namespaceOfTests, "--field-selector", "involvedObject.kind=Pod,source=conch", "-o", `jsonpath={range .items[*]}{.reason} {.involvedObject.name}{"\n"}{end}`)
			if err == nil && !strings.Contains(out, "PartitionRestarted conch-") {
				err = fmt.Errorf("they are %q", out)
			}
			return err
		})
	})

	step("the servers' disruption budget is deleted by hand", r.budgetDeleted)

	step("an operator's orders", r.orders)

	step("what this cluster refuses is said", r.refusals)

	step("a kubelet is down: its servers serve on until the plan without that node is there", r.kubeletDown)

	step("the API server is down for longer than any lease", r.apiServerDown)

	step("a node is drained: its models go elsewhere, and come back", func() {
		end := r.load()
		r.drained("node-2")
		r.awaitServers(4, "node-1")
		r.replan()
		r.awaitServers(8, "node-")
		r.none(end())
	})

	step("every replica takes requests: none is lost while replicas come, are killed, end, and lead in turn", r.comeAndGo)

	step("the leader is paused for longer than its lease: a conch of another machine goes on with the plan, and the paused one changes nothing", func() {
		t := r.t
		before, loads := r.servers(), r.loads()
		if loads < 8 {
			t.Errorf("%d servers say that they have loaded %d models", len(before), loads)
		}
		// What a conch knows of before: the plan's places, the plans of before, and the repository's revisions.
		knows := func(c *replica) (all []string) {
			for _, of := range []string{"plan show", "plan history", "repo history"} {
				text, err := c.tritonctl(append(strings.Fields(of), "-o", "name")...)
				must(t, err)
				all = append(all, strings.TrimSpace(text))
			}
			return all
		}
		known := knows(r.owner)
		second := r.second().join()
		defer second.stop(syscall.SIGKILL)
		second.serves()
		end := second.load()
		r.flows()
		r.owner.signal(syscall.SIGSTOP)
		begin := time.Now()
		second.leads()
		r.flows()
		r.none(end())
		t.Logf("the second serves %.1f s after the first was paused", time.Since(begin).Seconds())
		if now := r.servers(); fmt.Sprint(now) != fmt.Sprint(before) {
			t.Errorf("the Pods were %v and are %v", before, now)
		}
		if now := r.loads(); now != loads {
			t.Errorf("%d models were loaded for the second conch", now-loads)
		}
		for i, now := range knows(second) {
			if known[i] == "" || !strings.HasSuffix(now, known[i]) {
				t.Errorf("the first knew %q, and the second knows %q", known[i], now)
			}
		}
		r.kubectl("delete", "pod", "-n", namespaceOfTests, slices.Sorted(maps.Keys(before))[0], "--wait=false")
		r.awaitServers(8, "node-")
		after := r.servers()

		r.owner.signal(syscall.SIGCONT)
		r.owner.yields()
		// Its process has ended, so that no request of it is to come.
		if now := r.servers(); fmt.Sprint(now) != fmt.Sprint(after) {
			t.Errorf("the Pods were %v and are %v", after, now)
		}
		r.replanBy(second)
		known = knows(second)
		second.stop(syscall.SIGTERM)
		t.Logf("the first serves again %.1f s after its start", r.owner.start().Seconds())
		for i, now := range knows(r.owner) {
			if !strings.HasSuffix(now, known[i]) {
				t.Errorf("the second knew %q, and the first knows %q", known[i], now)
			}
		}
	})

	step("the release is deleted, and its servers with it", func() {
		r.owner.stop(syscall.SIGTERM)
		if len(r.servers()) != 8 {
			r.t.Error("servers outlive conch")
		}
		r.kubectl("delete", "configmap", "-n", namespaceOfTests, "conch-release")
		r.eventually("the servers go", time.Minute, func() error {
			if left := r.servers(); len(left) > 0 {
				return errors.New(strings.Join(slices.Sorted(maps.Keys(left)), ", "))
			}
			return nil
		})
	})

	step("servers that cannot start say why", r.starts)

	step("Conch is installed by its chart: no request is lost while replicas are scaled, replaced, upgraded, killed and drained, and nothing but the Lease outlives it", r.rollout)

	step("Tritons that run as a Deployment: conch follows them, and loses no request while they are scaled, restarted and deleted", r.deployment)
}
