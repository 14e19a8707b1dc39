// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	core "k8s.io/api/core/v1"
	resource "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	discovery "k8s.io/client-go/discovery/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const volume = `{"persistentVolumeClaim": {"claimName": "models"}}`

func options(c *testCluster) kubernetes.Options {
	return kubernetes.Options{
		Connection: kubernetes.Connection{Client: c.Clientset, Namespace: namespace}, Image: "tritonserver:1", ModelsPath: "/models", ModelsVolume: volume,
		StartTimeout: 20 * time.Second, DrainTimeout: 5 * time.Second, StopTimeout: 5 * time.Second,
	}
}

// begin makes a driver of a cluster that is found fit for it.
func begin(ctx context.Context, o kubernetes.Options) (_ *kubernetes.Driver, err error) {
	if o.DRA, err = o.Check(ctx); err != nil {
		return nil, err
	}
	return kubernetes.New(ctx, o)
}

func open(t *testing.T, o kubernetes.Options) *kubernetes.Driver {
	t.Helper()
	d, err := begin(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// part is a spec of a partition of node-1's first GPU.
func part(t *testing.T, d *kubernetes.Driver, id string, share uint32) driver.Spec {
	g := d.Nodes()[0].GetGpus()[0]
	p := &policy.Partition{Id: id, Node: "node-1", Gpus: []string{g.GetId()}, ThreadPercentage: share, MemoryLimitBytes: 8 << 30}
	dir := filepath.Join(t.TempDir(), "m")
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "1"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.pbtxt"), []byte(`backend: "python"
max_batch_size: 8
input { name: "INPUT" data_type: TYPE_FP32 dims: 1 }
output { name: "OUTPUT" data_type: TYPE_FP32 dims: 1 }
parameters { key: "conch_emulate_beta_us" value { string_value: "100" } }
`), 0o644))
	return driver.Spec{Partition: p, GPU: g, Hash: d.Hash(p, g), RepositoryDir: filepath.Dir(dir)}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	require.Eventually(t, holds, 30*time.Second, 20*time.Millisecond, what)
}

// Two partitions of one GPU are two Pods that share one claim. They load and unload models, and end.
func TestTwoPartitionsShareAGPU(t *testing.T) {
	c := newCluster(t, node("node-1"), slice("node-1"))
	d := open(t, options(c))
	require.Equal(t, "node-1.gpu-0", d.Nodes()[0].GetGpus()[0].GetId())
	var servers []driver.Server
	for id, share := range map[string]uint32{"node-1.gpu-0/a": 40, "node-1.gpu-0/b": 60} {
		s, err := d.Start(t.Context(), part(t, d, id, share))
		require.NoError(t, err)
		servers = append(servers, s)
		require.NoError(t, s.Live(t.Context()))
		require.NoError(t, s.Load(t.Context(), "m"))
		models, err := s.Models(t.Context())
		require.NoError(t, err)
		require.Equal(t, []string{"m"}, models)
	}
	require.Len(t, c.names(), 2)
	claims, err := c.ResourceV1().ResourceClaims(namespace).List(t.Context(), meta.ListOptions{})
	require.NoError(t, err)
	require.Len(t, claims.Items, 1)
	require.Contains(t, claims.Items[0].Spec.Devices.Requests[0].Exactly.Selectors[0].CEL.Expression, `uuid == "GPU-node-1-0"`)
	require.Contains(t, string(claims.Items[0].Spec.Devices.Config[0].Opaque.Parameters.Raw), "MPS")
	for _, name := range c.names() {
		p := c.pod(name)
		require.Equal(t, claims.Items[0].Name, *p.Spec.ResourceClaims[0].ResourceClaimName)
		require.True(t, slices.ContainsFunc(p.Status.Conditions, func(c core.PodCondition) bool { return c.Type == "conch.io/answers" && c.Status == core.ConditionTrue }))
		share := p.Annotations["conch.io/share"][:2]
		require.Contains(t, p.Spec.Containers[0].Env, core.EnvVar{Name: "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", Value: share})
		require.Contains(t, p.Spec.Containers[0].Env, core.EnvVar{Name: "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", Value: "0=8192M"})
	}
	eventually(t, "the disruption budget lets one go", func() bool {
		b, err := c.PolicyV1().PodDisruptionBudgets(namespace).Get(t.Context(), "conch-servers", meta.GetOptions{})
		return err == nil && b.Spec.MinAvailable.IntValue() == 1
	})
	for _, s := range servers {
		require.NoError(t, s.Stop(t.Context()))
		<-s.Done()
	}
	require.Empty(t, c.names())
	eventually(t, "a claim that no Pod uses goes", func() bool {
		_, err := c.ResourceV1().ResourceClaims(namespace).Get(t.Context(), claims.Items[0].Name, meta.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// Another conch finds the Pods and goes on with them as they are: the same Pods, their models loaded.
func TestTheNextConchFindsThePods(t *testing.T) {
	c := newCluster(t, node("node-1"), slice("node-1"))
	first, err := begin(t.Context(), options(c))
	require.NoError(t, err)
	spec := part(t, first, "p", 100)
	s, err := first.Start(t.Context(), spec)
	require.NoError(t, err)
	require.NoError(t, s.Load(t.Context(), "m"))
	require.NoError(t, s.Leave())
	<-s.Done()
	require.NoError(t, first.Close())

	second := open(t, options(c))
	found, err := second.Find(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, spec.Hash, found[0].Spec().Hash)
	require.Equal(t, spec.RepositoryDir, found[0].Spec().RepositoryDir)
	require.Equal(t, "p", found[0].Spec().Partition.GetId())
	require.Equal(t, spec.Hash, second.Hash(found[0].Spec().Partition, found[0].Spec().GPU), "what it would start now is the same")
	models, err := found[0].Models(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"m"}, models, "without a load")
	require.Equal(t, []string{"conch-p-1"}, c.names())
	require.NoError(t, found[0].Kill(t.Context()))
	<-found[0].Done()
	require.Empty(t, c.names())
}

// A conch that does not lead any more takes no model from a server that it was about to end: another one may serve from it.
func TestAServerIsNotEndedByWhoDoesNotLead(t *testing.T) {
	c := newCluster(t, node("node-1"), slice("node-1"))
	o := options(c)
	var led atomic.Bool
	led.Store(true)
	o.Fence = func() error {
		if led.Load() {
			return nil
		}
		return kubernetes.ErrNotLeading
	}
	d := open(t, o)
	s, err := d.Start(t.Context(), part(t, d, "p", 100))
	require.NoError(t, err)
	require.NoError(t, s.Load(t.Context(), "m"))
	led.Store(false)
	within, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.ErrorIs(t, s.Stop(within), kubernetes.ErrNotLeading)
	models, err := s.Models(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"m"}, models)
	require.Equal(t, []string{"conch-p-1"}, c.names())
	led.Store(true)
	require.NoError(t, s.Kill(t.Context()))
	<-s.Done()
}

// A server that dies is known to be dead, with the reason; its Pod goes, and the next one has a name of its own.
func TestAServerDies(t *testing.T) {
	c := newCluster(t, node("node-1"), slice("node-1"))
	d := open(t, options(c))
	s, err := d.Start(t.Context(), part(t, d, "p", 100))
	require.NoError(t, err)
	c.crash("conch-p-1")
	<-s.Done()
	require.Contains(t, s.Death(), "exit status 137 (OOMKilled): out of memory")
	again, err := d.Start(t.Context(), part(t, d, "p", 100))
	require.NoError(t, err)
	eventually(t, "the dead Pod goes", func() bool { return slices.Equal(c.names(), []string{"conch-p-2"}) })
	require.NoError(t, again.Stop(t.Context()))
}

// A Pod that others delete is reported while it still serves.
func TestAPodIsEvicted(t *testing.T) {
	c := newCluster(t, node("node-1"), slice("node-1"))
	leaving := make(chan string, 4)
	o := options(c)
	o.Leaving = func(partition, reason string) { leaving <- partition + ": " + reason }
	d := open(t, o)
	s, err := d.Start(t.Context(), part(t, d, "p", 100))
	require.NoError(t, err)
	require.NoError(t, c.CoreV1().Pods(namespace).Delete(t.Context(), "conch-p-1", meta.DeleteOptions{}))
	require.Equal(t, "p: pod conch-p-1 is being deleted, not by conch", <-leaving)
	<-s.Done()
	require.Equal(t, "pod conch-p-1 was deleted", s.Death())
	require.Empty(t, leaving, "once, and not when conch itself ends a server")
}

// Without the lease nothing of the cluster is changed, and what was to be removed is removed once it is back.
func TestWithoutTheLeaseNothingIsChanged(t *testing.T) {
	c := newCluster(t, node("node-1"), slice("node-1"))
	var lost atomic.Bool
	o := options(c)
	o.Fence = func() error {
		if lost.Load() {
			return kubernetes.ErrNotLeading
		}
		return nil
	}
	d := open(t, o)
	s, err := d.Start(t.Context(), part(t, d, "p", 100))
	require.NoError(t, err)
	lost.Store(true)
	_, err = d.Start(t.Context(), part(t, d, "q", 100))
	require.ErrorIs(t, err, kubernetes.ErrNotLeading)
	require.ErrorIs(t, s.Kill(t.Context()), kubernetes.ErrNotLeading)
	require.Equal(t, []string{"conch-p-1"}, c.names())
	lost.Store(false)
	<-s.Done()
	eventually(t, "what was to be killed is", func() bool { return len(c.names()) == 0 })
}

// Each refusal names its reason, and what to do.
func TestRefusals(t *testing.T) {
	taken := func(c *testCluster) {
		claim := &resource.ResourceClaim{
			ObjectMeta: meta.ObjectMeta{Name: "other", Namespace: "elsewhere", Labels: map[string]string{"conch.io/release": "other"}},
			Status: resource.ResourceClaimStatus{Allocation: &resource.AllocationResult{Devices: resource.DeviceAllocationResult{Results: []resource.DeviceRequestAllocationResult{
				{Driver: "gpu.nvidia.com", Pool: "node-1", Device: "gpu-0"}, {Driver: "gpu.nvidia.com", Pool: "node-1", Device: "gpu-1"},
			}}}},
		}
		_, err := c.ResourceV1().ResourceClaims("elsewhere").Create(context.Background(), claim, meta.CreateOptions{})
		require.NoError(c.t, err)
	}
	for name, r := range map[string]struct {
		change func(*testCluster)
		option func(*kubernetes.Options)
		want   string
	}{
		"an old cluster": {func(c *testCluster) { c.Discovery().(*discovery.FakeDiscovery).FakedServerVersion.Minor = "29" }, nil, "the cluster is Kubernetes v1.37.2; conch needs 1.30 or later"},
		"permissions": {func(c *testCluster) {
			c.denied["create pods"], c.denied["list nodes"], c.denied["update leases"] = true, true, true
		}, nil, "conch may not: create pods in namespace serving; list nodes in the cluster; update leases.coordination.k8s.io in namespace serving. docs/kubernetes.md has the role"},
		"no GPUs": {func(c *testCluster) {
			require.NoError(t, c.ResourceV1().ResourceSlices().Delete(context.Background(), "node-1-gpus", meta.DeleteOptions{}))
		}, nil, "no node of the cluster has GPUs: none offers nvidia.com/gpu, and no ResourceSlice is of driver gpu.nvidia.com"},
		"two releases":     {taken, nil, "every GPU of the cluster is claimed by others: node-1.gpu-0 is claimed by release other in namespace elsewhere"},
		"no owner":         {nil, func(o *kubernetes.Options) { o.Owner = "absent" }, `driver.kubernetes.owner: configmaps "absent" not found`},
		"a wrong template": {nil, func(o *kubernetes.Options) { o.Template = `{"spec": {"tolerationz": []}}` }, `podTemplate: json: unknown field "tolerationz"`},
		"what is ours":     {nil, func(o *kubernetes.Options) { o.Template = `{"spec": {"nodeName": "x", "containers": []}}` }, "podTemplate: spec.nodeName is set by conch"},
		"a second start": {nil, func(o *kubernetes.Options) {
			o.Template = `{"spec": {"containers": [{"name": "beside", "restartPolicy": "Always"}, {"name": "server", "restartPolicy": "Always"}]}}`
		}, "podTemplate: restartPolicy of container server is set by conch"},
		"no models": {nil, func(o *kubernetes.Options) { o.ModelsVolume = "" }, "models.volume is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, node("node-1"), slice("node-1"))
			if r.change != nil {
				r.change(c)
			}
			o := options(c)
			if r.option != nil {
				r.option(&o)
			}
			_, err := begin(t.Context(), o)
			require.ErrorContains(t, err, r.want)
		})
	}
}

// A server that cannot start says why, and leaves no Pod.
func TestStartsThatFail(t *testing.T) {
	c := newCluster(t, node("node-1"), slice("node-1"))
	o := options(c)
	o.Image = "no-triton"
	d := open(t, o)
	_, err := d.Start(t.Context(), part(t, d, "p", 100))
	require.ErrorContains(t, err, `partition p: image no-triton has no tritonserver that can be started: exec: "tritonserver": executable file not found in $PATH; name an image`)
	eventually(t, "it leaves no Pod", func() bool { return len(c.names()) == 0 })

	c.mu.Lock()
	c.silent = true
	c.mu.Unlock()
	ended, cancel := context.WithCancelCause(t.Context())
	q, failed := part(t, d, "q", 100), make(chan error, 1)
	go func() {
		_, err := d.Start(ended, q)
		failed <- err
	}()
	eventually(t, "the Pod is there", func() bool { return len(c.names()) == 1 })
	cancel(errors.New("not wanted any more"))
	require.ErrorContains(t, <-failed, "pod conch-q-1 did not start: not wanted any more")
	eventually(t, "it leaves no Pod", func() bool { return len(c.names()) == 0 })
}

// A DRA driver without MPS is found out by the first Pods: its own complaint, and what to set. One request reads what is said of all Pods that wait.
func TestADRADriverWithoutMPS(t *testing.T) {
	c := newCluster(t, node("node-1"), slice("node-1"))
	c.mu.Lock()
	c.silent = true
	c.mu.Unlock()
	d := open(t, options(c))
	const many = 10
	failed := make(chan error, many)
	for i := range many {
		spec := part(t, d, fmt.Sprintf("p%d", i), 10)
		go func() {
			_, err := d.Start(t.Context(), spec)
			failed <- err
		}()
	}
	eventually(t, "the Pods are there", func() bool { return len(c.names()) == many })
	for _, name := range c.names() {
		p := c.pod(name)
		_, err := c.CoreV1().Events(namespace).Create(t.Context(), &core.Event{
			ObjectMeta: meta.ObjectMeta{Name: "of-" + name, Namespace: namespace}, InvolvedObject: core.ObjectReference{Kind: "Pod", Name: p.Name, UID: p.UID},
			Type: core.EventTypeWarning, Reason: "FailedPrepareDynamicResources", Message: "strategy MPS: feature gate MPSSupport is off",
		}, meta.CreateOptions{})
		require.NoError(t, err)
	}
	for range many {
		err := <-failed
		require.ErrorContains(t, err, ": FailedPrepareDynamicResources: strategy MPS: feature gate MPSSupport is off. Shares of a GPU need the feature gate MPSSupport of NVIDIA's DRA driver; without it say driver.kubernetes.gpus.sharing: none")
	}
	eventually(t, "they leave no Pod", func() bool { return len(c.names()) == 0 })
	asked := 0
	for _, a := range c.Actions() {
		if a.Matches("list", "events") {
			asked++
		}
	}
	require.Less(t, asked, many, "questions about events")
}

// A GPU that is not prepared yet, since the driver or its MPS control daemon is starting, is waited for.
func TestAGPUThatIsNotPreparedYet(t *testing.T) {
	c := newCluster(t, node("node-1"), slice("node-1"))
	c.mu.Lock()
	c.silent = true
	c.mu.Unlock()
	d := open(t, options(c))
	spec, started, failed := part(t, d, "p", 40), make(chan driver.Server, 1), make(chan error, 1)
	go func() {
		s, err := d.Start(t.Context(), spec)
		started <- s
		failed <- err
	}()
	eventually(t, "the Pod is there", func() bool { return len(c.names()) == 1 })
	p := c.pod(c.names()[0])
	_, err := c.CoreV1().Events(namespace).Create(t.Context(), &core.Event{
		ObjectMeta: meta.ObjectMeta{Name: "of-it", Namespace: namespace}, InvolvedObject: core.ObjectReference{Kind: "Pod", Name: p.Name, UID: p.UID},
		Type: core.EventTypeWarning, Reason: "FailedPrepareDynamicResources", Message: "the MPS control daemon is not ready",
	}, meta.CreateOptions{})
	require.NoError(t, err)
	eventually(t, "the complaint is read", func() bool {
		return slices.ContainsFunc(c.Actions(), func(a clienttesting.Action) bool { return a.Matches("list", "events") })
	})
	c.run(p)
	s := <-started
	require.NoError(t, <-failed)
	require.NoError(t, s.Stop(t.Context()))
}

// What conch's event log says of a partition is an event of its latest Pod.
func TestEventsAreOfThePod(t *testing.T) {
	c := newCluster(t, node("node-1"), slice("node-1"))
	d := open(t, options(c))
	s, err := d.Start(t.Context(), part(t, d, "node-1.gpu-0/a", 100))
	require.NoError(t, err)
	at := time.Unix(1000, 0)
	d.Report("another", "partition_up", "of no Pod", false, at)
	d.Report("node-1.gpu-0/a", "place_ejected", "model m fails there", true, at)
	var all []core.Event
	eventually(t, "the event is written", func() bool {
		list, err := c.CoreV1().Events(namespace).List(t.Context(), meta.ListOptions{})
		all = list.Items
		return err == nil && len(all) > 0
	})
	require.Len(t, all, 1)
	e := all[0]
	require.Equal(t, c.names()[0], e.InvolvedObject.Name)
	require.Equal(t, c.pod(c.names()[0]).UID, e.InvolvedObject.UID)
	require.Equal(t, []string{"PlaceEjected", "model m fails there", "Warning"}, []string{e.Reason, e.Message, e.Type})
	require.True(t, e.LastTimestamp.Time.Equal(at))
	require.NoError(t, s.Stop(t.Context()))
}

// What the cluster's set-up cannot do is refused before anything is started.
func TestWhatASetUpCanDo(t *testing.T) {
	dra := &policy.GPU{Id: "n.gpu-0", Uuid: "GPU-1"}
	plugin := &policy.GPU{Id: "n.gpu-0"}
	for _, sharing := range []kubernetes.Sharing{kubernetes.SharingMPS, kubernetes.SharingNone} {
		c := newCluster(t, node("node-1"), slice("node-1"))
		o := options(c)
		o.Sharing = sharing
		d := open(t, o)
		share := func(n uint32) *policy.Partition {
			return &policy.Partition{Id: "p", Node: "n", Gpus: []string{"n.gpu-0"}, ThreadPercentage: n}
		}
		require.NoError(t, d.Refused(share(100), dra))
		require.NoError(t, d.Refused(share(100), plugin))
		require.ErrorContains(t, d.Refused(share(40), plugin), "the device plugin gives out as a whole")
		if err := d.Refused(share(40), dra); sharing == kubernetes.SharingMPS {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "driver.kubernetes.gpus.sharing is none")
		}
		require.ErrorContains(t, d.Refused(&policy.Partition{Id: "p", Node: "n"}, nil), "on GPUs alone")
	}
}
