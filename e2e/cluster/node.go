// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/template"
	"time"
)

//go:embed containerd.toml
var containerdConfig string

//go:embed kubelet.yaml
var kubeletConfig string

//go:embed cni.json
var cniConfig string

// cgroup is below which everything of the nodes' Pods lies: kubelets clean up in no other place.
const cgroup = "conch-cluster"

// Driver is the name of the DRA driver of emulated GPUs, and of its device class.
const Driver = "gpu.conch.test"

func (c *Cluster) nodeDir(n int) string { return filepath.Join(c.o.Dir, NodeName(n)) }

// sysctls are what a kubelet wants of the machine. It finds files in their places: the machine's own are left as they are.
var sysctls = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

func (c *Cluster) startNode(ctx context.Context, n int) error {
	dir := c.nodeDir(n)
	for _, sub := range []string{"sysctl", "kubelet", "podlogs", "cdi", "emulation", "cni"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	values := map[string]any{"Dir": dir, "Bin": c.o.Bin, "Node": n, "Name": NodeName(n), "Cgroup": "/" + cgroup + "/" + NodeName(n)}
	for name, text := range map[string]string{"containerd.toml": containerdConfig, "kubelet.yaml": kubeletConfig, "cni/10-conch.conflist": cniConfig} {
		var out bytes.Buffer
		t, err := template.New(name).Parse(text)
		if err == nil {
			err = t.Execute(&out, values)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), out.Bytes(), 0o644)
		}
		if err != nil {
			return err
		}
	}
	if err := makeCgroups(NodeName(n)); err != nil {
		return err
	}
	if err := c.startContainerd(ctx, n); err != nil {
		return err
	}
	for _, image := range c.o.Images {
		if err := c.Import(ctx, n, image); err != nil {
			return err
		}
	}
	if err := c.StartKubelet(n); err != nil {
		return err
	}
	return c.startDRA(n)
}

// startContainerd starts it in a mount namespace of its own, which is the node's: mounts of the node end with it.
func (c *Cluster) startContainerd(ctx context.Context, n int) error {
	dir := c.nodeDir(n)
	var script strings.Builder
	script.WriteString("set -e; ")
	for _, name := range slices.Sorted(maps.Keys(sysctls)) {
		file := filepath.Join(dir, "sysctl", strings.ReplaceAll(name, "/", "."))
		if err := os.WriteFile(file, []byte(sysctls[name]+"\n"), 0o644); err != nil {
			return err
		}
		fmt.Fprintf(&script, "mount --bind %s /proc/sys/%s; ", file, name)
	}
	fmt.Fprintf(&script, "PATH=%s:$PATH exec %s/containerd --config %s/containerd.toml", c.o.Bin, c.o.Bin, dir)
	name := "containerd-" + NodeName(n)
	if err := c.start(name, []string{"nsenter", "--net=/run/netns/" + namespace(n), "unshare", "-m", "--propagation", "slave", "sh", "-c", script.String()}); err != nil {
		return err
	}
	return until(ctx, name, func() error {
		if !c.runs(name) {
			return errors.New("it has ended: " + c.tail(name))
		}
		_, err := c.ctr(ctx, n, "version")
		return err
	})
}

// ctr runs containerd's own client.
func (c *Cluster) ctr(ctx context.Context, n int, args ...string) (string, error) {
	return output(ctx, filepath.Join(c.o.Bin, "ctr"), append([]string{"-a", filepath.Join(c.nodeDir(n), "c.sock"), "-n", "k8s.io"}, args...)...)
}

// Import gives a node an image.
func (c *Cluster) Import(ctx context.Context, n int, file string) error {
	_, err := c.ctr(ctx, n, "image", "import", file)
	return err
}

// inNode is a command that runs in the namespaces of a node.
func (c *Cluster) inNode(n int, command ...string) ([]string, error) {
	pid := c.pid("containerd-" + NodeName(n))
	if pid == 0 {
		return nil, fmt.Errorf("containerd of %s does not run", NodeName(n))
	}
	return append([]string{"nsenter", "-t", strconv.Itoa(pid), "-m", "-n"}, command...), nil
}

// StartKubelet starts that of a node, StopKubelet ends it; the node's Pods go on without it.
func (c *Cluster) StartKubelet(n int) error {
	dir := c.nodeDir(n)
	command, err := c.inNode(n, filepath.Join(c.o.Bin, "kube"), "kubelet", "--kubeconfig="+c.Kubeconfig(), "--config="+filepath.Join(dir, "kubelet.yaml"),
		"--root-dir="+filepath.Join(dir, "kubelet"), "--cert-dir="+filepath.Join(dir, "kubelet", "pki"), "--hostname-override="+NodeName(n), fmt.Sprintf("--node-ip=10.97.%d.2", n))
	if err != nil {
		return err
	}
	return c.start("kubelet-"+NodeName(n), command)
}

// StopKubelet ends the kubelet of a node.
func (c *Cluster) StopKubelet(n int) error { return c.end("kubelet-" + NodeName(n)) }

func (c *Cluster) startDRA(n int) error {
	dir := c.nodeDir(n)
	return c.start("dra-"+NodeName(n), []string{
		filepath.Join(c.o.Bin, "dra"), "-kubeconfig=" + c.Kubeconfig(), "-node=" + NodeName(n), "-name=" + Driver, "-kubelet=" + filepath.Join(dir, "kubelet"),
		"-cdi=" + filepath.Join(dir, "cdi"), "-emulation=" + filepath.Join(dir, "emulation"), "-gpus=" + strconv.Itoa(c.o.GPUs), "-mps=" + strconv.FormatBool(!c.o.NoMPS),
	})
}

// awaitNode waits until a node is ready and its GPUs are published.
func (c *Cluster) awaitNode(ctx context.Context, n int) error {
	return until(ctx, NodeName(n), func() error {
		for _, name := range []string{"kubelet-", "dra-"} {
			if !c.runs(name + NodeName(n)) {
				return fmt.Errorf("%s has ended: %s", name+NodeName(n), c.tail(name+NodeName(n)))
			}
		}
		ready, err := c.Kubectl(ctx, "get", "node", NodeName(n), "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		if err != nil {
			return err
		}
		if ready != "True" {
			return errors.New("it is not ready")
		}
		slices, err := c.Kubectl(ctx, "get", "resourceslices", "--field-selector=spec.nodeName="+NodeName(n), "-o", "name")
		if err == nil && slices == "" {
			err = errors.New("its GPUs are not published")
		}
		return err
	})
}

// endNode ends everything of a node: first the kubelet, which would start what ends, then the containers, then what ran them.
func (c *Cluster) endNode(ctx context.Context, n int) error {
	name := NodeName(n)
	errs := []error{c.end("kubelet-" + name), c.end("dra-" + name)}
	for range 100 {
		pids := c.processes(n)
		if len(pids) == 0 {
			break
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended by itself
		}
		time.Sleep(20 * time.Millisecond)
	}
	errs = append(errs, c.end("containerd-"+name))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	removeCgroups(name)
	return errors.Join(append(errs, os.RemoveAll(c.nodeDir(n)))...)
}

// processes are the containers' and the shims' of a node.
func (c *Cluster) processes(n int) (all []int) {
	all = inCgroups(NodeName(n))
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return all
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && bytes.Contains(line, []byte("containerd-shim-runc-v2")) && bytes.Contains(line, []byte(c.nodeDir(n)+"/c.sock")) {
			all = append(all, pid)
		}
	}
	return all
}

// deviceClass is a file with the device class of the driver, which NVIDIA's chart installs with its own.
func (c *Cluster) deviceClass() (file string, err error) {
	file = filepath.Join(c.o.Dir, "deviceclass.yaml")
	return file, os.WriteFile(file, fmt.Appendf(nil, "apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: %s}\nspec: {selectors: [{cel: {expression: 'device.driver == %q'}}]}\n", Driver, Driver), 0o644)
}
