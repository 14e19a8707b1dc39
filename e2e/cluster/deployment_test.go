// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// deployment has a conch follow Tritons that run as a Deployment.
func (r *rig) deployment() {
	t := r.t
	inside, outside := r.mounts(os.Getenv("CONCH_TRITON_HOME"), filepath.Join(r.dir, "models"))
	r.apply(fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: triton}
spec:
  replicas: 2
  selector: {matchLabels: {app: triton}}
  strategy: {rollingUpdate: {maxUnavailable: 0}}
  template:
    metadata: {labels: {app: triton}}
    spec:
      containers:
        - name: server
          image: %s
          imagePullPolicy: Never
          command: [tritonserver, --model-repository=%s]
          env: [{name: CONCH_EMULATION_DIR, value: /emulation}]
          readinessProbe: {tcpSocket: {port: 8001}, periodSeconds: 1}
          lifecycle: {preStop: {sleep: {seconds: 5}}}
          volumeMounts: [{name: emulation, mountPath: /emulation}, %s]
      volumes: [{name: emulation, emptyDir: {}}, %s]
---
apiVersion: v1
kind: Service
metadata: {name: triton, labels: {team: vision}}
spec:
  selector: {app: triton}
  ports: [{name: grpc, port: 8001}, {name: http, port: 8000}, {name: metrics, port: 8002}]
`, TritonImage, filepath.Join(r.dir, "models"), inside, outside))
	a := r.another("attach", "127.0.0.1:18800")
	must(t, os.RemoveAll(a.state))
	must(t, os.WriteFile(a.config(), fmt.Appendf(nil, `
state: %s
listen: {grpc: "%s01", http: "%s", metrics: "%s02", admin: "unix://%s/admin.sock"}
driver: {kind: attach, service: {selector: team=vision, namespace: %s, kubeconfig: %s}}
`, a.state, a.port(), a.address, a.port(), a.state, namespaceOfTests, r.account("conch-attach")), 0o644))
	t.Logf("serves %.1f s after conch's start", a.start().Seconds())
	defer a.stop(syscall.SIGKILL)
	follows := func(want int) {
		t.Helper()
		r.eventually(fmt.Sprintf("conch follows %d Pods", want), time.Minute, func() error {
			pods := slices.Collect(maps.Keys(r.pods("app=triton")))
			known, err := a.tritonctl("gpu", "ls", "-o", "name")
			if err == nil && (len(pods) != want || fmt.Sprint(slices.Sorted(slices.Values(strings.Fields(known)))) != fmt.Sprint(slices.Sorted(slices.Values(pods)))) {
				err = fmt.Errorf("it follows %v of %v", strings.Fields(known), pods)
			}
			return err
		})
	}
	rolledOut := func() {
		t.Helper()
		r.eventually("the Pods of the Deployment are there", 2*time.Minute, func() error {
			_, err := r.Kubectl(t.Context(), "rollout", "status", "-n", namespaceOfTests, "deployment/triton", "--timeout=3s")
			return err
		})
	}
	rolledOut()
	follows(2)
	end := a.load()
	r.kubectl("scale", "-n", namespaceOfTests, "deployment/triton", "--replicas=4")
	follows(4)
	r.kubectl("rollout", "restart", "-n", namespaceOfTests, "deployment/triton")
	rolledOut()
	follows(4)
	r.kubectl("delete", "pod", "-n", namespaceOfTests, slices.Sorted(maps.Keys(r.pods("app=triton")))[0], "--wait=false")
	follows(4)
	r.kubectl("scale", "-n", namespaceOfTests, "deployment/triton", "--replicas=1")
	follows(1)
	r.eventually("the Pods that were deleted have ended", time.Minute, func() error {
		all, err := r.Kubectl(t.Context(), "get", "pods", "-n", namespaceOfTests, "-l", "app=triton", "-o", "name")
		if n := len(strings.Fields(all)); err == nil && n != 1 {
			err = fmt.Errorf("%d are there", n)
		}
		return err
	})
	r.none(end())
	a.stop(syscall.SIGTERM)
	r.kubectl("delete", "-n", namespaceOfTests, "deployment/triton", "service/triton", "--wait=false")
}
