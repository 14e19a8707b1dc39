// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// apiServer is a Kubernetes API server with its etcd, and a proxy in front of it that counts what conch asks.
type apiServer struct {
	kubeconfig string
	requests   atomic.Int64

	address, token string
	client         *http.Client
	programs       []*exec.Cmd
	proxy          *http.Server
	serving        sync.WaitGroup
}

// startAPIServer starts both from the programs of make cluster-programs, with their state in a directory, and returns once the API server is ready.
func startAPIServer(ctx context.Context, dir, programs string) (_ *apiServer, err error) {
	if _, err := os.Stat(filepath.Join(programs, "kube")); err != nil {
		return nil, fmt.Errorf("the API server: %w; make cluster-programs builds it", err)
	}
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	a := &apiServer{address: "https://127.0.0.1:" + ports[2], token: "of-the-benchmark"}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, MaxIdleConnsPerHost: 64} //nolint:gosec // it is this process's own, and its certificate its own
	a.client = &http.Client{Transport: transport}
	key, tokens := filepath.Join(dir, "accounts.key"), filepath.Join(dir, "tokens.csv")
	if err := writeKey(key); err != nil {
		return nil, err
	}
	if err := os.WriteFile(tokens, []byte(a.token+",bench,1,\"system:masters\"\n"), 0o600); err != nil {
		return nil, err
	}
	etcd, peer := "http://127.0.0.1:"+ports[0], "http://127.0.0.1:"+ports[1]
	if err := a.run(dir, "etcd", filepath.Join(programs, "etcd"), "--data-dir="+filepath.Join(dir, "etcd"), "--unsafe-no-fsync", "--listen-client-urls="+etcd,
		"--advertise-client-urls="+etcd, "--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer); err != nil {
		return nil, err
	}
	if err := a.run(dir, "apiserver", filepath.Join(programs, "kube"), "apiserver", "--etcd-servers="+etcd, "--bind-address=127.0.0.1", "--secure-port="+ports[2],
		"--cert-dir="+filepath.Join(dir, "certificates"), "--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+key,
		"--service-account-signing-key-file="+key, "--service-cluster-ip-range=10.98.0.0/24", "--token-auth-file="+tokens, "--authorization-mode=AlwaysAllow",
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition,ResourceQuota,LimitRanger", "--endpoint-reconciler-type=none", "--profiling=false"); err != nil {
		return nil, err
	}
	if err := a.count(ctx, dir); err != nil {
		return nil, err
	}
	within, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		err := a.ask(within, http.MethodGet, "/api/v1/namespaces/default", "", nil)
		if err == nil {
			return a, nil
		}
		select {
		case <-within.Done():
			text, _ := os.ReadFile(filepath.Join(dir, "apiserver.log"))
			return nil, fmt.Errorf("the API server is not ready: %w: %s", err, text[max(0, len(text)-2000):])
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (a *apiServer) run(dir, name, program string, args ...string) error {
	output, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		return err
	}
	defer func() { _ = output.Close() }() // the child has its own
	path, err := filepath.Abs(program)
	if err != nil {
		return err
	}
	p := exec.Command(path, args...)
	p.Stdout, p.Stderr, p.Dir = output, output, dir
	if err := p.Start(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	a.programs = append(a.programs, p)
	return nil
}

// count listens for conch.
func (a *apiServer) count(ctx context.Context, dir string) error {
	to, err := url.Parse(a.address)
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	a.proxy = &http.Server{ReadHeaderTimeout: time.Minute, Handler: &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			a.requests.Add(1)
			r.SetURL(to)
			r.Out.Header.Set("Authorization", "Bearer "+a.token)
		},
		Transport: a.client.Transport, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0), // who asked is told
	}}
	a.serving.Go(func() { _ = a.proxy.Serve(listener) }) // until it is closed
	a.kubeconfig = filepath.Join(dir, "kubeconfig")
	return os.WriteFile(a.kubeconfig, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: bench, cluster: {server: "http://%s"}}]
users: [{name: bench, user: {}}]
contexts: [{name: bench, context: {cluster: bench, user: bench}}]
current-context: bench
`, listener.Addr()), 0o600)
}

// close ends everything.
func (a *apiServer) close() {
	if a.proxy != nil {
		_ = a.proxy.Close() // whatever is under way
		a.serving.Wait()
	}
	for _, p := range a.programs {
		_ = p.Process.Kill() // its state is removed
		_ = p.Wait()
	}
}

// ask the API server, past the proxy; an answer that is there already is none the worse.
func (a *apiServer) ask(ctx context.Context, method, path, kind string, body any) error {
	response, err := a.send(ctx, method, path, kind, body)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // it was read
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= http.StatusBadRequest {
		err = fmt.Errorf("%s %s: %s: %s", method, path, response.Status, text)
	}
	return err
}

func (a *apiServer) send(ctx context.Context, method, path, kind string, body any) (*http.Response, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, method, a.address+path, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+a.token)
	request.Header.Set("Content-Type", kind)
	return a.client.Do(request)
}

const (
	asJSON  = "application/json"
	asPatch = "application/merge-patch+json"
)

type object map[string]any

// addNodes makes nodes that are ready, with four GPUs each as NVIDIA's DRA driver describes them.
func (a *apiServer) addNodes(ctx context.Context, nodes int) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range nodes {
		group.Go(func() error {
			name := fmt.Sprintf("node-%04d", i)
			var devices []object
			for k := range 4 {
				devices = append(devices, object{
					"name":       fmt.Sprintf("gpu-%d", k),
					"attributes": object{"type": object{"string": "gpu"}, "uuid": object{"string": fmt.Sprintf("GPU-%s-%d", name, k)}, "productName": object{"string": "NVIDIA A100-SXM4-80GB"}},
					"capacity":   object{"memory": object{"value": "80Gi"}},
				})
			}
			return errors.Join(
				a.ask(ctx, http.MethodPost, "/api/v1/nodes", asJSON, object{"apiVersion": "v1", "kind": "Node", "metadata": object{"name": name}}),
				a.ask(ctx, http.MethodPatch, "/api/v1/nodes/"+name+"/status", asPatch, object{"status": object{"conditions": []object{{"type": "Ready", "status": "True", "reason": "Bench"}}}}),
				a.ask(ctx, http.MethodPost, "/apis/resource.k8s.io/v1/resourceslices", asJSON, object{
					"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": object{"name": name + "-gpus"},
					"spec": object{"driver": "gpu.nvidia.com", "nodeName": name, "pool": object{"name": name, "generation": 1, "resourceSliceCount": 1}, "devices": devices},
				}),
			)
		})
	}
	return group.Wait()
}

// runPods does until the context ends what kubelets do of Pods that are made: it says that they run.
func (a *apiServer) runPods(ctx context.Context) error {
	response, err := a.send(ctx, http.MethodGet, "/api/v1/namespaces/default/pods?watch=true", asJSON, nil)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // it ends with the context
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for read := json.NewDecoder(response.Body); ; {
		var event struct {
			Type   string
			Object struct{ Metadata struct{ Name string } }
		}
		if err := read.Decode(&event); err != nil {
			if err := group.Wait(); err != nil && ctx.Err() == nil {
				return err
			}
			if ctx.Err() == nil {
				return fmt.Errorf("the benchmark's watch of Pods: %w", err)
			}
			return nil
		}
		if event.Type == "ADDED" {
			group.Go(func() error {
				return a.ask(within, http.MethodPatch, "/api/v1/namespaces/default/pods/"+event.Object.Metadata.Name+"/status", asPatch, object{"status": object{
					"phase": "Running", "podIP": podIP, "podIPs": []object{{"ip": podIP}},
					"containerStatuses": []object{{"name": "server", "image": "tritonserver", "imageID": "", "ready": true, "restartCount": 0, "state": object{"running": object{"startedAt": time.Now().UTC().Format(time.RFC3339)}}}},
				}})
			})
		}
	}
}

// freePorts of this machine.
func freePorts(n int) (all []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }() // once all are known
		_, port, err := net.SplitHostPort(l.Addr().String())
		if err != nil {
			return nil, err
		}
		all = append(all, port)
	}
	return all, nil
}

// writeKey writes the key of service accounts.
func writeKey(path string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}
