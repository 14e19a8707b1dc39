// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	core "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/conch-serving/conch/plugins/policy"
	"github.com/conch-serving/conch/sidecar/apply/driver"
)

// Ports of a server in its Pod: Triton's own.
const (
	portHTTP    = 8000
	portGRPC    = 8001
	portMetrics = 8002
)

// podClaim is what a Pod calls the claim of its GPU.
const podClaim = "conch-gpu"

// envMPS is a server's share of a GPU that is shared by MPS.
const envMPS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"

// noticed is how long a Pod that somebody else deletes goes on before it is asked to end: for conch to see that and to send its requests elsewhere.
const noticed = 5 * time.Second

// byClaim reports whether a GPU is asked for by a claim, as DRA has it; else the device plugin gives some GPU of the node.
func byClaim(g *policy.GPU) bool { return g.GetUuid() != "" }

// isMIG reports whether a GPU is a MIG partition of one: NVML begins the UUIDs of those so.
func isMIG(g *policy.GPU) bool { return strings.HasPrefix(g.GetUuid(), "MIG-") }

// byMPS reports whether the claim of a GPU asks for MPS. NVIDIA's DRA driver refuses the configuration of a GPU for a MIG partition.
func (o Options) byMPS(g *policy.GPU) bool { return byClaim(g) && !isMIG(g) && o.Sharing == SharingMPS }

// refused says why a partition cannot be on a GPU of this cluster; nil where it can. It is the table of docs/kubernetes.md.
func (o Options) refused(p *policy.Partition, g *policy.GPU) error {
	whole := p.GetThreadPercentage() == 100
	switch {
	case g == nil || p.OnCPU():
		return fmt.Errorf("partition %s is on CPUs; driver kubernetes places partitions on GPUs alone", p.GetId())
	case whole:
		return nil
	case !byClaim(g):
		return fmt.Errorf("partition %s has %d%% of %s, which the device plugin gives out as a whole: it offers no shares of different sizes. Install NVIDIA's DRA driver, or plan whole GPUs", p.GetId(), p.GetThreadPercentage(), g.GetId())
	case isMIG(g):
		return fmt.Errorf("partition %s has %d%% of %s, a MIG partition, which conch does not divide further; plan whole ones", p.GetId(), p.GetThreadPercentage(), g.GetId())
	case o.Sharing != SharingMPS:
		return fmt.Errorf("partition %s has %d%% of %s, and driver.kubernetes.gpus.sharing is none; say mps where the DRA driver has its feature gate MPSSupport on, or plan whole GPUs", p.GetId(), p.GetThreadPercentage(), g.GetId())
	}
	return nil
}

// build makes the objects of servers.
type build struct {
	Options
	template core.PodTemplateSpec
	models   *core.Volume
	// owner refers to Options.Owner; nil where there is none.
	owner *meta.OwnerReference
}

// arguments is the command line of a server.
func (b build) arguments(repository string) []string {
	args := []string{
		"--model-repository=" + repository,
		"--model-control-mode=explicit",
		// Completing would load a model twice and add dynamic batching.
		"--disable-auto-complete-config",
		// Otherwise one model that fails to load makes the server unready for good.
		"--strict-readiness=false",
		"--http-port=" + strconv.Itoa(portHTTP), "--grpc-port=" + strconv.Itoa(portGRPC), "--metrics-port=" + strconv.Itoa(portMetrics),
		// gRPC's own five minutes end an idle connection that pings to stay alive.
		"--grpc-http2-min-recv-ping-interval-without-data=5000",
		// Of a Pod that somebody else deletes: what it has accepted is answered.
		"--exit-timeout-secs=" + strconv.Itoa(int(max(b.DrainTimeout, time.Second)/time.Second)),
	}
	if b.BackendDir != "" {
		args = append(args, "--backend-directory="+b.BackendDir)
	}
	return append(args, b.Arguments...)
}

// environment of a server: where it is, and its share.
func (b build) environment(s driver.Spec) (env []core.EnvVar) {
	p := s.Partition
	add := func(name, value string) { env = append(env, core.EnvVar{Name: name, Value: value}) }
	add("CONCH_PARTITION", p.GetId())
	add("CONCH_GPU", s.GPU.GetId())
	add("CONCH_SHARE", strconv.FormatUint(uint64(p.GetThreadPercentage()), 10))
	if b.byMPS(s.GPU) {
		add(envMPS, strconv.FormatUint(uint64(p.GetThreadPercentage()), 10))
		if limit := p.GetMemoryLimitBytes(); limit > 0 {
			// MPS reads whole mebibytes; rounding down keeps neighbours' memory theirs.
			add("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0="+strconv.FormatUint(max(limit>>20, 1), 10)+"M")
		}
	}
	switch {
	case s.Untimed:
		add("CONCH_EMULATION_STRETCH", "0")
	case b.Stretch > 0 && b.Stretch != 1:
		add("CONCH_EMULATION_STRETCH", strconv.FormatFloat(b.Stretch, 'g', -1, 64))
	}
	for _, name := range slices.Sorted(maps.Keys(b.Environment)) {
		add(name, b.Environment[name])
	}
	return env
}

// digest is driver.Driver.Hash: of the Pod but for what differs between two servers of the same kind.
func (b build) digest(p *policy.Partition, g *policy.GPU) string {
	pod, err := b.pod(driver.Spec{Partition: p, GPU: g, RepositoryDir: b.ModelsPath}, 0)
	if err != nil { // Start says the same
		return "unusable"
	}
	text, err := json.Marshal(struct {
		Spec core.PodSpec
		UUID string
	}{pod.Spec, g.GetUuid()})
	if err != nil {
		panic(err) // it was made of JSON
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// pod is a server: the template, and above it what conch sets.
func (b build) pod(s driver.Spec, generation int) (*core.Pod, error) {
	spec, err := b.podSpec(s)
	if err != nil {
		return nil, err
	}
	partition := proto.CloneOf(s.Partition)
	partition.Instances = nil
	partitionText, err := protojson.Marshal(partition)
	if err != nil {
		return nil, err
	}
	gpuText, err := protojson.Marshal(s.GPU)
	if err != nil {
		return nil, err
	}
	p := &core.Pod{ObjectMeta: meta.ObjectMeta{
		Name: b.podName(s.Partition.GetId(), generation), Namespace: b.Namespace,
		Labels: map[string]string{
			"app.kubernetes.io/name": "tritonserver", LabelManaged: Managed, LabelRelease: b.Release, labelPartition: dnsName(s.Partition.GetId(), 63),
			labelGeneration: strconv.Itoa(generation), labelDigest: s.Hash, labelGPU: dnsName(s.GPU.GetId(), 63),
		},
		Annotations: map[string]string{
			annotationPartition: string(partitionText), annotationGPU: string(gpuText), annotationRepository: s.RepositoryDir,
			annotationShare: fmt.Sprintf("%d%% of %s", s.Partition.GetThreadPercentage(), s.GPU.GetId()),
		},
		OwnerReferences: b.owners(),
	}, Spec: *spec}
	for key, value := range b.template.Labels {
		if p.Labels[key] == "" {
			p.Labels[key] = value
		}
	}
	for key, value := range b.template.Annotations {
		if p.Annotations[key] == "" {
			p.Annotations[key] = value
		}
	}
	return p, nil
}

func (b build) owners() []meta.OwnerReference {
	if b.owner == nil {
		return nil
	}
	return []meta.OwnerReference{*b.owner}
}

// podSpec merges what conch sets into the template, as kubectl apply merges a strategic patch: containers, volumes and variables by their names.
func (b build) podSpec(s driver.Spec) (*core.PodSpec, error) {
	grace := int64((noticed + b.DrainTimeout + b.StopTimeout) / time.Second)
	no := false
	container := core.Container{
		Name: serverContainer, Image: b.Image, Command: []string{b.Server}, Args: b.arguments(s.RepositoryDir), Env: b.environment(s),
		Ports: []core.ContainerPort{
			{Name: "http", ContainerPort: portHTTP, Protocol: core.ProtocolTCP}, {Name: "grpc", ContainerPort: portGRPC, Protocol: core.ProtocolTCP}, {Name: "metrics", ContainerPort: portMetrics, Protocol: core.ProtocolTCP},
		},
		Lifecycle: &core.Lifecycle{PreStop: &core.LifecycleHandler{Sleep: &core.SleepAction{Seconds: int64(noticed / time.Second)}}},
		// The end of the log is what is known of a death.
		TerminationMessagePolicy: core.TerminationMessageFallbackToLogsOnError,
	}
	own := core.PodSpec{
		RestartPolicy: core.RestartPolicyNever, TerminationGracePeriodSeconds: &grace, EnableServiceLinks: &no,
		ReadinessGates: []core.PodReadinessGate{{ConditionType: gateAnswers}},
		Affinity: &core.Affinity{NodeAffinity: &core.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &core.NodeSelector{NodeSelectorTerms: []core.NodeSelectorTerm{{
			MatchFields: []core.NodeSelectorRequirement{{Key: "metadata.name", Operator: core.NodeSelectorOpIn, Values: []string{s.Partition.GetNode()}}},
		}}}}},
	}
	if byClaim(s.GPU) {
		claim := b.claimName(s.GPU.GetId())
		own.ResourceClaims = []core.PodResourceClaim{{Name: podClaim, ResourceClaimName: &claim}}
		container.Resources.Claims = []core.ResourceClaim{{Name: podClaim}}
	} else {
		container.Resources.Limits = core.ResourceList{core.ResourceName(b.GPUResource): *quantity.NewQuantity(1, quantity.DecimalSI)}
	}
	if b.models != nil {
		own.Volumes = []core.Volume{*b.models}
		container.VolumeMounts = []core.VolumeMount{{Name: b.models.Name, MountPath: filepath.Clean(b.ModelsPath), ReadOnly: true}}
	}
	own.Containers = []core.Container{container}
	if b.template.Spec.AutomountServiceAccountToken == nil && b.template.Spec.ServiceAccountName == "" {
		own.AutomountServiceAccountToken = &no // a model has no business with the API server
	}
	base, err := json.Marshal(b.template.Spec)
	if err != nil {
		return nil, err
	}
	patch, err := json.Marshal(own)
	if err != nil {
		return nil, err
	}
	merged, err := strategicpatch.StrategicMergePatch(base, patch, core.PodSpec{})
	if err != nil {
		return nil, fmt.Errorf("driver.kubernetes.podTemplate does not go with what conch sets: %w", err)
	}
	spec := &core.PodSpec{}
	return spec, json.Unmarshal(merged, spec)
}

// claimedFor is driver.Spec.Claim: whether the servers of a GPU share it by MPS, which their claim says for all of them.
func claimedFor(g *policy.GPU, byMPS bool) string {
	switch {
	case !byClaim(g):
		return ""
	case byMPS:
		return g.GetUuid() + " by MPS"
	}
	return g.GetUuid() + " alone"
}

// bundle reads what pod has written.
func bundle(p *core.Pod) (driver.Spec, error) {
	s := driver.Spec{Partition: &policy.Partition{}, GPU: &policy.GPU{}, Hash: p.Labels[labelDigest], RepositoryDir: p.Annotations[annotationRepository]}
	read := protojson.UnmarshalOptions{DiscardUnknown: true}
	err := errors.Join(read.Unmarshal([]byte(p.Annotations[annotationPartition]), s.Partition), read.Unmarshal([]byte(p.Annotations[annotationGPU]), s.GPU))
	if err == nil && (s.Hash == "" || s.RepositoryDir == "" || s.Partition.GetId() == "") {
		err = errors.New("labels or annotations of conch are missing")
	}
	if len(p.Spec.ResourceClaims) > 0 {
		s.Claim = claimedFor(s.GPU, slices.ContainsFunc(p.Spec.Containers, func(c core.Container) bool {
			return slices.ContainsFunc(c.Env, func(e core.EnvVar) bool { return e.Name == envMPS })
		}))
	}
	if err != nil {
		return driver.Spec{}, fmt.Errorf("pod %s is not one that conch made: %w", p.Name, err)
	}
	return s, nil
}

// gpuConfig is what NVIDIA's DRA driver calls GpuConfig. Shares are set by each Pod's environment, for the claim has one configuration for all.
const gpuConfig = `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"MPS","mpsConfig":{}}}`

// claim is the claim of one GPU, which all Pods of its partitions share.
func (b build) claim(g *policy.GPU) *resourcev1.ResourceClaim {
	class := b.GPUClass
	if isMIG(g) {
		class = b.MIGClass
	}
	c := &resourcev1.ResourceClaim{
		TypeMeta: meta.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"},
		ObjectMeta: meta.ObjectMeta{
			Name: b.claimName(g.GetId()), Namespace: b.Namespace, OwnerReferences: b.owners(),
			Labels: map[string]string{LabelManaged: Managed, LabelRelease: b.Release, labelGPU: dnsName(g.GetId(), 63)},
		},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
				Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %s && device.attributes[%s].uuid == %s", cel(b.GPUDriver), cel(b.GPUDriver), cel(g.GetUuid()))}}},
			},
		}}}},
	}
	if b.byMPS(g) {
		c.Spec.Devices.Config = []resourcev1.DeviceClaimConfiguration{{
			Requests:            []string{"gpu"},
			DeviceConfiguration: resourcev1.DeviceConfiguration{Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: b.GPUDriver, Parameters: runtime.RawExtension{Raw: []byte(gpuConfig)}}},
		}}
	}
	return c
}

// cel is a string of the Common Expression Language.
func cel(text string) string { return strconv.Quote(strings.ToValidUTF8(text, "")) }
