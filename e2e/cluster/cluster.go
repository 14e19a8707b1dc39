// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Addresses of the cluster. Each node is 10.97.N.2 behind 10.97.N.1 of the hub, and its Pods are 10.99.N.0/24.
const (
	hubAddress  = "10.97.0.2"
	hostAddress = "10.97.0.1"
	// service is the ClusterIP of the Service "kubernetes". No kube-proxy runs: the hub has the address itself, so that Pods reach the API server there.
	// No other Service has an address that leads anywhere.
	service      = "10.98.0.1"
	serviceRange = "10.98.0.0/24"
)

// Options of New.
type Options struct {
	// Dir is the cluster's alone; Bin has its programs.
	Dir, Bin string
	// Nodes and GPUs of each.
	Nodes, GPUs int
	// NoMPS has the DRA driver refuse claims that ask for MPS, as NVIDIA's does without its feature gate.
	NoMPS bool
	// Images to import: files of Image.
	Images []string
	// Log is told what happens.
	Log func(format string, args ...any)
}

// Cluster is one that runs, or did.
type Cluster struct {
	o Options
}

// New is the cluster of a directory, whether it runs or not.
func New(o Options) (*Cluster, error) {
	var err error
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return nil, err
	}
	if o.Bin, err = filepath.Abs(o.Bin); err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	if o.Nodes < 1 || o.Nodes > 200 {
		return nil, fmt.Errorf("%d nodes; there may be 1 to 200", o.Nodes)
	}
	return &Cluster{o: o}, nil
}

// Kubeconfig is that of an administrator.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.o.Dir, "admin.kubeconfig") }

// NodeName is the name of the node n, from 1.
func NodeName(n int) string { return "node-" + strconv.Itoa(n) }

// Up starts everything, and ends what an earlier one left.
func (c *Cluster) Up(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("a cluster needs root: it makes network namespaces and runs containers")
	}
	if err := c.Down(ctx); err != nil {
		return fmt.Errorf("what an earlier cluster left: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(c.o.Dir, "log"), 0o755); err != nil {
		return err
	}
	begin := time.Now()
	if err := c.writeSecrets(); err != nil {
		return err
	}
	if err := c.network(ctx); err != nil {
		return err
	}
	if err := c.StartControlPlane(ctx); err != nil {
		return err
	}
	class, err := c.deviceClass()
	if err != nil {
		return err
	}
	if _, err := c.Kubectl(ctx, "apply", "-f", class); err != nil {
		return err
	}
	c.o.Log("control plane ready after %.1f s", time.Since(begin).Seconds())
	for n := 1; n <= c.o.Nodes; n++ {
		if err := c.startNode(ctx, n); err != nil {
			return fmt.Errorf("%s: %w", NodeName(n), err)
		}
	}
	for n := 1; n <= c.o.Nodes; n++ {
		if err := c.awaitNode(ctx, n); err != nil {
			return fmt.Errorf("%s: %w", NodeName(n), err)
		}
	}
	c.o.Log("%d nodes ready after %.1f s", c.o.Nodes, time.Since(begin).Seconds())
	return nil
}

// Down ends everything and removes the cluster's state but for its logs.
func (c *Cluster) Down(ctx context.Context) error {
	var errs []error
	for n := 1; n <= 200; n++ {
		if _, err := os.Stat(c.nodeDir(n)); err == nil {
			errs = append(errs, c.endNode(ctx, n))
		}
	}
	for _, name := range []string{"scheduler", "controller-manager", "apiserver", "etcd"} {
		errs = append(errs, c.end(name))
	}
	errs = append(errs, c.unnetwork(ctx), os.RemoveAll(filepath.Join(c.o.Dir, "etcd")))
	return errors.Join(errs...)
}

// StartControlPlane starts what does not run of it, and returns once it works.
func (c *Cluster) StartControlPlane(ctx context.Context) error {
	kube, pki := filepath.Join(c.o.Bin, "kube"), filepath.Join(c.o.Dir, "pki")
	if err := c.start("etcd", c.inHub(filepath.Join(c.o.Bin, "etcd"), "--data-dir="+filepath.Join(c.o.Dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls=http://127.0.0.1:2379", "--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380", "--initial-cluster=default=http://127.0.0.1:2380")); err != nil {
		return err
	}
	if err := c.StartAPIServer(ctx); err != nil {
		return err
	}
	if err := c.start("controller-manager", c.inHub(kube, "controller-manager", "--kubeconfig="+c.Kubeconfig(), "--leader-elect=false",
		"--service-account-private-key-file="+filepath.Join(pki, "sa.key"), "--root-ca-file="+filepath.Join(pki, "ca.crt"),
		"--node-monitor-grace-period=16s", "--node-monitor-period=2s", "--bind-address=127.0.0.1", "--profiling=false")); err != nil {
		return err
	}
	if err := c.start("scheduler", c.inHub(kube, "scheduler", "--kubeconfig="+c.Kubeconfig(), "--leader-elect=false", "--bind-address=127.0.0.1", "--profiling=false")); err != nil {
		return err
	}
	return until(ctx, "the default service account", func() error {
		_, err := c.Kubectl(ctx, "get", "serviceaccount", "default")
		return err
	})
}

// StartAPIServer starts it, and returns once it says that it is ready.
func (c *Cluster) StartAPIServer(ctx context.Context) error {
	pki := filepath.Join(c.o.Dir, "pki")
	key := filepath.Join(pki, "sa.key")
	if err := c.start("apiserver", c.inHub(filepath.Join(c.o.Bin, "kube"), "apiserver", "--etcd-servers=http://127.0.0.1:2379", "--secure-port=443",
		"--bind-address=0.0.0.0", "--advertise-address="+hubAddress, "--tls-cert-file="+filepath.Join(pki, "apiserver.crt"), "--tls-private-key-file="+filepath.Join(pki, "apiserver.key"),
		"--cert-dir="+pki, "--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+key, "--service-account-signing-key-file="+key,
		"--service-cluster-ip-range="+serviceRange, "--token-auth-file="+filepath.Join(pki, "tokens.csv"), "--authorization-mode=RBAC", "--allow-privileged=true",
		"--endpoint-reconciler-type=none", "--kubelet-preferred-address-types=InternalIP", "--profiling=false")); err != nil {
		return err
	}
	return until(ctx, "the API server", func() error {
		if !c.runs("apiserver") {
			return errors.New("it has ended: " + c.tail("apiserver"))
		}
		_, err := c.Kubectl(ctx, "get", "--raw", "/readyz")
		return err
	})
}

// StopAPIServer ends it; StartAPIServer brings it back.
func (c *Cluster) StopAPIServer() error { return c.end("apiserver") }

// Kubectl runs it as administrator, and returns what it printed.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	out, err := output(ctx, filepath.Join(c.o.Bin, "kube"), append([]string{"kubectl", "--kubeconfig=" + c.Kubeconfig(), "--request-timeout=10s"}, args...)...)
	if err != nil {
		return out, fmt.Errorf("kubectl %s: %w", strings.Join(args, " "), err)
	}
	return out, nil
}

// patience bounds the wait for one part.
const patience = 90 * time.Second

// until tries until a check succeeds.
func until(ctx context.Context, what string, check func() error) error {
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-within.Done():
			return fmt.Errorf("%s did not come up within %s: %w", what, patience, err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
