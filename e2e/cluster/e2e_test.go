// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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
}

const namespaceOfTests = "serving"

func newRig(t *testing.T) *rig {
	bin, triton := os.Getenv("CONCH_CLUSTER_BIN"), os.Getenv("CONCH_TRITON_HOME")
	if bin == "" || os.Geteuid() != 0 {
		t.Skip("make e2e-cluster, as root, runs this")
	}
	root, err := filepath.Abs("../..")
	must(t, err)
	dir := "/var/lib/conch-cluster-test"
	images, err := Images(filepath.Join(dir, "images"), bin, triton)
	must(t, err)
	c, err := New(Options{Dir: dir, Bin: bin, Nodes: 2, GPUs: 2, Images: images, Log: t.Logf})
	must(t, err)
	must(t, c.Up(t.Context()))
	r := &rig{Cluster: c, t: t, dir: dir, state: filepath.Join(dir, "conch"), bin: filepath.Join(root, "bin"), address: "127.0.0.1:18000"}
	t.Cleanup(func() {
		r.stop(syscall.SIGKILL)
		if t.Failed() {
			text, _ := os.ReadFile(filepath.Join(dir, "log", "conch.log"))
			t.Logf("conch's log ends:\n%s", text[max(0, len(text)-6000):])
		}
		if err := c.Down(context.Background()); err != nil {
			t.Error(err)
		}
	})
	must(t, os.RemoveAll(r.state))
	must(t, os.MkdirAll(filepath.Join(r.state, "partitions"), 0o755))
	must(t, os.Chmod(r.state, 0o700))
	r.kubectl("create", "namespace", namespaceOfTests)
	r.kubectl("create", "configmap", "-n", namespaceOfTests, "conch-release")
	r.giveRole(root)
	r.writeModels(root)
	r.writeConfig(triton)
	return r
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
	_, role, found := strings.Cut(string(page), "\n## The role\n\n")
	if !found {
		r.t.Fatal("docs/kubernetes.md has no section \"The role\"")
	}
	var text strings.Builder
	for line := range strings.Lines(role) {
		if !strings.HasPrefix(line, "    ") {
			break
		}
		text.WriteString(strings.TrimPrefix(line, "    "))
	}
	file := filepath.Join(r.dir, "role.yaml")
	must(r.t, os.WriteFile(file, []byte(text.String()), 0o644))
	r.kubectl("apply", "-n", namespaceOfTests, "-f", file)
	r.kubectl("create", "serviceaccount", "-n", namespaceOfTests, "conch")
	r.kubectl("create", "rolebinding", "-n", namespaceOfTests, "conch", "--role=conch", "--serviceaccount="+namespaceOfTests+":conch")
	r.kubectl("create", "clusterrolebinding", "conch", "--clusterrole=conch", "--serviceaccount="+namespaceOfTests+":conch")
	token := r.kubectl("create", "token", "-n", namespaceOfTests, "conch", "--duration=2h")
	admin, err := os.ReadFile(r.Kubeconfig())
	must(r.t, err)
	head, _, found := strings.Cut(string(admin), "users: ")
	if !found {
		r.t.Fatal("the administrator's kubeconfig has another form")
	}
	must(r.t, os.WriteFile(r.account(), []byte(head+"users: [{name: admin, user: {token: "+token+"}}]\ncontexts: [{name: conch, context: {cluster: conch, user: admin}}]\ncurrent-context: conch\n"), 0o600))
}

// account is the kubeconfig that conch uses.
func (r *rig) account() string { return filepath.Join(r.dir, "conch.kubeconfig") }

// writeModels makes the repository: two emulating models of the end-to-end tests.
func (r *rig) writeModels(root string) {
	program, err := os.ReadFile(filepath.Join(root, "internal/pymodels/emulate/model.py"))
	must(r.t, err)
	config, err := os.ReadFile(filepath.Join(root, "e2e/models/emulated/config.pbtxt"))
	must(r.t, err)
	for _, name := range []string{"one", "two"} {
		dir := filepath.Join(r.dir, "models", name)
		must(r.t, os.MkdirAll(filepath.Join(dir, "1"), 0o755))
		must(r.t, os.WriteFile(filepath.Join(dir, "config.pbtxt"), bytes.Replace(config, []byte(`"emulated"`), []byte(`"`+name+`"`), 1), 0o644))
		must(r.t, os.WriteFile(filepath.Join(dir, "1", "model.py"), program, 0o644))
	}
}

func (r *rig) writeConfig(triton string) {
	mounts, err := TritonMounts(triton)
	must(r.t, err)
	var inside, outside []string
	for i, dir := range mounts {
		inside = append(inside, fmt.Sprintf("{name: m%d, mountPath: %s, readOnly: true}", i, dir))
		outside = append(outside, fmt.Sprintf("{name: m%d, hostPath: {path: %s}}", i, dir))
	}
	text := fmt.Sprintf(`
repository: %s/models
state: %s
listen: {grpc: "127.0.0.1:18001", http: "%s", metrics: "127.0.0.1:18002", admin: "unix://%s/admin.sock"}
driver:
  kind: kubernetes
  startTimeout: 2m
  kubernetes:
    kubeconfig: %s
    namespace: %s
    owner: conch-release
    image: %s
    gpus: {driver: %s}
    models: {volume: {hostPath: {path: %s/partitions}}}
    podTemplate:
      spec:
        containers:
          - name: server
            imagePullPolicy: Never
            volumeMounts: [%s]
        volumes: [%s]
limits: {drain: 10s}
policy: {name: static, parameters: {partitions: "* = 40, 60"}}
defaults: {slo: 2s}
`, r.dir, r.state, r.address, r.state, r.account(), namespaceOfTests, TritonImage, Driver, r.state, strings.Join(inside, ", "), strings.Join(outside, ", "))
	must(r.t, os.WriteFile(filepath.Join(r.dir, "conch.yaml"), []byte(text), 0o644))
}

// start starts conch, and returns once it serves.
func (r *rig) start() time.Duration {
	r.t.Helper()
	log, err := os.OpenFile(filepath.Join(r.dir, "log", "conch.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	must(r.t, err)
	begin := time.Now()
	r.conch, r.log = exec.Command(filepath.Join(r.bin, "conch"), "--config", filepath.Join(r.dir, "conch.yaml"), "--log-format", "text"), log
	r.conch.Stdout, r.conch.Stderr = log, log
	must(r.t, r.conch.Start())
	r.eventually("conch serves", 4*time.Minute, func() error {
		for _, model := range []string{"one", "two"} {
			if err := r.infer(model); err != nil {
				return err
			}
		}
		return nil
	})
	return time.Since(begin)
}

// stop ends conch by a signal, and waits for its end.
func (r *rig) stop(signal syscall.Signal) {
	if r.conch == nil {
		return
	}
	_ = r.conch.Process.Signal(signal) // it may have ended
	_ = r.conch.Wait()
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

// infer sends a request through conch, and looks at the answer: the model's is 2x+1.
func (r *rig) infer(model string) error {
	body := `{"inputs": [{"name": "INPUT", "datatype": "FP32", "shape": [1, 16], "data": [3,3,3,3,3,3,3,3,3,3,3,3,3,3,3,3]}]}`
	client := http.Client{Timeout: 20 * time.Second}
	answer, err := client.Post("http://"+r.address+"/v2/models/"+model+"/infer", "application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	var out struct{ Outputs []struct{ Data []float64 } }
	if answer.StatusCode != http.StatusOK || json.Unmarshal(text, &out) != nil || len(out.Outputs) != 1 || len(out.Outputs[0].Data) != 16 || out.Outputs[0].Data[0] != 7 {
		return fmt.Errorf("HTTP %d: %s", answer.StatusCode, text)
	}
	return nil
}

// load sends requests until the returned function is called, which says how many were sent and which failed.
func (r *rig) load() (end func() (sent int, failed []error)) {
	var mu sync.Mutex
	var sent int
	var failed []error
	done := make(chan struct{})
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-done:
					return
				default:
				}
				err := r.infer([]string{"one", "two"}[(n+i)%2])
				mu.Lock()
				sent++
				if err != nil {
					failed = append(failed, err)
				}
				mu.Unlock()
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	return func() (int, []error) {
		close(done)
		all.Wait()
		return sent, failed
	}
}

// none fails where a request did.
func (r *rig) none(sent int, failed []error) {
	r.t.Helper()
	if len(failed) > 0 {
		r.t.Errorf("%d of %d requests failed; the first: %v", len(failed), sent, failed[0])
	}
	if sent < 20 {
		r.t.Errorf("only %d requests were sent", sent)
	}
	r.t.Logf("%d requests, none failed", sent)
}

// servers are the Pods of conch by name: their unique ids. Those that are going are left out.
func (r *rig) servers() map[string]string {
	r.t.Helper()
	out := r.kubectl("get", "pods", "-n", namespaceOfTests, "-l", "conch.io/release=conch", "-o", `jsonpath={range .items[*]}{.metadata.name} {.metadata.uid} {.metadata.deletionTimestamp}{"\n"}{end}`)
	all := map[string]string{}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 2 {
			all[f[0]] = f[1]
		}
	}
	return all
}

// replan waits until all GPUs may be used, and orders a plan for them: by itself conch moves nothing to a node that is back while that gains less than it disturbs.
func (r *rig) replan() {
	r.t.Helper()
	r.eventually("a plan for all GPUs", time.Minute, func() error {
		slices, err := r.Kubectl(r.t.Context(), "get", "resourceslices", "-o", "name")
		if err != nil {
			return err
		}
		if n := len(strings.Fields(slices)); n != 2 {
			return fmt.Errorf("%d nodes offer GPUs", n)
		}
		if _, err := output(r.t.Context(), filepath.Join(r.bin, "tritonctl"), "--admin", "unix://"+r.state+"/admin.sock", "plan", "apply", "--yes"); err != nil {
			return err
		}
		if n := len(r.servers()); n < 8 {
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

// TestConchOnAClusterOfTwoNodes is one walk through the life of a conch on a real cluster: each step begins where the one before has ended.
func TestConchOnAClusterOfTwoNodes(t *testing.T) {
	r := newRig(t)
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

	step("shares of 40 and 60 percent of each of four GPUs", func() {
		t := r.t
		t.Logf("serves %.1f s after conch's start", r.start().Seconds())
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
	})

	step("conch is killed, and the next one serves from the same Pods", func() {
		t := r.t
		r.stop(syscall.SIGKILL)
		t.Logf("serves again %.1f s after its start", r.start().Seconds())
		if now := r.servers(); fmt.Sprint(now) != fmt.Sprint(before) {
			t.Errorf("the Pods were %v and are %v", before, now)
		}
	})

	step("conch is stopped and started", func() {
		t := r.t
		r.stop(syscall.SIGTERM)
		t.Logf("serves again %.1f s after its start", r.start().Seconds())
		if now := r.servers(); fmt.Sprint(now) != fmt.Sprint(before) {
			t.Errorf("the Pods were %v and are %v", before, now)
		}
	})

	step("a Pod is deleted by hand", func() {
		end := r.load()
		name := slices.Sorted(maps.Keys(before))[0]
		r.kubectl("delete", "pod", "-n", namespaceOfTests, name, "--wait=false")
		time.Sleep(3 * time.Second)
		r.awaitServers(8, "node-")
		r.none(end())
		if _, still := r.servers()[name]; still {
			r.t.Errorf("%s is there again", name)
		}
	})

	step("a kubelet is down: its servers serve on until the plan without that node is there", func() {
		end := r.load()
		must(r.t, r.StopKubelet(2))
		r.awaitServers(4, "node-1")
		time.Sleep(30 * time.Second)
		must(r.t, r.StartKubelet(2))
		r.replan()
		r.awaitServers(8, "node-")
		r.none(end())
	})

	step("the API server is down for 20 s", func() {
		end := r.load()
		must(r.t, r.StopAPIServer())
		time.Sleep(20 * time.Second)
		must(r.t, r.StartAPIServer(r.t.Context()))
		time.Sleep(5 * time.Second)
		r.none(end())
		r.awaitServers(8, "node-")
	})

	step("a node is cordoned: its models go elsewhere, and come back", func() {
		end := r.load()
		r.kubectl("cordon", "node-2")
		r.awaitServers(0, "node-2")
		r.awaitServers(4, "node-1")
		r.kubectl("uncordon", "node-2")
		r.replan()
		r.awaitServers(8, "node-")
		r.none(end())
	})

	step("two conches of one release: the second waits", func() {
		t := r.t
		second := exec.Command(filepath.Join(r.bin, "conch"), "--config", filepath.Join(r.dir, "conch.yaml"), "--state", filepath.Join(r.dir, "second"), "--log-format", "text")
		var out bytes.Buffer
		second.Stdout, second.Stderr = &out, &out
		must(t, second.Start())
		time.Sleep(6 * time.Second)
		must(t, second.Process.Signal(syscall.SIGTERM))
		_ = second.Wait()
		if !strings.Contains(out.String(), "another conch leads this release") {
			t.Errorf("the second said:\n%s", out.String())
		}
		must(t, r.infer("one"))
	})

	step("the release is deleted, and its servers with it", func() {
		r.stop(syscall.SIGTERM)
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
}
