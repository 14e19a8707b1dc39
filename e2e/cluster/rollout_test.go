// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

// chartRelease is the full name of a release "demo" of the chart.
const chartRelease = "demo-conch"

// rollout installs Conch by its chart, replaces its replicas, and uninstalls it.
func (r *rig) rollout() {
	t := r.t
	root, err := filepath.Abs("../..")
	must(t, err)
	values, err := ChartValues(r.dir, root, os.Getenv("CONCH_TRITON_HOME"))
	must(t, err)
	r.helm("install", "demo", filepath.Join(root, "deploy/helm/conch"), "--values", values, "--set", "config.defaults.slo=2s", "--wait", "--timeout", "3m")
	rolledOut := func(replicas int) {
		t.Helper()
		begin := time.Now()
		r.eventually("the rollout completes", 3*time.Minute, func() error {
			_, err := r.Kubectl(t.Context(), "rollout", "status", "-n", namespaceOfTests, "deployment/"+chartRelease, "--timeout=8s")
			return err
		})
		t.Logf("rolled out after %.1f s", time.Since(begin).Seconds())
		r.eventually("the replicas before have ended", 2*time.Minute, func() error {
			all, err := r.Kubectl(t.Context(), "get", "pods", "-n", namespaceOfTests, "-l", "app.kubernetes.io/name=conch", "-o", "name")
			if n := len(strings.Fields(all)); err == nil && n != replicas {
				err = fmt.Errorf("%d are there", n)
			}
			return err
		})
	}
	rolledOut(2)

	// The Pods behind the Service, as the cluster says them: there is no kube-proxy here.
	var behind atomic.Pointer[[]string]
	look := func() error {
		out, err := r.Kubectl(t.Context(), "get", "endpointslices", "-n", namespaceOfTests, "-l", "kubernetes.io/service-name="+chartRelease,
			"-o", `jsonpath={range .items[*].endpoints[?(@.conditions.ready==true)]}{.addresses[0]} {end}`)
		if all := strings.Fields(out); err == nil && len(all) > 0 {
			behind.Store(&all)
		}
		return err
	}
	must(t, look())
	if n := len(*behind.Load()); n != 2 {
		t.Fatalf("%d replicas are behind the Service", n)
	}
	done, looking := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(looking)
		for {
			select {
			case <-done:
				return
			case <-time.After(300 * time.Millisecond):
				_ = look() // the next look sees it
			}
		}
	}()
	var turn atomic.Int64
	byTurns := func() string {
		all := *behind.Load()
		return all[int(turn.Add(1))%len(all)] + ":8100"
	}
	end := r.loadAt(byTurns)
	r.flows()
	before := r.pods("conch.io/release=" + chartRelease)
	for _, replicas := range []int{3, 1, 2} {
		r.kubectl("scale", "-n", namespaceOfTests, "deployment/"+chartRelease, fmt.Sprintf("--replicas=%d", replicas))
		rolledOut(replicas)
		r.flows()
	}
	r.kubectl("rollout", "restart", "-n", namespaceOfTests, "deployment/"+chartRelease)
	rolledOut(2)
	r.flows()
	r.helm("upgrade", "demo", filepath.Join(root, "deploy/helm/conch"), "--reuse-values", "--set", "config.defaults.slo=1s", "--wait", "--timeout", "3m")
	rolledOut(2)
	r.flows()
	r.helm("rollback", "demo", "1", "--wait", "--timeout", "3m")
	rolledOut(2)
	r.flows()
	r.none(end())
	if now := r.pods("conch.io/release=" + chartRelease); fmt.Sprint(now) != fmt.Sprint(before) {
		t.Errorf("the servers were %v and are %v", before, now)
	}
	if allowed := r.kubectl("get", "pdb", "-n", namespaceOfTests, chartRelease, "-o", "jsonpath={.status.disruptionsAllowed}"); allowed != "1" {
		t.Errorf("%s disruptions of Conch's Pods are allowed", allowed)
	}
	r.whoOwns()

	// Its clients ask the other replica.
	owner, other := r.ownerAndOther()
	address := r.kubectl("get", "pod", "-n", namespaceOfTests, other, "-o", "jsonpath={.status.podIP}") + ":8100"
	end = r.loadAt(func() string { return address })
	r.flows()
	begin := time.Now()
	r.kubectl("delete", "pod", "-n", namespaceOfTests, owner, "--grace-period=0", "--force", "--wait=false")
	next := ""
	r.eventually("another replica owns", time.Minute, func() error {
		if next = r.ownerOf(); next == owner || next == "" {
			return fmt.Errorf("%q does", next)
		}
		return nil
	})
	t.Logf("%s owns %.1f s after the owner, %s, was killed", next, time.Since(begin).Seconds(), owner)
	r.flows()
	rolledOut(2)
	r.none(end())

	end = r.loadAt(byTurns)
	r.flows()
	r.drained(r.kubectl("get", "pod", "-n", namespaceOfTests, r.ownerOf(), "-o", "jsonpath={.spec.nodeName}"))
	rolledOut(2)
	r.flows()
	r.none(end())
	close(done)
	<-looking

	r.helm("uninstall", "demo", "--wait")
	r.eventually("nothing but the Lease is left", 2*time.Minute, func() error {
		kinds := "pods,configmaps,resourceclaims,poddisruptionbudgets,leases,services,endpointslices,serviceaccounts,roles,rolebindings,networkpolicies,deployments"
		left, err := r.Kubectl(t.Context(), "get", kinds, "-n", namespaceOfTests, "-o", "name")
		if err != nil {
			return err
		}
		var ours []string
		for _, name := range strings.Fields(left) {
			if strings.Contains(name, "/demo") && name != "lease.coordination.k8s.io/"+chartRelease+"-leader" {
				ours = append(ours, name)
			}
		}
		if len(ours) > 0 {
			return fmt.Errorf("%v are there", ours)
		}
		return nil
	})
}
