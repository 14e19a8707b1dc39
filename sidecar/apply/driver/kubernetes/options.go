// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc/credentials"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Sharing is how partitions of one GPU get their shares.
type Sharing string

// The ways of sharing a GPU.
const (
	// SharingMPS has the DRA driver start an MPS control daemon for the claim of a GPU, which all Pods of its partitions use.
	SharingMPS Sharing = "mps"
	// SharingNone: a partition has a whole GPU.
	SharingNone Sharing = "none"
)

// Options of New. Client, Image and ModelsPath have to be given.
type Options struct {
	// Connection has the namespace of the Pods; DRA is what its Check reports.
	Connection
	DRA bool
	// Release tells the Pods of several conches apart, and begins their names ("conch").
	Release string
	// Owner is a ConfigMap of the namespace: when it is deleted, the cluster deletes the servers. Empty: they stay.
	Owner string
	// Image has a tritonserver, called Server ("tritonserver") on its path.
	Image, Server string
	// BackendDir, Arguments and Environment are those of driver "process".
	BackendDir  string
	Arguments   []string
	Environment map[string]string
	// Template is a PodTemplateSpec in JSON, merged under what conch sets; empty: there is none.
	Template string
	// ModelsPath is where the directories of partitions lie, for conch and for each Pod; ModelsVolume is a Volume in JSON, without a name, which
	// is mounted there read-only. Empty: the Template mounts one.
	ModelsPath, ModelsVolume string
	// GPUDriver is the name of the DRA driver ("gpu.nvidia.com"), GPUClass that of its device class of whole GPUs (the same), MIGClass that of its
	// device class of MIG partitions ("mig.nvidia.com").
	GPUDriver, GPUClass, MIGClass string
	// GPUResource is the extended resource of the device plugin ("nvidia.com/gpu").
	GPUResource string
	Sharing     Sharing
	// Grow has Pods that stay Pending stand for GPUs that the load wants and the cluster has not: see Want.
	Grow bool
	// Complete fills in what is known of a GPU's type besides; it may be nil.
	Complete    func(g GPUFacts) GPUFacts
	Stretch     float64
	Credentials credentials.TransportCredentials
	// StartTimeout bounds a start, the pull of the image included (5m), DrainTimeout the requests that a server that stops has accepted (30s), StopTimeout
	// what it may take to end after them (10s).
	StartTimeout, DrainTimeout, StopTimeout time.Duration
	// Leaving is called when somebody else deletes or evicts the Pod of a partition, while that still serves. Changed is called when the nodes or their
	// GPUs are others than before. Both may be nil; neither may wait.
	Leaving func(partition, reason string)
	Changed func(reason string)
	// Fence returns an error where this conch may not write to the cluster, since another leads; it may be nil.
	Fence  func() error
	Logger *slog.Logger

	// tolerations are those of Template.
	tolerations []core.Toleration
}

// GPUFacts is what a data sheet adds to a GPU.
type GPUFacts struct {
	Type                    string
	SMCount                 uint32
	BandwidthBytesPerSecond float64
	ContextBytes            uint64
}

// Problems are what New refuses these options for, before it asks the cluster anything.
func (o Options) Problems() []error {
	_, _, problems := o.normalise()
	return problems
}

// normalise fills in defaults and reads what is JSON. Problems are what is wrong with the options.
func (o *Options) normalise() (template core.PodTemplateSpec, models *core.Volume, problems []error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Release = cmp.Or(o.Release, "conch")
	o.Server = cmp.Or(o.Server, "tritonserver")
	o.GPUDriver = cmp.Or(o.GPUDriver, "gpu.nvidia.com")
	o.GPUClass = cmp.Or(o.GPUClass, o.GPUDriver)
	o.MIGClass = cmp.Or(o.MIGClass, "mig.nvidia.com")
	o.GPUResource = cmp.Or(o.GPUResource, "nvidia.com/gpu")
	o.Sharing = cmp.Or(o.Sharing, SharingMPS)
	o.StartTimeout = cmp.Or(o.StartTimeout, 5*time.Minute)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, 30*time.Second)
	o.StopTimeout = cmp.Or(o.StopTimeout, 10*time.Second)
	if o.Leaving == nil {
		o.Leaving = func(string, string) {}
	}
	if o.Changed == nil {
		o.Changed = func(string) {}
	}
	if o.Fence == nil {
		o.Fence = func() error { return nil }
	}
	if o.Complete == nil {
		o.Complete = func(f GPUFacts) GPUFacts { return f }
	}
	if o.Image == "" {
		problems = append(problems, errors.New("image is missing; name one with a tritonserver"))
	}
	if why := validation.IsDNS1123Label(o.Release); len(why) > 0 || len(o.Release) > 30 {
		problems = append(problems, fmt.Errorf("release %q is no name of at most 30 small letters, digits and dashes", o.Release))
	}
	if !filepath.IsAbs(o.ModelsPath) {
		problems = append(problems, fmt.Errorf("models.path %q is not absolute", o.ModelsPath))
	}
	if o.Template != "" {
		if err := strictly(o.Template, &template); err != nil {
			problems = append(problems, fmt.Errorf("podTemplate: %w", err))
		}
		problems = append(problems, ours(template)...)
		o.tolerations = template.Spec.Tolerations
	}
	if o.ModelsVolume != "" {
		models = &core.Volume{}
		if err := strictly(o.ModelsVolume, &models.VolumeSource); err != nil {
			problems = append(problems, fmt.Errorf("models.volume: %w", err))
		}
		models.Name = "conch-models"
	} else if !mounts(template, o.ModelsPath) {
		problems = append(problems, fmt.Errorf("models.volume is missing: without it the servers have no models; name a volume that conch has at %s, or mount one there by podTemplate", o.ModelsPath))
	}
	return template, models, problems
}

// strictly decodes JSON into a type of Kubernetes, and takes an unknown field for a mistake.
func strictly(text string, into any) error {
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// serverContainer is the name of a Pod's container that runs tritonserver; a template may say more of it.
const serverContainer = "server"

// ours lists what a template says and conch decides.
func ours(t core.PodTemplateSpec) (errs []error) {
	refuse := func(what string, set bool) {
		if set {
			errs = append(errs, fmt.Errorf("podTemplate: %s is set by conch", what))
		}
	}
	s := t.Spec
	refuse("spec.restartPolicy", s.RestartPolicy != "")
	refuse("spec.nodeName", s.NodeName != "")
	refuse("spec.terminationGracePeriodSeconds (limits.drain decides)", s.TerminationGracePeriodSeconds != nil)
	refuse("spec.affinity.nodeAffinity", s.Affinity != nil && s.Affinity.NodeAffinity != nil)
	for key := range t.Labels {
		refuse("the label "+key, strings.HasPrefix(key, domain))
	}
	for _, c := range s.Containers {
		if c.Name != serverContainer {
			continue
		}
		refuse("image of container server", c.Image != "")
		refuse("command of container server (driver.tritonserver)", len(c.Command) > 0)
		refuse("args of container server (driver.arguments)", len(c.Args) > 0)
		refuse("lifecycle of container server", c.Lifecycle != nil)
		refuse("restartPolicy of container server", c.RestartPolicy != nil || len(c.RestartPolicyRules) > 0) // it would run again beside its successor
		for _, e := range c.Env {
			refuse("the environment variable "+e.Name, strings.HasPrefix(e.Name, "CONCH_") && e.Name != emulationDir || strings.HasPrefix(e.Name, "CUDA_MPS_") || e.Name == "CUDA_VISIBLE_DEVICES")
		}
	}
	return errs
}

// emulationDir is the directory in which emulating models take turns, which the emulated GPU's driver or a template gives.
const emulationDir = "CONCH_EMULATION_DIR"

// mounts reports that a template mounts something at a path, or above it.
func mounts(t core.PodTemplateSpec, path string) bool {
	for _, c := range t.Spec.Containers {
		for _, m := range c.VolumeMounts {
			if c.Name == serverContainer && (m.MountPath == path || strings.HasPrefix(path, strings.TrimSuffix(m.MountPath, "/")+"/")) {
				return true
			}
		}
	}
	return false
}
