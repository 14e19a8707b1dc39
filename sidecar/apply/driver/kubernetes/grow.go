// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"
	core "k8s.io/api/core/v1"
	resource "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/apply/driver"
)

const (
	// mostWanted bounds the stand-ins at one time: an autoscaler buys what they ask for.
	mostWanted = 8
	// growPause is how long after a stand-in has found its node none is made anew: the node's GPUs come to be known, and a plan uses them.
	growPause = time.Minute
)

// Want says how many GPUs of each type the load wants; nil: that is not known, and what was asked for stays asked for.
func (d *Driver) Want(gpus map[string]int) {
	if gpus == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wanted = maps.Clone(gpus)
}

// missing are the GPUs that are wanted and not there, by type; nil: it is not known what is wanted.
func (d *Driver) missing() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := maps.Clone(d.wanted)
	if all == nil {
		return nil
	}
	for _, n := range d.nodes {
		for _, g := range n.GetGpus() {
			if !g.GetUnavailable() {
				all[g.GetType()]--
			}
		}
	}
	maps.DeleteFunc(all, func(_ string, n int) bool { return n <= 0 })
	return all
}

// grow has a stand-in for each GPU that is wanted and missing: a Pod that asks for one and stays Pending, which an autoscaler of nodes takes for a reason to add a node.
// One that has found a node has done its work, and makes room there for servers.
func (d *Driver) grow(ctx context.Context) {
	missing := d.missing()
	if !d.b.Grow {
		missing = map[string]int{} // those of before the setting was changed go
	}
	if missing == nil {
		return
	}
	want, left := map[string]string{}, mostWanted
	for _, gpuType := range slices.Sorted(maps.Keys(missing)) {
		for i := range min(missing[gpuType], left) {
			want[d.b.standInName(gpuType, i)] = gpuType
			left--
		}
	}
	for _, p := range d.cache.standInPods() {
		switch {
		case p.DeletionTimestamp != nil:
			delete(want, p.Name)
		case p.Spec.NodeName != "" || over(p):
			d.growsFrom = time.Now().Add(growPause)
			d.dismiss(ctx, p)
		case want[p.Name] == "":
			d.dismiss(ctx, p)
		default:
			delete(want, p.Name)
		}
	}
	if time.Now().Before(d.growsFrom) {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if err := d.standIn(ctx, name, want[name]); err != nil {
			d.b.Logger.Warn("no Pod could be made that stands for a GPU that the load wants; it is tried again", "pod", name, "gpu_type", want[name], "error", err)
			d.growsFrom = time.Now().Add(growPause)
			return
		}
		d.b.Logger.Info("a Pod stands for a GPU that the load wants and the cluster has not", "pod", name, "gpu_type", want[name])
	}
}

// dismiss deletes a stand-in; its claim goes as others do that no Pod uses.
func (d *Driver) dismiss(ctx context.Context, p *core.Pod) {
	if err := d.delete(ctx, p.Name, p.UID, 0); err != nil {
		d.b.Logger.Debug("a Pod that stands for a GPU could not be deleted; it is tried again", "pod", p.Name, "error", err)
	}
}

// standInName is the name of the i-th stand-in for GPUs of a type.
func (o Options) standInName(gpuType string, i int) string {
	suffix := "-" + strconv.Itoa(i)
	return o.Release + "-wanted-" + dnsName(gpuType, 63-len(o.Release)-len("-wanted-")-len(suffix)) + suffix
}

// standIn makes a stand-in for a GPU of a type.
func (d *Driver) standIn(ctx context.Context, name, gpuType string) error {
	d.mu.Lock()
	like, known := d.likes[gpuType]
	d.mu.Unlock()
	if !known {
		return fmt.Errorf("the cluster has had no whole GPU of type %s that says how another is asked for", gpuType)
	}
	if like.byClaim {
		text, err := json.Marshal(d.b.standInClaim(name, like))
		if err != nil {
			return err
		}
		err = d.change(ctx, func(ctx context.Context) error {
			_, err := d.b.Client.ResourceV1().ResourceClaims(d.b.Namespace).Patch(ctx, name, types.ApplyPatchType, text, meta.PatchOptions{FieldManager: fieldManager, Force: proto.Bool(true)})
			return err
		})
		if err != nil {
			return err
		}
	}
	p, err := d.b.standInPod(name, gpuType, like)
	if err != nil {
		return err
	}
	err = d.change(ctx, func(ctx context.Context) error {
		_, err := d.b.Client.CoreV1().Pods(d.b.Namespace).Create(ctx, p, meta.CreateOptions{FieldManager: fieldManager})
		return err
	})
	if apierrors.IsAlreadyExists(err) {
		return nil // the cache does not have it yet
	}
	return err
}

// likeness is how a GPU of a type is asked for, whichever it is.
type likeness struct {
	byClaim bool
	// product is what the cluster calls the type.
	product string
}

// liken adds how GPUs of the cluster are asked for, by their types. MIG partitions are not: which a node has is its operator's choice.
func (b build) liken(all map[string]likeness, w world) {
	for _, n := range w.nodes {
		product := n.Labels[labelProduct]
		if product == "" {
			continue
		}
		// A node that goes has its label for longer than its DRA driver.
		if offered := n.Status.Allocatable[core.ResourceName(b.GPUResource)]; offered.Value() > 0 || !all[gpuTypeNamed(product)].byClaim {
			all[gpuTypeNamed(product)] = likeness{false, product}
		}
	}
	for _, s := range w.latest(b.GPUDriver) {
		if s.Spec.NodeName == nil {
			continue
		}
		n := &core.Node{ObjectMeta: meta.ObjectMeta{Name: *s.Spec.NodeName}}
		for i := range s.Spec.Devices {
			if g, remark := b.draGPU(n, &s.Spec.Devices[i]); remark == "" && !isMIG(g) {
				all[g.GetType()] = likeness{true, b.text(&s.Spec.Devices[i], "productName")}
			}
		}
	}
}

// standInClaim is the claim of a stand-in: of any GPU of the product.
func (b build) standInClaim(name string, like likeness) *resource.ResourceClaim {
	return &resource.ResourceClaim{
		TypeMeta:   meta.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"},
		ObjectMeta: meta.ObjectMeta{Name: name, Namespace: b.Namespace, OwnerReferences: b.owners(), Labels: map[string]string{LabelManaged: Managed, LabelRelease: b.Release}},
		Spec: resource.ResourceClaimSpec{Devices: resource.DeviceClaim{Requests: []resource.DeviceRequest{{
			Name: "gpu", Exactly: &resource.ExactDeviceRequest{
				DeviceClassName: b.GPUClass, AllocationMode: resource.DeviceAllocationModeExactCount, Count: 1,
				Selectors: []resource.DeviceSelector{{CEL: &resource.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %s && device.attributes[%s].productName == %s", cel(b.GPUDriver), cel(b.GPUDriver), cel(like.product))}}},
			},
		}}}},
	}
}

// standInPod is a server's Pod that serves nothing: what a node has to tolerate and to offer for a server it has to for this one.
func (b build) standInPod(name, gpuType string, like likeness) (*core.Pod, error) {
	g := &policy.GPU{Type: gpuType}
	if like.byClaim {
		g.Uuid = "any"
	}
	spec, err := b.podSpec(driver.Spec{Partition: &policy.Partition{Id: "wanted", ThreadPercentage: 100}, GPU: g, RepositoryDir: b.ModelsPath})
	if err != nil {
		return nil, err
	}
	spec.ReadinessGates, spec.Affinity.NodeAffinity = nil, nil
	if like.byClaim {
		for i := range spec.ResourceClaims {
			if spec.ResourceClaims[i].Name == podClaim {
				spec.ResourceClaims[i].ResourceClaimName = &name
			}
		}
	} else {
		if spec.NodeSelector == nil {
			spec.NodeSelector = map[string]string{}
		}
		spec.NodeSelector[labelProduct] = like.product
	}
	for i := range spec.Containers {
		if c := &spec.Containers[i]; c.Name == serverContainer { // where it is started before it is deleted, it ends by itself
			c.Args, c.Lifecycle, c.Ports = []string{"--help"}, nil, nil
		}
	}
	return &core.Pod{ObjectMeta: meta.ObjectMeta{
		Name: name, Namespace: b.Namespace, OwnerReferences: b.owners(),
		Labels:      map[string]string{LabelManaged: Managed, labelWantedBy: b.Release},
		Annotations: map[string]string{annotationShare: "none: it stands for a GPU of type " + gpuType + " that the load wants, so that an autoscaler adds a node"},
	}, Spec: *spec}, nil
}
