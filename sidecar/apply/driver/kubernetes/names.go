// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"

	core "k8s.io/api/core/v1"
)

// Labels and annotations of what conch makes.
const (
	domain = "conch.io/"
	// LabelManaged is Managed on all of conch's, and LabelRelease the name of the release.
	LabelManaged    = "app.kubernetes.io/managed-by"
	Managed         = "conch"
	LabelRelease    = domain + "release"
	labelPartition  = domain + "partition"
	labelGeneration = domain + "generation"
	labelDigest     = domain + "digest"
	labelGPU        = domain + "gpu"
	// labelWantedBy is the release on a Pod that stands for a GPU, which is none of its servers.
	labelWantedBy = domain + "wanted-by"
	// The annotations are the bundle: with the labels they are the Spec that the server was started with.
	annotationPartition  = domain + "partition-spec"
	annotationGPU        = domain + "gpu-spec"
	annotationRepository = domain + "repository"
	// annotationShare is for people: kubectl get pods -o custom-columns.
	annotationShare = domain + "share"
	// annotationModels is for people, too: the models that the server has. They come and go in a Pod's life.
	annotationModels = domain + "models"
	// gateAnswers is a readiness gate: the server has answered conch.
	gateAnswers core.PodConditionType = domain + "answers"
	// labelCost is an operator's label of a node: what one of its GPUs costs in an hour.
	labelCost = domain + "gpu-cost-per-hour"
	// labelProduct is what GPU feature discovery says of a node's GPUs.
	labelProduct = "nvidia.com/gpu.product"
)

// dnsName makes text fit for an object's name, a label's value and a host's name: at most n characters. What had to be changed gets a digest, so that
// two names stay two.
func dnsName(text string, n int) string {
	clean := strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', r == '-':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '-'
	}, text), "-")
	if clean == text && len(clean) <= n {
		return clean
	}
	sum := sha256.Sum256([]byte(text))
	suffix := hex.EncodeToString(sum[:3])
	return strings.Trim(strings.Trim(clean[:min(len(clean), n-len(suffix)-1)], "-")+"-"+suffix, "-")
}

// podName is the name of a partition's server. Each server has one of its own: a Pod that does not end blocks none.
func (o Options) podName(partition string, generation int) string {
	return o.Release + "-" + dnsName(partition, 63-len(o.Release)-2-len(strconv.Itoa(generation))) + "-" + strconv.Itoa(generation)
}

// budgetName is the name of the servers' PodDisruptionBudget.
func (o Options) budgetName() string { return o.Release + "-servers" }

// claimName is the name of the claim of a GPU.
func (o Options) claimName(gpu string) string {
	return o.Release + "-" + dnsName(gpu, 63-len(o.Release)-1)
}

// generation of a server's Pod; 0 where it says none.
func generation(p *core.Pod) int {
	n, err := strconv.Atoi(p.Labels[labelGeneration])
	if err != nil {
		return 0
	}
	return n
}
