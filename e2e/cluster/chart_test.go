// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// helm runs it as administrator, in the namespace of the tests.
func (r *rig) helm(args ...string) string {
	r.t.Helper()
	program := os.Getenv("CONCH_HELM")
	if program == "" {
		r.t.Skip("make e2e-cluster names helm by CONCH_HELM")
	}
	command := exec.CommandContext(r.t.Context(), program, append(args, "--namespace", namespaceOfTests)...)
	command.Env = append(os.Environ(), "KUBECONFIG="+r.Kubeconfig())
	begin := time.Now()
	out, err := command.CombinedOutput()
	if err != nil {
		r.t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	r.t.Logf("helm %s: %.1f s", args[0], time.Since(begin).Seconds())
	return string(out)
}

// inPod has tritonctl in a Pod of Conch ask that replica.
func (r *rig) inPod(pod string, args ...string) (string, error) {
	return r.Kubectl(r.t.Context(), append([]string{"exec", "-n", namespaceOfTests, pod, "-c", "conch", "--", "tritonctl"}, args...)...)
}

// ownerOf is the Pod that the chart's Lease names.
func (r *rig) ownerOf() string {
	r.t.Helper()
	pod, _, _ := strings.Cut(r.kubectl("get", "lease", "-n", namespaceOfTests, chartRelease+"-leader", "-o", "jsonpath={.spec.holderIdentity}"), "/")
	return pod
}

// ownerAndOther are the two Pods of Conch.
func (r *rig) ownerAndOther() (owner, other string) {
	r.t.Helper()
	owner = r.ownerOf()
	all := r.pods("app.kubernetes.io/name=conch")
	for name := range all {
		if name != owner {
			other = name
		}
	}
	if _, is := all[owner]; !is || other == "" {
		r.t.Fatalf("the Lease names %q, and the Pods are %v", owner, all)
	}
	return owner, other
}

// whoOwns looks at what the replicas say of each other.
func (r *rig) whoOwns() {
	r.t.Helper()
	owner, other := r.ownerAndOther()
	for _, of := range []struct{ pod, command, want string }{
		{owner, "gpu ls", "node-1.gpu-0"}, {owner, "node ls", "node-2"}, {owner, "version", "replica " + owner}, {owner, "events", owner + " owns"},
		{other, "version", "replica " + other}, {other, "plan history", ""}, {other, "repo history", ""},
	} {
		out, err := r.inPod(of.pod, strings.Fields(of.command)...)
		if err != nil || !strings.Contains(out, of.want) {
			r.t.Errorf("tritonctl %s in %s: %v\n%s", of.command, of.pod, err, out)
		}
	}
	for _, command := range []string{"gpu ls", "events", "model ls", "plan apply --yes"} {
		if out, err := r.inPod(other, strings.Fields(command)...); err == nil || !strings.Contains(err.Error(), "this replica follows: ask "+owner) {
			r.t.Errorf("tritonctl %s in %s, which follows: %v\n%s", command, other, err, out)
		}
	}
}

// drained drains a node as docs/kubernetes.md says, and gives it back.
func (r *rig) drained(node string) {
	r.t.Helper()
	drain := func() error {
		_, err := r.Kubectl(r.t.Context(), "drain", node, "--ignore-daemonsets", "--delete-emptydir-data")
		return err
	}
	if err := drain(); err == nil || !strings.Contains(err.Error(), "--force") {
		r.t.Errorf("the node is drained though it has servers: %v", err)
	}
	r.eventually("no partition is on "+node, 2*time.Minute, func() error {
		text, err := r.nodes()
		if err != nil {
			return err
		}
		var all []struct {
			Name, State string
			Partitions  int
		}
		if err := json.Unmarshal([]byte(text), &all); err != nil {
			return fmt.Errorf("tritonctl node ls: %w", err)
		}
		for _, n := range all {
			if n.Name == node && n.Partitions == 0 && strings.Contains(n.State, "cordoned") {
				return nil
			}
		}
		return errors.New(text)
	})
	r.eventually(node+" is drained", 2*time.Minute, drain)
	r.kubectl("uncordon", node)
}

// nodes is what the owner says of the nodes: a Conch of the chart, or where there is none this one.
func (r *rig) nodes() (string, error) {
	if len(r.pods("app.kubernetes.io/name=conch")) > 0 {
		return r.inPod(r.ownerOf(), "node", "ls", "-o", "json")
	}
	return r.owner.tritonctl("node", "ls", "-o", "json")
}
