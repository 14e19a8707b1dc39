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
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// refusals starts conchs that this cluster is not for, while another release serves from all of its GPUs.
func (r *rig) refusals() {
	end := r.load()
	older := r.older()
	defer older.Close()
	other := [2]string{"    owner: conch-release\n", "    owner: conch-release\n    release: other\n"}
	for _, c := range []struct {
		name    string
		changes [][2]string
		want    []string
	}{
		{"two releases over the same GPUs", [][2]string{other}, []string{
			"every GPU of the cluster is claimed by others: node-1.gpu-0 is claimed by release conch in namespace " + namespaceOfTests,
		}},
		{"no GPUs", [][2]string{other, {"driver: " + Driver, "driver: gpu.absent.test"}}, []string{
			"no node of the cluster has GPUs: none offers nvidia.com/gpu, and no ResourceSlice is of driver gpu.absent.test",
		}},
		{"no permission", [][2]string{other, {r.account("conch"), r.account("conch-attach")}}, []string{
			"conch may not: ", "create pods in namespace " + namespaceOfTests, "get configmaps in namespace " + namespaceOfTests,
			"update leases.coordination.k8s.io in namespace " + namespaceOfTests, "list nodes in the cluster", "watch resourceslices.resource.k8s.io in the cluster",
		}},
		{"an older cluster", [][2]string{other, {r.account("conch"), r.kubeconfigOf(older.URL)}}, []string{
			"the cluster is Kubernetes v1.29.0; conch needs 1.30 or later, and 1.34 for DRA",
		}},
	} {
		out := r.refused(c.changes...)
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				r.t.Errorf("%s: %q is not in\n%s", c.name, want, out)
			}
		}
	}
	r.none(end())
}

// refused starts a conch whose conch.yaml differs by some changes, and returns what it says once it has ended.
func (r *rig) refused(changes ...[2]string) string {
	r.t.Helper()
	a := r.changed(changes...)
	within, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(within, filepath.Join(r.bin, "conch"), "--config", a.config(), "--log-format", "text").CombinedOutput()
	if err == nil || within.Err() != nil {
		r.t.Errorf("it is not refused: %v", err)
	}
	return string(out)
}

// changed is another conch, whose conch.yaml differs by some changes.
func (r *rig) changed(changes ...[2]string) *replica {
	r.t.Helper()
	a := r.another("changed", "127.0.0.1:18500")
	must(r.t, os.RemoveAll(a.state))
	a.writeConfig()
	config, err := os.ReadFile(a.config())
	must(r.t, err)
	text := string(config)
	for _, change := range changes {
		if !strings.Contains(text, change[0]) {
			r.t.Fatalf("conch.yaml has no %q", change[0])
		}
		text = strings.ReplaceAll(text, change[0], change[1])
	}
	must(r.t, os.WriteFile(a.config(), []byte(text), 0o644))
	return a
}

// older is the API server, as conch's account reaches it, which says that it is an older one.
func (r *rig) older() *httptest.Server {
	r.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", r.account("conch"))
	must(r.t, err)
	transport, err := rest.TransportFor(config)
	must(r.t, err)
	at, err := url.Parse(config.Host)
	must(r.t, err)
	return httptest.NewServer(&httputil.ReverseProxy{
		Transport: transport,
		Rewrite:   func(p *httputil.ProxyRequest) { p.SetURL(at) },
		ModifyResponse: func(answer *http.Response) error {
			if answer.Request.URL.Path != "/version" {
				return nil
			}
			version := map[string]string{}
			err := json.NewDecoder(answer.Body).Decode(&version)
			if err = errors.Join(err, answer.Body.Close()); err != nil {
				return err
			}
			version["minor"], version["gitVersion"] = "29", "v1.29.0"
			text, err := json.Marshal(version)
			answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
			answer.Header.Set("Content-Length", fmt.Sprint(len(text)))
			return err
		},
	})
}

// kubeconfigOf is a file that names an API server which asks for no credentials.
func (r *rig) kubeconfigOf(address string) string {
	file := filepath.Join(r.t.TempDir(), "kubeconfig")
	must(r.t, os.WriteFile(file, fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: c,
clusters: [{name: a, cluster: {server: %q}}], users: [{name: u, user: {}}], contexts: [{name: c, context: {cluster: a, user: u}}]}`, address), 0o600))
	return file
}

// starts has servers that cannot start say why, where an operator looks: no other release has the GPUs.
func (r *rig) starts() {
	t := r.t
	r.kubectl("create", "configmap", "-n", namespaceOfTests, "conch-release")
	fails := func(what, want string, changes ...[2]string) {
		t.Helper()
		a := r.changed(changes...)
		a.launch()
		defer a.stop(syscall.SIGKILL)
		r.eventually(what, 2*time.Minute, func() error {
			out, err := a.tritonctl("partition", "ls", "-o", "json")
			if err == nil && !strings.Contains(out, want) {
				err = fmt.Errorf("they say %s", out)
			}
			return err
		})
	}
	fails("an image without tritonserver", "image docker.io/local/pause:1 has no tritonserver that can be started: ", [2]string{TritonImage, "docker.io/local/pause:1"})

	t.Log("the DRA driver is one without MPS")
	r.gpusWith(true)
	fails("a DRA driver without MPS", "the feature gate MPSSupport is not enabled. Shares of a GPU need ")
	r.gpusWith(false)
	r.kubectl("delete", "configmap", "-n", namespaceOfTests, "conch-release")
	r.eventually("the servers go", time.Minute, func() error {
		if n := len(r.servers()); n > 0 {
			return fmt.Errorf("%d are there", n)
		}
		return nil
	})
}

// gpusWith starts the DRA drivers of all nodes anew.
func (r *rig) gpusWith(noMPS bool) {
	r.t.Helper()
	r.o.NoMPS = noMPS
	for n := 1; n <= nodesOfTests; n++ {
		must(r.t, r.end("dra-"+NodeName(n)))
		must(r.t, r.startDRA(n))
	}
	for n := 1; n <= nodesOfTests; n++ {
		must(r.t, r.awaitNode(r.t.Context(), n))
	}
}
