// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package zoo

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// DynamicBatching asks Triton itself to batch. Its zero value batches whatever is queued, at once.
type DynamicBatching struct {
	MaxQueueDelay       time.Duration
	PreferredBatchSizes []int
	// QueueTimeout is default_queue_policy's: a request that has waited for so long is refused (timeout_action REJECT); 0 means none.
	QueueTimeout time.Duration
}

// TurnsResource is the rate_limiter resource of instances that are bound to no GPU (Model.TakesTurns).
const TurnsResource = "GPU"

// Model is a model directory to be written: a profile and the rest of its config.pbtxt.
type Model struct {
	// Name of the directory and the model; the profile's model name unless given.
	Name    string
	Profile Profile
	// Stretch multiplies the times and the SLO; 0 means 1.
	Stretch float64
	// MaxBatchSize must be at least 1.
	MaxBatchSize int
	// Dims of INPUT and OUTPUT without the batch dimension; [16] unless given.
	Dims []int64
	// Knee, Jitter, Overlap, L2 and Bandwidth are the conch_emulate_ parameters of these names; 0 leaves the parameter out.
	Knee   int
	Jitter float64
	// Overlap is the part of beta, from 0 to 1, that runs beside other executions of the same partition, as with streams of one process. In Orion's
	// published kernel profiles of a V100 (github.com/eth-easl/orion, benchmarking/model_kernels) kernels that fill less than all SMs leave
	// .45 of an inference's SM time idle for ResNet50 at a batch of 4, .48 for MobileNetV2 and ResNet101, .18 for Transformer-XL and .03 for
	// BERT at 2: at most so much can overlap, which for ResNet50's l(4) is .8 of beta.
	Overlap       float64
	L2, Bandwidth float64
	// Mreq is the part of a GPU's memory that the model needs while it runs, for Grid; nothing emulates it.
	Mreq float64
	// Instances is instance_group count; 0 means 1.
	Instances int
	// OnGPUs has an instance bound to each of these GPUs of a server over several, in this order, instead of Instances that are bound to none.
	OnGPUs []string
	// Dynamic asks for Triton's dynamic batching; nil means none.
	Dynamic *DynamicBatching
	// TakesTurns gives every instance a rate_limiter resource of which the server has one, unless --rate-limit-resource says how many: a server started
	// with --rate-limit=execution_count then executes as many instances at a time, and forms a batch only when it may execute. With OnGPUs each GPU is
	// a resource of its own.
	TakesTurns bool
	// ModelPy is written as 1/model.py, which a real server needs and minitriton does not.
	ModelPy []byte
	// Steps are what an ensemble calls, each with the OUTPUT of those that it comes after; such a model has neither code nor times of its own. The
	// outputs of steps that no other step takes are the ensemble's: OUTPUT, and OUTPUT1, OUTPUT2, ... where there are several.
	Steps []Step
	// Inputs is how many inputs the model takes; 0 means 1. Those after INPUT are INPUT1, INPUT2, ..., which what is emulated does not read.
	Inputs int
	// Graph is written as 1/model.onnx: what the emulated model computes, if not 2*INPUT + 1.
	Graph []byte
	// Declare writes profile.csv, which says exactly what the model emulates (see Grid).
	Declare bool
}

// Step is one step of an ensemble.
type Step struct {
	Model string
	// After are the indices of the steps whose OUTPUT it takes as INPUT, INPUT1, ...; none: the ensemble's INPUT.
	After []int
}

// Config is the model's config.pbtxt.
func (m Model) Config() (string, error) {
	if m.MaxBatchSize < 1 {
		return "", fmt.Errorf("zoo: model %q: max batch size %d must be at least 1", m.name(), m.MaxBatchSize)
	}
	if m.Stretch < 0 {
		return "", fmt.Errorf("zoo: model %q: stretch %g must be positive", m.name(), m.Stretch)
	}
	p := m.Profile
	if m.Stretch != 0 {
		p = p.Stretched(m.Stretch)
	}
	dims := "16"
	if len(m.Dims) > 0 {
		dims = join(m.Dims)
	}
	if len(m.Steps) > 0 {
		return m.ensemble(dims), nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Emulates %s on one %s: l(b) = beta + alpha*b (Symphony, Tables 2 to 4).\n", p.Model, p.GPUType)
	fmt.Fprintf(&b, "name: %q\nbackend: \"python\"\nmax_batch_size: %d\n", m.name(), m.MaxBatchSize)
	for i := range max(1, m.Inputs) {
		fmt.Fprintf(&b, "input [ { name: %q data_type: TYPE_FP32 dims: [ %s ] } ]\n", numbered("INPUT", i), dims)
	}
	fmt.Fprintf(&b, "output [ { name: \"OUTPUT\" data_type: TYPE_FP32 dims: [ %s ] } ]\n", dims)
	limiter := func(resource string) string {
		if !m.TakesTurns {
			return ""
		}
		return fmt.Sprintf(" rate_limiter { resources [ { name: %q count: 1 global: true } ] }", resource)
	}
	if len(m.OnGPUs) == 0 {
		fmt.Fprintf(&b, "instance_group [ { count: %d kind: KIND_CPU%s } ]\n", max(1, m.Instances), limiter(TurnsResource))
	}
	for _, gpu := range m.OnGPUs {
		fmt.Fprintf(&b, "instance_group { name: %q count: 1 kind: KIND_CPU%s }\n", gpu, limiter(gpu))
	}
	if d := m.Dynamic; d != nil {
		b.WriteString("dynamic_batching {")
		if len(d.PreferredBatchSizes) > 0 {
			fmt.Fprintf(&b, " preferred_batch_size: [ %s ]", join(d.PreferredBatchSizes))
		}
		if d.MaxQueueDelay > 0 {
			fmt.Fprintf(&b, " max_queue_delay_microseconds: %d", d.MaxQueueDelay.Microseconds())
		}
		if d.QueueTimeout > 0 {
			fmt.Fprintf(&b, " default_queue_policy { timeout_action: REJECT default_timeout_microseconds: %d }", d.QueueTimeout.Microseconds())
		}
		b.WriteString(" }\n")
	}
	parameter := func(key, value string) {
		fmt.Fprintf(&b, "parameters { key: %q value { string_value: %q } }\n", key, value)
	}
	optional := func(key string, v float64) {
		if v != 0 {
			parameter(key, number(v))
		}
	}
	micros := func(d time.Duration) string { return number(float64(d) / float64(time.Microsecond)) }
	parameter("conch_emulate_alpha_us", micros(p.Alpha))
	parameter("conch_emulate_beta_us", micros(p.Beta))
	optional("conch_emulate_knee", float64(m.Knee))
	optional("conch_emulate_jitter", m.Jitter)
	optional("conch_emulate_overlap", m.Overlap)
	optional("conch_emulate_l2", m.L2)
	optional("conch_emulate_bandwidth", m.Bandwidth)
	if p.SLO > 0 {
		parameter("slo_ms", number(float64(p.SLO)/float64(time.Millisecond)))
	}
	return b.String(), nil
}

// ensemble is the config.pbtxt of a model with Steps.
func (m Model) ensemble(dims string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "name: %q\nplatform: \"ensemble\"\nmax_batch_size: %d\n", m.name(), m.MaxBatchSize)
	fmt.Fprintf(&b, "input [ { name: \"INPUT\" data_type: TYPE_FP32 dims: [ %s ] } ]\n", dims)
	taken := make([]bool, len(m.Steps))
	for _, step := range m.Steps {
		for _, before := range step.After {
			taken[before] = true
		}
	}
	tensors, outputs := make([]string, len(m.Steps)), 0
	for i := range m.Steps {
		if taken[i] {
			tensors[i] = fmt.Sprintf("step%d", i)
			continue
		}
		tensors[i] = numbered("OUTPUT", outputs)
		outputs++
		fmt.Fprintf(&b, "output [ { name: %q data_type: TYPE_FP32 dims: [ %s ] } ]\n", tensors[i], dims)
	}
	b.WriteString("ensemble_scheduling {\n")
	for i, step := range m.Steps {
		fmt.Fprintf(&b, "  step { model_name: %q model_version: -1", step.Model)
		if len(step.After) == 0 {
			b.WriteString(` input_map { key: "INPUT" value: "INPUT" }`)
		}
		for k, before := range step.After {
			fmt.Fprintf(&b, " input_map { key: %q value: %q }", numbered("INPUT", k), tensors[before])
		}
		fmt.Fprintf(&b, " output_map { key: \"OUTPUT\" value: %q } }\n", tensors[i])
	}
	b.WriteString("}\n")
	if slo := m.Profile.SLO; slo > 0 {
		fmt.Fprintf(&b, "parameters { key: \"slo_ms\" value { string_value: %q } }\n", number(float64(slo)/float64(time.Millisecond)))
	}
	return b.String()
}

// numbered is NAME, NAME1, NAME2, ...
func numbered(name string, i int) string {
	if i == 0 {
		return name
	}
	return name + strconv.Itoa(i)
}

func (m Model) name() string {
	if m.Name != "" {
		return m.Name
	}
	return m.Profile.Model
}

// Write writes the model directory root/Name with version 1. What is there already is overwritten file by file.
func Write(root string, m Model) error {
	name := m.name()
	if name == "" || name != filepath.Base(name) || strings.HasPrefix(name, ".") {
		return fmt.Errorf("zoo: %q is no name for a model directory", name)
	}
	config, err := m.Config()
	if err != nil {
		return err
	}
	dir := filepath.Join(root, name)
	version := filepath.Join(dir, "1")
	if err := os.MkdirAll(version, 0o755); err != nil {
		return fmt.Errorf("zoo: write model %q: %w", name, err)
	}
	err = os.WriteFile(filepath.Join(dir, "config.pbtxt"), []byte(config), 0o644)
	if len(m.ModelPy) > 0 && len(m.Steps) == 0 {
		err = errors.Join(err, os.WriteFile(filepath.Join(version, "model.py"), m.ModelPy, 0o644))
	}
	if len(m.Graph) > 0 {
		err = errors.Join(err, os.WriteFile(filepath.Join(version, "model.onnx"), m.Graph, 0o644))
	}
	if m.Declare {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, "profile.csv"), m.profileCSV(), 0o644))
	}
	if err != nil {
		return fmt.Errorf("zoo: write model %q: %w", name, err)
	}
	return nil
}

func number(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

func join[T int | int64](values []T) string {
	s := make([]string, len(values))
	for i, v := range values {
		s[i] = strconv.FormatInt(int64(v), 10)
	}
	return strings.Join(s, ", ")
}
