// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// rig is a cluster with replicas of a conch in front of it, which run beside the cluster as processes of this machine.
type rig struct {
	*Cluster
	t        *testing.T
	dir, bin string
	// replicas are those at which clients ask. Owner is the one of them that leads, or is to.
	replicas []*replica
	owner    *replica
	// sent counts the requests of load, and cut those of the last load that were asked once more. Gap is the longest time of the last load without an answer.
	sent, cut, gap atomic.Int64
	// gpus of each node.
	gpus int
	// swapped: the models were told to change nodes an odd number of times (planMoves).
	swapped bool
}

// sharesOfTests are the partitions of each GPU, for policy static.
const sharesOfTests = "* = 40, 60"

const namespaceOfTests = "serving"

// nodesOfTests is how many nodes the cluster of the tests has.
const nodesOfTests = 2

func newRig(t *testing.T, gpus int) *rig {
	t.Helper()
	bin, triton := os.Getenv("CONCH_CLUSTER_BIN"), os.Getenv("CONCH_TRITON_HOME")
	if bin == "" || os.Geteuid() != 0 {
		t.Skip("make e2e-cluster and make faults-cluster, as root, run this")
	}
	root, err := filepath.Abs("../..")
	must(t, err)
	dir := "/var/lib/conch-cluster-test"
	images, err := Images(filepath.Join(dir, "images"), bin, triton)
	must(t, err)
	must(t, Conch(filepath.Join(dir, "images", "conch.tar"), filepath.Join(root, "bin")))
	images = append(images, filepath.Join(dir, "images", "conch.tar"))
	c, err := New(Options{Dir: dir, Bin: bin, Nodes: nodesOfTests, GPUs: gpus, Images: images, Log: t.Logf})
	must(t, err)
	must(t, c.Up(t.Context()))
	r := &rig{Cluster: c, t: t, dir: dir, bin: filepath.Join(root, "bin"), gpus: gpus}
	r.owner = r.another("conch", "127.0.0.1:18600")
	r.replicas = []*replica{r.owner}
	t.Cleanup(func() {
		for _, one := range r.replicas {
			one.stop(syscall.SIGKILL)
			if t.Failed() {
				text, _ := os.ReadFile(one.logFile())
				t.Logf("the log of %s ends:\n%s", one.name(), text[max(0, len(text)-6000):])
			}
		}
		if err := c.Down(context.Background()); err != nil {
			t.Error(err)
		}
	})
	must(t, os.RemoveAll(r.volume()))
	for _, one := range []*replica{r.owner, r.second(), r.third()} {
		for _, left := range []string{one.state, one.logFile(), one.logFile() + ".before"} {
			must(t, os.RemoveAll(left))
		}
	}
	must(t, os.MkdirAll(r.volume(), 0o755))
	r.kubectl("create", "namespace", namespaceOfTests)
	r.kubectl("create", "configmap", "-n", namespaceOfTests, "conch-release")
	r.giveRole(root)
	_, err = Models(dir, root)
	must(t, err)
	r.owner.writeConfig()
	return r
}

// volume is what conch and every Pod mount.
func (r *rig) volume() string { return filepath.Join(r.dir, "volume") }

// all is how many servers the plan of the tests has: two of each GPU.
func (r *rig) all() int { return 2 * nodesOfTests * r.gpus }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (r *rig) kubectl(args ...string) string {
	r.t.Helper()
	out, err := r.Kubectl(r.t.Context(), args...)
	must(r.t, err)
	return strings.TrimSpace(out)
}

// giveRole makes accounts that may do what the two roles in docs/kubernetes.md say, and nothing else; conch works as the one, and attaches as the other.
func (r *rig) giveRole(root string) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "kubernetes.md"))
	must(r.t, err)
	const begin = "    apiVersion: rbac.authorization.k8s.io/v1\n"
	roles := strings.Split(string(page), "\n\n"+begin)[1:]
	if len(roles) != 2 {
		r.t.Fatalf("docs/kubernetes.md has %d roles, and not 2: conch's, and that of one that attaches", len(roles))
	}
	for _, role := range roles {
		r.apply(printed(begin + role))
	}
	r.kubectl("create", "serviceaccount", "-n", namespaceOfTests, "conch")
	r.kubectl("create", "rolebinding", "-n", namespaceOfTests, "conch", "--role=conch", "--serviceaccount="+namespaceOfTests+":conch")
	r.kubectl("create", "serviceaccount", "-n", namespaceOfTests, "conch-attach")
	r.kubectl("create", "rolebinding", "-n", namespaceOfTests, "conch-attach", "--role=conch-attach", "--serviceaccount="+namespaceOfTests+":conch-attach")
	r.kubectl("create", "clusterrolebinding", "conch", "--clusterrole=conch", "--serviceaccount="+namespaceOfTests+":conch")
	for _, account := range []string{"conch", "conch-attach"} {
		token := r.kubectl("create", "token", "-n", namespaceOfTests, account, "--duration=2h")
		admin, err := os.ReadFile(r.Kubeconfig())
		must(r.t, err)
		head, _, found := strings.Cut(string(admin), "users: ")
		if !found {
			r.t.Fatal("the administrator's kubeconfig has another form")
		}
		must(r.t, os.WriteFile(r.account(account), []byte(head+"users: [{name: admin, user: {token: "+token+"}}]\ncontexts: [{name: conch, context: {cluster: conch, user: admin}}]\ncurrent-context: conch\n"), 0o600))
	}
}

// printed is the block that a page's text begins with.
func printed(page string) string {
	var text strings.Builder
	for line := range strings.Lines(page) {
		if !strings.HasPrefix(line, "    ") {
			break
		}
		text.WriteString(strings.TrimPrefix(line, "    "))
	}
	return text.String()
}

// apply makes objects of the namespace of the tests.
func (r *rig) apply(manifest string) {
	r.t.Helper()
	file := filepath.Join(r.t.TempDir(), "manifest.yaml")
	must(r.t, os.WriteFile(file, []byte(manifest), 0o644))
	r.kubectl("apply", "-n", namespaceOfTests, "-f", file)
}

// account is the kubeconfig with which a conch works.
func (r *rig) account(name string) string { return filepath.Join(r.dir, name+".kubeconfig") }

// mounts of a Pod's container that runs the tests' tritonserver, and the Pod's volumes.
func (r *rig) mounts(triton string, others ...string) (inside, outside string) {
	inside, outside, err := mounts(triton, others...)
	must(r.t, err)
	return inside, outside
}

func (r *rig) eventually(what string, within time.Duration, check func() error) {
	r.t.Helper()
	end := time.Now().Add(within)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			r.t.Fatalf("%s: not within %s: %v", what, within, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}
