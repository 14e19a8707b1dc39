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

// rollout has the cluster run Conch as the chart says, with images and volumes of the tests, and replaces its replicas.
func (r *rig) rollout() {
	t := r.t
	shared := filepath.Join(r.dir, "chart")
	must(t, os.RemoveAll(shared))
	must(t, os.Mkdir(shared, 0o777))
	must(t, os.Chmod(shared, 0o777)) // Conch's Pod is of another user
	inside, outside := r.mounts(os.Getenv("CONCH_TRITON_HOME"))
	page, err := os.ReadFile("../deploy/testdata/chart-cluster.golden.yaml")
	must(t, err)
	text := string(page)
	for _, change := range [][2]string{
		{"namespace: default", "namespace: " + namespaceOfTests},
		{`"conch:latest"`, ConchImage},
		{"nvcr.io/nvidia/tritonserver:24.10-py3", TritonImage},
		{"          sharing: none\n", "          sharing: none\n          driver: " + Driver + "\n"},
		{"slo: 50ms", "slo: 2s"},
		{"            priorityClassName: serving\n", fmt.Sprintf("            containers: [{name: server, volumeMounts: [%s]}]\n            volumes: [%s]\n", inside, outside)},
		{"            persistentVolumeClaim:\n              claimName: conch-models\n", "            hostPath: {path: " + shared + "}\n"},
		{"          persistentVolumeClaim:\n            claimName: conch-models\n", "          hostPath: {path: " + shared + "}\n"},
		{"          persistentVolumeClaim:\n            claimName: models\n", "          hostPath: {path: " + filepath.Join(r.dir, "models") + "}\n"},
		{`cpu: "1"`, "cpu: 100m"}, // this machine is small
	} {
		if !strings.Contains(text, change[0]) {
			t.Fatalf("the chart has no %q", change[0])
		}
		text = strings.ReplaceAll(text, change[0], change[1])
	}
	var own []string
	for manifest := range strings.SplitSeq(text, "---\n") {
		if !strings.Contains(manifest, "monitoring.coreos.com") {
			own = append(own, manifest)
		}
	}
	r.apply(strings.Join(own, "---\n"))
	rolledOut := func(replicas int) {
		t.Helper()
		begin := time.Now()
		r.eventually("the rollout completes", 3*time.Minute, func() error {
			_, err := r.Kubectl(t.Context(), "rollout", "status", "-n", namespaceOfTests, "deployment/demo-conch", "--timeout=8s")
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
		out, err := r.Kubectl(t.Context(), "get", "endpointslices", "-n", namespaceOfTests, "-l", "kubernetes.io/service-name=demo-conch",
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
	end := r.loadAt(func() string {
		all := *behind.Load()
		return all[int(turn.Add(1))%len(all)] + ":8100"
	})
	r.flows()
	before := r.pods("conch.io/release=demo-conch")
	for _, replicas := range []int{3, 1, 2} {
		r.kubectl("scale", "-n", namespaceOfTests, "deployment/demo-conch", fmt.Sprintf("--replicas=%d", replicas))
		rolledOut(replicas)
		r.flows()
	}
	r.kubectl("rollout", "restart", "-n", namespaceOfTests, "deployment/demo-conch")
	rolledOut(2)
	r.flows()
	r.none(end())
	close(done)
	<-looking
	if now := r.pods("conch.io/release=demo-conch"); fmt.Sprint(now) != fmt.Sprint(before) {
		t.Errorf("the servers were %v and are %v", before, now)
	}
	if allowed := r.kubectl("get", "pdb", "-n", namespaceOfTests, "demo-conch", "-o", "jsonpath={.status.disruptionsAllowed}"); allowed != "1" {
		t.Errorf("%s disruptions of Conch's Pods are allowed", allowed)
	}
	r.kubectl("delete", "-n", namespaceOfTests, "deployment/demo-conch", "configmap/demo-conch", "service/demo-conch", "poddisruptionbudget/demo-conch", "--wait=false")
	r.eventually("the servers go", time.Minute, func() error {
		if left := len(r.pods("conch.io/release=demo-conch")); left > 0 {
			return fmt.Errorf("%d are there", left)
		}
		return nil
	})
}
