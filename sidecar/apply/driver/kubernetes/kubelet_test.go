// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authorization "k8s.io/api/authorization/v1"
	core "k8s.io/api/core/v1"
	resource "k8s.io/api/resource/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apimachinery/pkg/watch"
	discovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/conch-serving/conch/internal/minitriton"
)

const namespace = "serving"

// testCluster is client-go's fake with what it lacks: unique ids, graceful deletion, and a kubelet, whose Pods are minitritons in this process, each at an
// address of its own (127.77.x.y), so that every server keeps its usual ports.
type testCluster struct {
	*fake.Clientset
	t *testing.T
	// denied are permissions that conch has not, as "verb resource".
	denied map[string]bool

	mu   sync.Mutex
	pods map[string]*minitriton.Server
	next int
	// silent Pods are not started.
	silent bool
	// tls is how Pods speak gRPC that have --grpc-use-ssl=true; nil: none has.
	tls *tls.Config
}

var pods = core.SchemeGroupVersion.WithResource("pods")

// PrependReactor is the fake's own, which does not lock what a driver that runs already reads.
func (c *testCluster) PrependReactor(verb, resource string, react clienttesting.ReactionFunc) {
	c.Lock()
	defer c.Unlock()
	c.Fake.PrependReactor(verb, resource, react)
}

func newCluster(t *testing.T, objects ...runtime.Object) *testCluster {
	t.Helper()
	c := &testCluster{Clientset: fake.NewClientset(objects...), t: t, denied: map[string]bool{}, pods: map[string]*minitriton.Server{}}
	c.Fake.Resources = []*meta.APIResourceList{{GroupVersion: "resource.k8s.io/v1"}}
	c.Discovery().(*discovery.FakeDiscovery).FakedServerVersion = &version.Info{Major: "1", Minor: "37", GitVersion: "v1.37.2"}
	c.PrependReactor("create", "selfsubjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*authorization.SelfSubjectAccessReview).DeepCopy()
		r.Status.Allowed = !c.denied[r.Spec.ResourceAttributes.Verb+" "+r.Spec.ResourceAttributes.Resource]
		return true, r, nil
	})
	c.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		p := a.(clienttesting.CreateAction).GetObject().(*core.Pod)
		c.mu.Lock()
		c.next++
		p.UID = types.UID(fmt.Sprintf("uid-%d", c.next))
		c.mu.Unlock()
		p.CreationTimestamp, p.Status.Phase = meta.Now(), core.PodPending
		return false, nil, nil
	})
	c.PrependReactor("delete", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		d := a.(clienttesting.DeleteActionImpl)
		o, err := c.Tracker().Get(pods, namespace, d.Name)
		if err != nil {
			return true, nil, err
		}
		p := o.(*core.Pod).DeepCopy()
		grace := d.DeleteOptions.GracePeriodSeconds
		if len(p.Finalizers) == 0 && (grace != nil && *grace == 0 || p.Status.Phase == core.PodPending) {
			return false, nil, nil
		}
		now := meta.Now()
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, grace
		return true, nil, c.Tracker().Update(pods, p, namespace)
	})
	watched, err := c.CoreV1().Pods(namespace).Watch(context.Background(), meta.ListOptions{})
	require.NoError(t, err)
	var kubelet sync.WaitGroup
	kubelet.Go(func() {
		for e := range watched.ResultChan() {
			c.kubelet(e.Type, e.Object.(*core.Pod).DeepCopy())
		}
	})
	t.Cleanup(func() {
		watched.Stop()
		kubelet.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, s := range c.pods {
			_ = s.Close()
		}
	})
	return c
}

// kubelet does what that of the Pod's node would.
func (c *testCluster) kubelet(what watch.EventType, p *core.Pod) {
	c.mu.Lock()
	s, silent := c.pods[p.Name], c.silent
	c.mu.Unlock()
	switch {
	case what == watch.Deleted:
		if s != nil {
			_ = s.Close()
		}
	case p.DeletionTimestamp != nil:
		if s != nil {
			within, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			_ = s.Shutdown(within)
			_ = s.Close()
		}
		if len(p.Finalizers) == 0 {
			_ = c.Tracker().Delete(pods, namespace, p.Name)
		}
	case what == watch.Added && !silent:
		c.run(p)
	}
}

// run starts a Pod's server.
func (c *testCluster) run(p *core.Pod) {
	container := p.Spec.Containers[0]
	if container.Image == "no-triton" {
		p.Status.Phase = core.PodFailed
		p.Status.ContainerStatuses = []core.ContainerStatus{{Name: "server", Image: container.Image, State: core.ContainerState{Terminated: &core.ContainerStateTerminated{
			ExitCode: 128, Reason: "StartError", Message: `exec: "tritonserver": executable file not found in $PATH`,
		}}}}
		_ = c.Tracker().Update(pods, p, namespace)
		return
	}
	c.mu.Lock()
	c.next++
	ip := fmt.Sprintf("127.77.%d.%d", c.next/250, c.next%250+1)
	c.mu.Unlock()
	repository := ""
	for _, a := range container.Args {
		if dir, is := strings.CutPrefix(a, "--model-repository="); is {
			repository = dir
		}
	}
	s, err := minitriton.New(minitriton.Options{Repository: repository, Control: minitriton.ControlExplicit})
	if err == nil {
		var listeners minitriton.Listeners
		if listeners, err = minitriton.Listen(ip+":8001", ip+":8000", ip+":8002"); err == nil {
			if slices.Contains(container.Args, "--grpc-use-ssl=true") {
				listeners.GRPC = tls.NewListener(listeners.GRPC, c.tls)
			}
			err = s.Start(context.Background(), listeners)
		}
	}
	if err != nil {
		c.t.Error(err)
		return
	}
	c.mu.Lock()
	c.pods[p.Name] = s
	c.mu.Unlock()
	p.Status.Phase, p.Status.PodIP = core.PodRunning, ip
	p.Status.ContainerStatuses = []core.ContainerStatus{{Name: "server", State: core.ContainerState{Running: &core.ContainerStateRunning{StartedAt: meta.Now()}}}}
	_ = c.Tracker().Update(pods, p, namespace)
}

// crash ends a Pod's server as a fault of its does.
func (c *testCluster) crash(name string) {
	c.mu.Lock()
	_ = c.pods[name].Close()
	c.mu.Unlock()
	p := c.pod(name)
	p.Status.Phase = core.PodFailed
	p.Status.ContainerStatuses[0].State = core.ContainerState{Terminated: &core.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled", Message: "out of memory"}}
	require.NoError(c.t, c.Tracker().Update(pods, p, namespace))
}

func (c *testCluster) pod(name string) *core.Pod {
	o, err := c.Tracker().Get(pods, namespace, name)
	require.NoError(c.t, err)
	return o.(*core.Pod).DeepCopy()
}

// names are those of all Pods.
func (c *testCluster) names() (all []string) {
	list, err := c.CoreV1().Pods(namespace).List(context.Background(), meta.ListOptions{})
	require.NoError(c.t, err)
	for _, p := range list.Items {
		all = append(all, p.Name)
	}
	return all
}

// node is one that is ready.
func node(name string) *core.Node {
	return &core.Node{ObjectMeta: meta.ObjectMeta{Name: name}, Status: core.NodeStatus{Conditions: []core.NodeCondition{{Type: core.NodeReady, Status: core.ConditionTrue}}}}
}

// slice is what the DRA driver says of a node with two GPUs.
func slice(node string) *resource.ResourceSlice {
	text := func(s string) resource.DeviceAttribute { return resource.DeviceAttribute{StringValue: &s} }
	s := &resource.ResourceSlice{
		ObjectMeta: meta.ObjectMeta{Name: node + "-gpus"},
		Spec:       resource.ResourceSliceSpec{Driver: "gpu.nvidia.com", NodeName: &node, Pool: resource.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1}},
	}
	for i := range 2 {
		yes := true
		s.Spec.Devices = append(s.Spec.Devices, resource.Device{
			Name:       fmt.Sprintf("gpu-%d", i),
			Attributes: map[resource.QualifiedName]resource.DeviceAttribute{"type": text("gpu"), "uuid": text(fmt.Sprintf("GPU-%s-%d", node, i)), "productName": text("NVIDIA A100-SXM4-80GB"), "emulated": {BoolValue: &yes}},
			Capacity:   map[resource.QualifiedName]resource.DeviceCapacity{"memory": {Value: quantity.MustParse("80Gi")}},
		})
	}
	return s
}
