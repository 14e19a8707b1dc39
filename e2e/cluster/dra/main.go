// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// dra is a DRA driver of emulated GPUs for tests. What it publishes and what it takes has the form of NVIDIA's driver (gpu.nvidia.com): a device a
// GPU with productName, uuid and memory; an opaque GpuConfig with the strategy MPS, which has it give the claim's Pods CUDA_MPS_PIPE_DIRECTORY.
// Different from NVIDIA's: the attribute "emulated" is true, and the Pods of a node get a directory in which emulating models take turns.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

type plugin struct {
	name, cdi, emulation string
	// mps is false for a driver without the feature gate MPSSupport.
	mps bool
}

func (p plugin) file(uid types.UID) string {
	return filepath.Join(p.cdi, p.name+"-"+string(uid)+".json")
}

// config is what is read of resource.nvidia.com/v1beta1, GpuConfig.
type config struct {
	Kind    string `json:"kind"`
	Sharing *struct {
		Strategy string `json:"strategy"`
	} `json:"sharing"`
}

// shared reports that a claim asks for MPS.
func (p plugin) shared(c *resourceapi.ResourceClaim) (bool, error) {
	for _, entry := range c.Status.Allocation.Devices.Config {
		if entry.Opaque == nil || entry.Opaque.Driver != p.name {
			continue
		}
		var own config
		if err := json.Unmarshal(entry.Opaque.Parameters.Raw, &own); err != nil {
			return false, err
		}
		if own.Kind != "GpuConfig" {
			return false, fmt.Errorf("unknown configuration %q", own.Kind)
		}
		if own.Sharing == nil {
			continue
		}
		if own.Sharing.Strategy != "MPS" {
			return false, fmt.Errorf("unknown sharing strategy %q", own.Sharing.Strategy)
		}
		if !p.mps {
			return false, errors.New("the feature gate MPSSupport is not enabled")
		}
		return true, nil
	}
	return false, nil
}

func (p plugin) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	out := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		r := p.prepare(c)
		log.Printf("prepared %s: %d devices, %v", c.Name, len(r.Devices), r.Err)
		out[c.UID] = r
	}
	return out, nil
}

func (p plugin) prepare(c *resourceapi.ResourceClaim) (r kubeletplugin.PrepareResult) {
	shared, err := p.shared(c)
	if err != nil {
		r.Err = err
		return r
	}
	var devices []any
	for i, d := range c.Status.Allocation.Devices.Results {
		if d.Driver != p.name {
			continue
		}
		env := []string{"NVIDIA_VISIBLE_DEVICES=void", "CONCH_EMULATION_DIR=/run/conch-emulation"}
		if shared {
			env = append(env, "CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps")
		}
		id := fmt.Sprintf("%s-%d", c.UID, i)
		devices = append(devices, map[string]any{"name": id, "containerEdits": map[string]any{
			"env":    env,
			"mounts": []any{map[string]any{"hostPath": p.emulation, "containerPath": "/run/conch-emulation", "options": []string{"rbind", "rw"}}},
		}})
		r.Devices = append(r.Devices, kubeletplugin.Device{
			Requests: []string{d.Request}, PoolName: d.Pool, DeviceName: d.Device, ShareID: d.ShareID, CDIDeviceIDs: []string{p.name + "/gpu=" + id},
		})
	}
	spec, err := json.Marshal(map[string]any{"cdiVersion": "0.5.0", "kind": p.name + "/gpu", "devices": devices})
	if err == nil {
		err = os.WriteFile(p.file(c.UID), spec, 0o644)
	}
	r.Err = err
	return r
}

func (p plugin) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	out := map[types.UID]error{}
	for _, c := range claims {
		if err := os.Remove(p.file(c.UID)); err != nil && !errors.Is(err, os.ErrNotExist) {
			out[c.UID] = err
			continue
		}
		out[c.UID] = nil
	}
	return out, nil
}

func (plugin) HandleError(_ context.Context, err error, text string) { log.Print(text, ": ", err) }

func (plugin) WatchHealthStatus(ctx context.Context, _ chan<- kubeletplugin.DeviceHealthReport) error {
	<-ctx.Done()
	return ctx.Err()
}

func main() {
	kubeconfig := flag.String("kubeconfig", "", "how the API server is reached")
	node := flag.String("node", "", "the node's name")
	name := flag.String("name", "gpu.conch.test", "the driver's name")
	root := flag.String("kubelet", "", "the kubelet's root directory")
	cdi := flag.String("cdi", "", "where containerd reads CDI specifications")
	emulation := flag.String("emulation", "", "the directory in which emulating models of this node take turns")
	gpus := flag.Int("gpus", 2, "how many GPUs the node has")
	mps := flag.Bool("mps", true, "whether claims may ask for MPS")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	check(err)
	client, err := kubernetes.NewForConfig(config)
	check(err)
	data := filepath.Join(*root, "plugins", *name)
	for _, dir := range []string{data, *cdi, *emulation, filepath.Join(*root, "plugins_registry")} {
		check(os.MkdirAll(dir, 0o755))
	}
	check(os.Chmod(*emulation, 0o777))
	helper, err := kubeletplugin.Start(ctx, plugin{name: *name, cdi: *cdi, emulation: *emulation, mps: *mps}, kubeletplugin.DriverName(*name), kubeletplugin.KubeClient(client),
		kubeletplugin.NodeName(*node), kubeletplugin.PluginDataDirectoryPath(data), kubeletplugin.RegistrarDirectoryPath(filepath.Join(*root, "plugins_registry")))
	check(err)
	defer helper.Stop()
	var devices []resourceapi.Device
	for i := range *gpus {
		text := func(s string) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{StringValue: &s} }
		yes := true
		devices = append(devices, resourceapi.Device{
			Name: fmt.Sprintf("gpu-%d", i),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"type": text("gpu"), "uuid": text(fmt.Sprintf("GPU-emulated-%s-%d", *node, i)), "productName": text("NVIDIA A100-SXM4-80GB"), "emulated": {BoolValue: &yes},
			},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}},
		})
	}
	check(helper.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{*node: {Slices: []resourceslice.Slice{{Devices: devices}}}}}))
	<-ctx.Done()
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
