// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	core "k8s.io/api/core/v1"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	toolscache "k8s.io/client-go/tools/cache"
)

// cache has the cluster's objects that conch has to do with, kept up by watches: Pods of the release, claims of any conch in the namespace,
// nodes, and the slices of the GPU driver.
type cache struct {
	o         Options
	pods      corelisters.PodNamespaceLister
	nodes     corelisters.NodeLister
	slices    resourcelisters.ResourceSliceLister
	claims    resourcelisters.ResourceClaimNamespaceLister
	factories []informers.SharedInformerFactory
	// stirred: nodes, slices or claims are others than when it was last cleared.
	stirred atomic.Bool
}

// syncPatience bounds the first reading.
const syncPatience = 30 * time.Second

// watch begins to keep a cache, and returns once it is complete. Seen and gone are called with Pods, one at a time; the watches end with life.
func watch(ctx, life context.Context, o Options, dra bool, seen, gone func(*core.Pod)) (*cache, error) {
	c := &cache{o: o}
	factory := func(namespace, label, field string) informers.SharedInformerFactory {
		options := []informers.SharedInformerOption{informers.WithTransform(strip), informers.WithTweakListOptions(func(l *meta.ListOptions) { l.LabelSelector, l.FieldSelector = label, field })}
		if namespace != "" {
			options = append(options, informers.WithNamespace(namespace))
		}
		f := informers.NewSharedInformerFactoryWithOptions(o.Client, 0, options...)
		c.factories = append(c.factories, f)
		return f
	}
	pods := factory(o.Namespace, labelRelease+"="+o.Release, "").Core().V1().Pods()
	nodes := factory("", "", "").Core().V1().Nodes()
	c.pods, c.nodes = pods.Lister().Pods(o.Namespace), nodes.Lister()
	_, err := pods.Informer().AddEventHandler(toolscache.ResourceEventHandlerFuncs{
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
	_, errNodes := nodes.Informer().AddEventHandler(stir)
	errs := []error{err, errNodes}
	if dra {
		slices := factory("", "", "spec.driver="+o.GPUDriver).Resource().V1().ResourceSlices()
		claims := factory(o.Namespace, labelManaged+"="+managed, "").Resource().V1().ResourceClaims()
		c.slices, c.claims = slices.Lister(), claims.Lister().ResourceClaims(o.Namespace)
		for _, i := range []toolscache.SharedIndexInformer{slices.Informer(), claims.Informer()} {
			_, err := i.AddEventHandler(stir)
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	within, cancel := context.WithTimeout(ctx, syncPatience)
	defer cancel()
	for _, f := range c.factories {
		f.Start(life.Done())
	}
	for _, f := range c.factories {
		for kind, synced := range f.WaitForCacheSync(within.Done()) {
			if !synced {
				return nil, fmt.Errorf("the cluster's %s could not be read within %s", kind.Elem().Name()+"s", syncPatience)
			}
		}
	}
	return c, nil
}

// close waits until the watches have ended.
func (c *cache) close() {
	if c == nil {
		return
	}
	for _, f := range c.factories {
		f.Shutdown()
	}
}

// ofRelease are the Pods of the release.
func (c *cache) ofRelease() []*core.Pod {
	all, err := c.pods.List(labels.Everything())
	if err != nil {
		panic(err) // it is a map
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

// strip drops what conch does not read: of a node with many images that is most of it.
func strip(object any) (any, error) {
	if o, is := object.(meta.Object); is {
		o.SetManagedFields(nil)
	}
	if n, is := object.(*core.Node); is {
		n.Annotations, n.Status.Images, n.Status.VolumesAttached, n.Status.VolumesInUse = nil, nil, nil, nil
	}
	return object, nil
}
