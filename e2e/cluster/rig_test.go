// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// rig is a cluster with a conch in front of it, which runs beside the cluster as a process of this machine.
type rig struct {
	*Cluster
	t                        *testing.T
	dir, state, bin, address string
	conch                    *exec.Cmd
	log                      *os.File
	// sent counts the requests of load.
	sent atomic.Int64
	// ended is closed once conch's process has.
	ended chan struct{}
	// peer is another conch of the release, and clients are the addresses at which clients ask, in this order; peer is nil where there is none.
	peer    *rig
	clients []string
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
	r := &rig{Cluster: c, t: t, dir: dir, state: filepath.Join(dir, "conch"), bin: filepath.Join(root, "bin"), address: "127.0.0.1:18600", clients: []string{"127.0.0.1:18600"}, gpus: gpus}
	t.Cleanup(func() {
		r.stop(syscall.SIGKILL)
		if r.peer != nil {
			r.peer.stop(syscall.SIGKILL)
		}
		if t.Failed() {
			text, _ := os.ReadFile(r.logFile())
			t.Logf("conch's log ends:\n%s", text[max(0, len(text)-6000):])
		}
		if err := c.Down(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for _, left := range []string{r.state, r.logFile(), r.second().state, r.second().logFile(), r.third().state, r.third().logFile(), r.volume()} {
		must(t, os.RemoveAll(left))
	}
	must(t, os.MkdirAll(r.volume(), 0o755))
	r.kubectl("create", "namespace", namespaceOfTests)
	r.kubectl("create", "configmap", "-n", namespaceOfTests, "conch-release")
	r.giveRole(root)
	_, err = Models(dir, root)
	must(t, err)
	r.writeConfig(triton)
	return r
}

// volume is what conch and every Pod mount.
func (r *rig) volume() string { return filepath.Join(r.dir, "volume") }

// second and third are other conchs of the same release, as on other machines: each has a state directory of its own, with nothing in it.
func (r *rig) second() *rig { return r.another("second", "127.0.0.1:18700") }
func (r *rig) third() *rig  { return r.another("third", "127.0.0.1:18900") }

func (r *rig) another(name, address string) *rig {
	return &rig{Cluster: r.Cluster, t: r.t, dir: r.dir, state: filepath.Join(r.dir, name), bin: r.bin, address: address, clients: []string{address}, gpus: r.gpus}
}

// all is how many servers the plan of the tests has: two of each GPU.
func (r *rig) all() int { return 2 * nodesOfTests * r.gpus }

// config is a conch's conch.yaml, log its log, and port the first two digits of its ports.
func (r *rig) config() string  { return r.state + ".yaml" }
func (r *rig) logFile() string { return filepath.Join(r.dir, "log", filepath.Base(r.state)+".log") }
func (r *rig) port() string    { return strings.TrimSuffix(r.address, "00") }

// tritonctl asks a conch.
func (r *rig) tritonctl(args ...string) (string, error) {
	return output(r.t.Context(), filepath.Join(r.bin, "tritonctl"), append([]string{"--admin", "unix://" + r.state + "/admin.sock"}, args...)...)
}

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

// giveRole makes an account that may do what the role in docs/kubernetes.md says, and nothing else; conch works as that.
func (r *rig) giveRole(root string) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "kubernetes.md"))
	must(r.t, err)
	for _, before := range []string{"\n## The role\n\n", "Conch needs to read EndpointSlices, and nothing else:\n\n"} {
		_, role, found := strings.Cut(string(page), before)
		if !found {
			r.t.Fatalf("docs/kubernetes.md does not say %q", before)
		}
		r.apply(printed(role))
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

func (r *rig) writeConfig(triton string) {
	inside, outside := r.mounts(triton)
	text := fmt.Sprintf(`
repository: %s/models
state: %s
listen: {grpc: "%s01", http: "%s", metrics: "%s02", admin: "unix://%s/admin.sock"}
driver:
  kind: kubernetes
  startTimeout: 2m
  kubernetes:
    kubeconfig: %s
    namespace: %s
    owner: conch-release
    image: %s
    gpus: {driver: %s}
    models: {path: %s, volume: {hostPath: {path: %s}}}
    podTemplate:
      spec:
        containers:
          - name: server
            imagePullPolicy: Never
            volumeMounts: [%s]
        volumes: [%s]
limits: {drain: 10s}
policy: {name: static, parameters: {partitions: "%s"}}
defaults: {slo: 2s}
`, r.dir, r.state, r.port(), r.address, r.port(), r.state, r.account("conch"), namespaceOfTests, TritonImage, Driver, r.volume(), r.volume(), inside, outside, sharesOfTests)
	must(r.t, os.WriteFile(r.config(), []byte(text), 0o644))
}

// start starts conch, and returns once it serves.
func (r *rig) start() time.Duration {
	r.t.Helper()
	begin := time.Now()
	r.launch()
	r.serves()
	return time.Since(begin)
}

// launch starts conch.
func (r *rig) launch() {
	r.t.Helper()
	log, err := os.OpenFile(r.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	must(r.t, err)
	r.conch, r.log = exec.Command(filepath.Join(r.bin, "conch"), "--config", r.config(), "--log-format", "text"), log
	r.conch.Stdout, r.conch.Stderr = log, log
	r.conch.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // or it keeps its ports where the tests run out of time
	must(r.t, r.conch.Start())
	ended, conch := make(chan struct{}), r.conch
	r.ended = ended
	go func() {
		_ = conch.Wait() // its log says how it ended
		close(ended)
	}()
}

// serves waits until conch answers for both models.
func (r *rig) serves() {
	r.t.Helper()
	r.eventually("conch serves", 4*time.Minute, func() error {
		if r.hasEnded() {
			r.t.Fatalf("conch has ended; %s says why", r.logFile())
		}
		for _, model := range []string{"one", "two"} {
			if err := r.infer(model); err != nil {
				return err
			}
		}
		return nil
	})
}

// says waits until conch's log has a text.
func (r *rig) says(text string) {
	r.t.Helper()
	r.eventually("conch says "+text, time.Minute, func() error {
		log, err := os.ReadFile(r.logFile())
		if err == nil && !bytes.Contains(log, []byte(text)) {
			err = fmt.Errorf("it said: %s", log[max(0, len(log)-2000):])
		}
		return err
	})
}

// stop ends conch by a signal, and waits for its end.
func (r *rig) stop(signal syscall.Signal) {
	if r.conch == nil {
		return
	}
	_ = r.conch.Process.Signal(signal) // it may have ended
	<-r.ended
	_ = r.log.Close()
	r.conch = nil
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
