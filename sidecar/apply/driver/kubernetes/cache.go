// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	core "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resource "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
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
	// podsWatched and nodesWatched say whether what is known of them is up to date.
	podsWatched, nodesWatched *watched
	// stirred: nodes, slices or claims are others than when it was last cleared.
	stirred atomic.Bool
}

// silentAt is when the API server did not answer the last time.
func (c *cache) silentAt() time.Time { return c.nodesWatched.silentAt() }

// watch begins to keep a cache, and returns once it is complete. Seen and gone are called with Pods, one at a time; the watches end with life.
func watch(ctx, life context.Context, o Options, seen, gone func(*core.Pod)) (*cache, error) {
	c := &cache{release: o.Release}
	pods := informer(o.Client, o.Logger, "Pods", o.Client.CoreV1().Pods(o.Namespace), &core.Pod{}, LabelRelease+"="+o.Release, "")
	nodes := informer(o.Client, o.Logger, "Nodes", o.Client.CoreV1().Nodes(), &core.Node{}, "", "")
	budgets := informer(o.Client, o.Logger, "PodDisruptionBudgets", o.Client.PolicyV1().PodDisruptionBudgets(o.Namespace), &policyv1.PodDisruptionBudget{}, "", "metadata.name="+o.budgetName())
	standIns := informer(o.Client, o.Logger, "Pods that stand for GPUs", o.Client.CoreV1().Pods(o.Namespace), &core.Pod{}, labelWantedBy+"="+o.Release, "")
	all := []*watched{pods, nodes, budgets, standIns}
	c.podsWatched, c.nodesWatched = pods, nodes
	c.standIns = corelisters.NewPodLister(standIns.GetIndexer()).Pods(o.Namespace)
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
	if o.DRA {
		slices := informer(o.Client, o.Logger, "ResourceSlices", o.Client.ResourceV1().ResourceSlices(), &resource.ResourceSlice{}, "", "spec.driver="+o.GPUDriver)
		claims := informer(o.Client, o.Logger, "ResourceClaims", o.Client.ResourceV1().ResourceClaims(""), &resource.ResourceClaim{}, "", "")
		all = append(all, slices, claims)
		c.slices, c.claims = resourcelisters.NewResourceSliceLister(slices.GetIndexer()), resourcelisters.NewResourceClaimLister(claims.GetIndexer())
		for _, i := range []*watched{slices, claims} {
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
	for _, i := range all {
		if err := i.synced(within); err != nil {
			return nil, err
		}
	}
	return c, nil
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
