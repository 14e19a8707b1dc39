// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build !cgo || !linux

package observe

import "github.com/conch-serving/conch/plugins/policy"

// DetectGPUs cannot look: this build has no NVML. The list is empty and the
// remark says so.
func DetectGPUs() (gpus []*policy.GPU, remark string, err error) {
	return nil, "built without cgo: no NVML, so GPUs are not detected; write them into gpus, or build with CGO_ENABLED=1 on Linux", nil
}
