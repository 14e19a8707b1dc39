// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/conch-serving/conch/internal/bubble"
	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/apply/driver"
	"github.com/conch-serving/conch/sidecar/apply/driver/kubernetes"
)

// answering reports whether a Pod has its readiness gate.
func answering(p *core.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c core.PodCondition) bool {
		return c.Type == "conch.io/answers" && c.Status == core.ConditionTrue
	})
}

// Of many starts at once few have asked whether this conch leads when it loses the lease. The others are not made.
func TestStartsAskTheFenceWhenTheirTurnComes(t *testing.T) {
	const starts = 60
	n := node("node-1")
	n.Labels = map[string]string{"nvidia.com/gpu.product": "Tesla-T4"}
	n.Status.Allocatable = core.ResourceList{"nvidia.com/gpu": quantity.MustParse(fmt.Sprint(starts))}
	c := newCluster(t, n)
	c.silent = true
	entered, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var created, asked atomic.Int64
	c.PrependReactor("create", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		once.Do(func() { close(entered) })
		<-release
		created.Add(1)
		return false, nil, nil
	})
	var led atomic.Bool
	led.Store(true)
	o := options(c)
	o.Fence = func() error {
		asked.Add(1)
		if led.Load() {
			return nil
		}
		return kubernetes.ErrNotLeading
	}
	d := open(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var refused atomic.Int64
	var all sync.WaitGroup
	for i := range starts {
		g := d.Nodes()[0].GetGpus()[i]
		p := &policy.Partition{Id: fmt.Sprintf("p%d", i), Node: "node-1", Gpus: []string{g.GetId()}, ThreadPercentage: 100}
		all.Go(func() {
			_, err := d.Start(ctx, driver.Spec{Partition: p, GPU: g, Hash: d.Hash(p, g), RepositoryDir: "/models"})
			if errors.Is(err, kubernetes.ErrNotLeading) && refused.Add(1) == starts-16 {
				cancel() // what was made in time would wait for its Pod
			}
		})
	}
	<-entered
	eventually(t, "those whose turn it is have asked", func() bool { return asked.Load() >= 16 })
	led.Store(false)
	close(release)
	all.Wait()
	require.LessOrEqual(t, created.Load(), int64(16))
}

// The API server makes a Pod and does not say so. The Pod goes, and the partition gets another.
func TestAPodOfWhichTheAPIServerSaidNothing(t *testing.T) {
	c := newCluster(t, node("node-1"), slice("node-1"))
	d := open(t, options(c))
	var once sync.Once
	c.PrependReactor("create", "pods", func(a clienttesting.Action) (handled bool, _ runtime.Object, err error) {
		once.Do(func() {
			p := a.(clienttesting.CreateAction).GetObject().(*core.Pod).DeepCopy()
			p.UID, p.CreationTimestamp = types.UID("unheard"), meta.Now()
			handled, err = true, c.Tracker().Create(pods, p, namespace)
		})
		if handled && err == nil {
			err = apierrors.NewTimeoutError("etcd: request timed out", 1)
		}
		return handled, nil, err
	})
	_, err := d.Start(t.Context(), part(t, d, "p", 100))
	require.ErrorContains(t, err, "timed out")
	eventually(t, "the Pod goes", func() bool { return len(c.names()) == 0 })
	s, err := d.Start(t.Context(), part(t, d, "p", 100))
	require.NoError(t, err)
	// Pods are removed before the disruption budget is set in order.
	budgets := c.PolicyV1().PodDisruptionBudgets(namespace)
	require.NoError(t, budgets.Delete(t.Context(), "conch-servers", meta.DeleteOptions{}))
	eventually(t, "the cluster is put in order once more", func() bool {
		_, err := budgets.Get(t.Context(), "conch-servers", meta.GetOptions{})
		return err == nil
	})
	require.Equal(t, []string{"conch-p-2"}, c.names())
	require.NoError(t, s.Kill(t.Context()))
	<-s.Done()
}

// The conch that led before had asked for a Pod, which is made only when this one has looked for servers. It is nobody's, and goes.
func TestAPodOfTheConchBefore(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t, node("node-1"), slice("node-1"))
		c.silent = true
		d := open(t, options(c))
		require.NoError(t, c.Tracker().Add(ofRelease("conch-early-1", "1", "7")))
		time.Sleep(time.Minute)
		require.Len(t, c.names(), 1, "it is not looked for yet")
		_, err := d.Find(t.Context())
		require.Error(t, err, "none that conch made")
		time.Sleep(time.Second)
		require.Empty(t, c.names())
		require.NoError(t, c.Tracker().Add(ofRelease("conch-late-1", "2", "8")))
		ctx, stop := context.WithCancel(t.Context())
		failed := make(chan error, 1)
		go func() {
			_, err := d.Start(ctx, part(t, d, "p", 100))
			failed <- err
		}()
		time.Sleep(5 * time.Second)
		require.Equal(t, []string{"conch-p-1"}, c.names())
		stop()
		require.Error(t, <-failed)
	})
}

// An outage follows, in which this conch does not lead. The Pod comes to be known long after that, and goes all the same.
func TestAPodOfWhichTheAPIServerSaidNothingBeforeAnOutage(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t, node("node-1"), slice("node-1"))
		c.silent = true
		var unheard *core.Pod
		c.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
			unheard = a.(clienttesting.CreateAction).GetObject().(*core.Pod).DeepCopy()
			return true, nil, apierrors.NewTimeoutError("etcd: request timed out", 1)
		})
		var led atomic.Bool
		led.Store(true)
		o := options(c)
		o.Fence = func() error {
			if led.Load() {
				return nil
			}
			return kubernetes.ErrNotLeading
		}
		d := open(t, o)
		_, err := d.Start(t.Context(), part(t, d, "p", 100))
		require.ErrorContains(t, err, "timed out")
		led.Store(false)
		time.Sleep(10 * time.Minute)
		led.Store(true)
		time.Sleep(time.Minute)
		unheard.UID, unheard.CreationTimestamp = types.UID("unheard"), meta.Now()
		require.NoError(t, c.Tracker().Create(pods, unheard, namespace))
		time.Sleep(time.Minute)
		require.Empty(t, c.names())
	})
}

// A Pod whose readiness gate could not be set gets it later, from the same conch or from the next one.
func TestTheReadinessGateIsSetLater(t *testing.T) {
	c := newCluster(t, node("node-1"), slice("node-1"))
	var deaf atomic.Bool
	deaf.Store(true)
	c.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return deaf.Load(), nil, apierrors.NewInternalError(errors.New("no leader"))
	})
	first, err := begin(t.Context(), options(c))
	require.NoError(t, err)
	var started []driver.Server
	for _, id := range []string{"p", "q"} {
		s, err := first.Start(t.Context(), part(t, first, id, 40))
		require.NoError(t, err)
		started = append(started, s)
	}
	require.False(t, answering(c.pod("conch-p-1")))
	deaf.Store(false)
	eventually(t, "both have it", func() bool { return answering(c.pod("conch-p-1")) && answering(c.pod("conch-q-1")) })
	for _, s := range started {
		require.NoError(t, s.Leave())
	}
	require.NoError(t, first.Close())

	for _, name := range c.names() {
		p := c.pod(name)
		p.Status.Conditions = nil
		require.NoError(t, c.Tracker().Update(pods, p, namespace))
	}
	second := open(t, options(c))
	found, err := second.Find(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 2)
	for _, s := range found {
		require.NoError(t, s.Live(t.Context()))
	}
	eventually(t, "both have it again", func() bool { return answering(c.pod("conch-p-1")) && answering(c.pod("conch-q-1")) })
	for _, s := range found {
		require.NoError(t, s.Kill(t.Context()))
		<-s.Done()
	}
}

// A Pod that has an address and no server yet is not taken over: it has not started.
func TestAPodWhoseServerHasNotStartedIsNotFound(t *testing.T) {
	c := newCluster(t, node("node-1"), slice("node-1"))
	first, err := begin(t.Context(), options(c))
	require.NoError(t, err)
	s, err := first.Start(t.Context(), part(t, first, "p", 100))
	require.NoError(t, err)
	require.NoError(t, s.Leave())
	require.NoError(t, first.Close())
	p := c.pod("conch-p-1")
	p.Status.ContainerStatuses[0].State = core.ContainerState{Waiting: &core.ContainerStateWaiting{Reason: "ContainerCreating"}}
	require.NoError(t, c.Tracker().Update(pods, p, namespace))
	second := open(t, options(c))
	found, err := second.Find(t.Context())
	require.NoError(t, err)
	require.Empty(t, found)
	eventually(t, "it is removed", func() bool { return len(c.names()) == 0 })
}

// Stand-ins of before gpus.grow was turned off go.
func TestStandInsGoWithTheSetting(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		c := newCluster(t, node("node-1"), slice("node-1"))
		c.silent = true
		o := options(c)
		o.Grow = true
		d, err := begin(t.Context(), o)
		require.NoError(t, err)
		d.Want(map[string]int{a100: 4})
		time.Sleep(3 * time.Second)
		require.Len(t, c.names(), 2)
		require.NoError(t, d.Close())
		o.Grow = false
		d, err = begin(t.Context(), o)
		require.NoError(t, err)
		time.Sleep(10 * time.Second)
		require.Empty(t, c.names())
		require.NoError(t, d.Close())
	})
}

// A dead Pod that a finalizer of others keeps is deleted once.
func TestAPodThatOthersKeep(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		dead := ofRelease("p-1", "1", "7")
		dead.Finalizers, dead.Status.Phase = []string{"example.com/keep"}, core.PodFailed
		c := newCluster(t, node("node-1"), slice("node-1"))
		c.silent = true
		require.NoError(t, c.Tracker().Add(dead))
		open(t, options(c))
		time.Sleep(time.Minute)
		require.Equal(t, []string{"p-1"}, c.names())
		deleted := 0
		for _, a := range c.Actions() {
			if a.Matches("delete", "pods") {
				deleted++
			}
		}
		require.Equal(t, 1, deleted)
	})
}
