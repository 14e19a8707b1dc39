// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	core "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resource "k8s.io/api/resource/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	toolscache "k8s.io/client-go/tools/cache"
)

// cache has the cluster's objects that conch has to do with, kept up by watches: Pods of the release and their disruption budget, nodes, the slices of the GPU driver,
// and everybody's claims, which may hold GPUs.
type cache struct {
	release string
	pods    corelisters.PodNamespaceLister
	byLabel toolscache.Indexer
	nodes   corelisters.NodeLister
	slices  resourcelisters.ResourceSliceLister
	claims  resourcelisters.ResourceClaimLister
	budgets toolscache.Store
	// standIns are the Pods that stand for GPUs.
	standIns corelisters.PodNamespaceLister
	watches  sync.WaitGroup
	// stirred: nodes, slices or claims are others than when it was last cleared.
	stirred atomic.Bool
	// silent is when the API server did not answer for nodes the last time; nil: it always did.
	silent atomic.Pointer[time.Time]
}

func (c *cache) silentAt() time.Time {
	if at := c.silent.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// syncPatience bounds the first reading.
const syncPatience = 30 * time.Second

// watch begins to keep a cache, and returns once it is complete. Seen and gone are called with Pods, one at a time; the watches end with life.
func watch(ctx, life context.Context, o Options, seen, gone func(*core.Pod)) (*cache, error) {
	c := &cache{release: o.Release}
	pods := informer(o.Client, o.Client.CoreV1().Pods(o.Namespace), &core.Pod{}, LabelRelease+"="+o.Release, "")
	heard := noted[*core.NodeList]{o.Client.CoreV1().Nodes(), func() {
		now := time.Now()
		c.silent.Store(&now)
	}}
	nodes := informer(o.Client, heard, &core.Node{}, "", "")
	budgets := informer(o.Client, o.Client.PolicyV1().PodDisruptionBudgets(o.Namespace), &policyv1.PodDisruptionBudget{}, "", "metadata.name="+o.budgetName())
	all := map[string]toolscache.SharedIndexInformer{"Pods": pods, "Nodes": nodes, "PodDisruptionBudgets": budgets}
	c.budgets = budgets.GetStore()
	c.pods, c.nodes = corelisters.NewPodLister(pods.GetIndexer()).Pods(o.Namespace), corelisters.NewNodeLister(nodes.GetIndexer())
	c.byLabel = pods.GetIndexer()
	errLabel := pods.AddIndexers(toolscache.Indexers{byPartition: func(p any) ([]string, error) { return []string{p.(*core.Pod).Labels[labelPartition]}, nil }})
	_, err := pods.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(p any) { seen(p.(*core.Pod)) },
		UpdateFunc: func(_, p any) { seen(p.(*core.Pod)) },
		DeleteFunc: func(p any) {
			if last, unknown := p.(toolscache.DeletedFinalStateUnknown); unknown {
				p = last.Obj
			}
			if p, is := p.(*core.Pod); is {
				gone(p)
			}
		},
	})
	stir := toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { c.stirred.Store(true) }, UpdateFunc: func(any, any) { c.stirred.Store(true) }, DeleteFunc: func(any) { c.stirred.Store(true) },
	}
	_, errNodes := nodes.AddEventHandler(stir)
	errs := []error{errLabel, err, errNodes}
	standIns := informer(o.Client, o.Client.CoreV1().Pods(o.Namespace), &core.Pod{}, labelWantedBy+"="+o.Release, "")
	all["Pods that stand for GPUs"], c.standIns = standIns, corelisters.NewPodLister(standIns.GetIndexer()).Pods(o.Namespace)
	if o.DRA {
		slices := informer(o.Client, o.Client.ResourceV1().ResourceSlices(), &resource.ResourceSlice{}, "", "spec.driver="+o.GPUDriver)
		claims := informer(o.Client, o.Client.ResourceV1().ResourceClaims(""), &resource.ResourceClaim{}, "", "")
		all["ResourceSlices"], all["ResourceClaims"] = slices, claims
		c.slices, c.claims = resourcelisters.NewResourceSliceLister(slices.GetIndexer()), resourcelisters.NewResourceClaimLister(claims.GetIndexer())
		for _, i := range []toolscache.SharedIndexInformer{slices, claims} {
			_, err := i.AddEventHandler(stir)
			errs = append(errs, err)
		}
	}
	for _, i := range all {
		errs = append(errs, i.SetTransform(strip))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	within, cancel := context.WithTimeout(ctx, syncPatience)
	defer cancel()
	for _, i := range all {
		c.watches.Go(func() { i.RunWithContext(life) })
	}
	for kind, i := range all {
		if !toolscache.WaitFor(within, "", i.HasSyncedChecker()) {
			return nil, fmt.Errorf("the cluster's %s could not be read within %s", kind, syncPatience)
		}
	}
	return c, nil
}

// listing is a kind of objects of the cluster; L is a list of them.
type listing[L runtime.Object] interface {
	List(ctx context.Context, o meta.ListOptions) (L, error)
	Watch(ctx context.Context, o meta.ListOptions) (apiwatch.Interface, error)
}

// informer reads the objects of a kind that two selectors choose, and watches them.
func informer[L runtime.Object](client Client, kind listing[L], example runtime.Object, label, field string) toolscache.SharedIndexInformer {
	chosen := func(o meta.ListOptions) meta.ListOptions {
		o.LabelSelector, o.FieldSelector = label, field
		return o
	}
	return toolscache.NewSharedIndexInformer(toolscache.ToListWatcherWithWatchListSemantics(&toolscache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o meta.ListOptions) (runtime.Object, error) {
			return answered(ctx, func() (L, error) { return kind.List(ctx, chosen(o)) })
		},
		WatchFuncWithContext: func(ctx context.Context, o meta.ListOptions) (apiwatch.Interface, error) {
			return answered(ctx, func() (apiwatch.Interface, error) { return kind.Watch(ctx, chosen(o)) })
		},
	}, client), example, 0, toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc})
}

// askAgain is the longest pause before an API server that did not answer is asked for objects again. client-go alone pauses for up to a minute by and by: a conch that
// leads after an outage would not know the Pods for as long.
const askAgain = 2 * time.Second

// answered asks until the API server has answered, whatever it says, or ctx ends.
func answered[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	for pause := askAgain / 8; ; pause = min(2*pause, askAgain) {
		answer, err := ask()
		if !unanswered(err) {
			return answer, err
		}
		select {
		case <-ctx.Done():
			return answer, err
		case <-time.After(pause):
		}
	}
}

// close waits until the watches have ended.
func (c *cache) close() { c.watches.Wait() }

// ofRelease are the Pods of the release.
func (c *cache) ofRelease() []*core.Pod {
	all, err := c.pods.List(labels.Everything())
	if err != nil {
		panic(err) // it is a map
	}
	return all
}

// standInPods are the Pods that stand for GPUs.
func (c *cache) standInPods() []*core.Pod {
	all, err := c.standIns.List(labels.SelectorFromSet(labels.Set{labelWantedBy: c.release}))
	if err != nil {
		panic(err) // it is a map
	}
	return all
}

// byPartition finds Pods by the label of their partition.
const byPartition = "partition"

// ofPartition are the Pods of the release with the label of a partition.
func (c *cache) ofPartition(label string) (all []*core.Pod) {
	found, err := c.byLabel.ByIndex(byPartition, label)
	if err != nil {
		panic(err) // there is such an index
	}
	for _, p := range found {
		all = append(all, p.(*core.Pod))
	}
	return all
}

// pod is one of them; nil where there is none of the name.
func (c *cache) pod(name string) *core.Pod {
	p, err := c.pods.Get(name)
	if err != nil {
		return nil
	}
	return p
}

// budget is a disruption budget; nil where there is none, or none is known yet.
func (c *cache) budget(namespace, name string) *policyv1.PodDisruptionBudget {
	found, is, err := c.budgets.GetByKey(namespace + "/" + name)
	if err != nil {
		panic(err) // it is a map
	}
	if !is {
		return nil
	}
	return found.(*policyv1.PodDisruptionBudget)
}

// gpusOf is how many GPUs of the device plugin a node has.
func (c *cache) gpusOf(node, gpus string) int {
	n, err := c.nodes.Get(node)
	if err != nil {
		return 0
	}
	count := n.Status.Allocatable[core.ResourceName(gpus)]
	return int(count.Value())
}

// world is what the cluster says of GPUs.
func (c *cache) world() (w world) {
	var errs [3]error
	w.nodes, errs[0] = c.nodes.List(labels.Everything())
	if c.slices != nil {
		w.slices, errs[1] = c.slices.List(labels.Everything())
		w.claims, errs[2] = c.claims.List(labels.Everything())
	}
	if err := errors.Join(errs[:]...); err != nil {
		panic(err) // they are maps
	}
	return w
}

// strip drops what conch does not read: of a node with many images that is most of it. It leaves the object itself as it is, which others may read.
func strip(object any) (any, error) {
	switch o := object.(type) {
	case *core.Pod:
		c := *o
		c.ManagedFields = nil
		return &c, nil
	case *core.Node:
		c := *o
		c.ManagedFields, c.Annotations, c.Status.Images, c.Status.VolumesAttached, c.Status.VolumesInUse = nil, nil, nil, nil, nil
		return &c, nil
	case *resource.ResourceSlice:
		c := *o
		c.ManagedFields = nil
		return &c, nil
	case *resource.ResourceClaim:
		c := *o
		c.ManagedFields = nil
		return &c, nil
	}
	return object, nil
}
