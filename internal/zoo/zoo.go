// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package zoo

import "time"

// GPU types with published profiles.
const (
	A100      = "A100"
	GTX1080Ti = "1080Ti"
)

// Profile is the published profile of one model on one GPU type: l(b) = Beta + Alpha*b at the whole GPU.
type Profile struct {
	Model   string
	GPUType string
	Alpha   time.Duration
	Beta    time.Duration
	SLO     time.Duration
}

// Latency is l(b), the time of a batch of b rows.
func (p Profile) Latency(b int) time.Duration { return p.Beta + time.Duration(b)*p.Alpha }

// Stretched multiplies the times and the SLO by f, which keeps every ratio between them.
func (p Profile) Stretched(f float64) Profile {
	mul := func(d time.Duration) time.Duration { return time.Duration(float64(d) * f) }
	p.Alpha, p.Beta, p.SLO = mul(p.Alpha), mul(p.Beta), mul(p.SLO)
	return p
}

// DynamicBatching asks Triton itself to batch. A nil MaxQueueDelay-free value batches whatever is queued.
type DynamicBatching struct {
	MaxQueueDelay       time.Duration
	PreferredBatchSizes []int
}

// Model is a model directory to be written: a profile and the rest of its config.pbtxt.
type Model struct {
	// Name of the directory and the model; the profile's model name unless given.
	Name    string
	Profile Profile
	// MaxBatchSize must be at least 1.
	MaxBatchSize int
	// Dims of INPUT and OUTPUT without the batch dimension; [16] unless given.
	Dims []int64
	// Knee, Jitter, L2 and Bandwidth are the conch_emulate_ parameters of these names; 0 leaves the parameter out.
	Knee          int
	Jitter        float64
	L2, Bandwidth float64
	// Instances is instance_group count; 0 means 1.
	Instances int
	// Dynamic asks for Triton's dynamic batching; nil means none.
	Dynamic *DynamicBatching
	// ModelPy is written as 1/model.py, which a real server needs. Empty writes the version directory without it.
	ModelPy []byte
}

// Profiles lists the published profiles for a GPU type in the paper's order, or nil if there are none.
func Profiles(gpuType string) []Profile { return nil }

// Lookup finds one published profile.
func Lookup(gpuType, model string) (Profile, error) { return Profile{}, nil }

// Case is one row of Table 2: one model on a number of GPUs, with the goodput (requests per second) each system reached.
type Case struct {
	Profile     Profile
	GPUs        int
	Analytic    map[string]float64
	Measured    map[string]float64
	MedianBatch map[string]int
}

// Cases are the rows of Table 2.
func Cases() []Case { return nil }

// Write writes the model directory root/Name.
func Write(root string, m Model) error { return nil }
