// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo && linux

package observe

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/conch-serving/conch/plugins/policy"
)

// DetectGPUs lists the NVIDIA GPUs of this machine. Where there are none, or no
// driver, the list is empty and the remark says why: that is no error.
func DetectGPUs() (gpus []*policy.GPU, remark string, err error) { return detectGPUs(nvml.New()) }

func detectGPUs(library nvml.Interface) (gpus []*policy.GPU, remark string, err error) {
	switch ret := library.Init(); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return nil, "libnvidia-ml.so.1 is not installed, so no NVIDIA driver is", nil
	case nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_NO_PERMISSION:
		return nil, "the NVIDIA driver does not answer: " + nvml.ErrorString(ret), nil
	default:
		return nil, "", fmt.Errorf("NVML: %s; write the list of GPUs into gpus", nvml.ErrorString(ret))
	}
	// A failed shutdown leaves a library loaded that is not used again.
	defer func() { _ = library.Shutdown() }()
	count, ret := library.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, "", fmt.Errorf("NVML, counting GPUs: %s", nvml.ErrorString(ret))
	}
	for i := range count {
		g, err := describe(library, i)
		if err != nil {
			return nil, "", err
		}
		gpus = append(gpus, g)
	}
	if count == 0 {
		remark = "NVML finds no GPU"
	}
	return gpus, remark, nil
}

func describe(library nvml.Interface, i int) (*policy.GPU, error) {
	device, ret := library.DeviceGetHandleByIndex(i)
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("NVML, GPU %d: %s", i, nvml.ErrorString(ret))
	}
	name, ret := device.GetName()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("NVML, name of GPU %d: %s", i, nvml.ErrorString(ret))
	}
	memory, ret := device.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("NVML, memory of GPU %d: %s", i, nvml.ErrorString(ret))
	}
	uuid, ret := device.GetUUID()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("NVML, id of GPU %d: %s", i, nvml.ErrorString(ret))
	}
	g := &policy.GPU{
		Id: "gpu" + strconv.Itoa(i), Index: uint32(i), Uuid: uuid, MemoryBytes: memory.Total,
		Type: gpuType(name),
	}
	// What follows is good to know and not available everywhere.
	if cores, ret := device.GetNumGpuCores(); ret == nvml.SUCCESS {
		if major, minor, ret := device.GetCudaComputeCapability(); ret == nvml.SUCCESS {
			g.SmCount = uint32(cores / coresPerSM(major, minor))
		}
	}
	if width, ret := device.GetMemoryBusWidth(); ret == nvml.SUCCESS {
		if megahertz, ret := device.GetMaxClockInfo(nvml.CLOCK_MEM); ret == nvml.SUCCESS {
			// Bytes a transfer, two transfers a clock.
			g.BandwidthBytesPerSecond = float64(width) / 8 * float64(megahertz) * 1e6 * 2
		}
	}
	return g, nil
}

// gpuType turns "NVIDIA A100-SXM4-80GB" into a name without spaces.
func gpuType(name string) string {
	return strings.ReplaceAll(strings.TrimSpace(strings.TrimPrefix(name, "NVIDIA ")), " ", "-")
}

// coresPerSM by compute capability, from the CUDA programming guide.
func coresPerSM(major, minor int) int {
	switch {
	case major == 6 && minor == 0, major == 7, major == 8 && minor == 0:
		return 64
	default:
		return 128
	}
}
