// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

//go:build cgo && linux

package observe

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/stretchr/testify/require"

	"github.com/conch-serving/conch/plugins/policy"
)

// failing says which call of the fake library fails, and how; the others answer as an H100 does.
type failing map[string]nvml.Return

func fakeNVML(f failing, devices int) *mock.Interface {
	device := &mock.Device{
		GetNameFunc:                  func() (string, nvml.Return) { return "NVIDIA H100 PCIe", f["name"] },
		GetMemoryInfoFunc:            func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 80 << 30}, f["memory"] },
		GetUUIDFunc:                  func() (string, nvml.Return) { return "GPU-1", f["uuid"] },
		GetNumGpuCoresFunc:           func() (int, nvml.Return) { return 14592, f["cores"] },
		GetCudaComputeCapabilityFunc: func() (int, int, nvml.Return) { return 9, 0, f["capability"] },
		GetMemoryBusWidthFunc:        func() (uint32, nvml.Return) { return 5120, f["width"] },
		GetMaxClockInfoFunc:          func(nvml.ClockType) (uint32, nvml.Return) { return 1593, f["clock"] },
	}
	return &mock.Interface{
		InitFunc:                   func() nvml.Return { return f["init"] },
		ShutdownFunc:               func() nvml.Return { return f["shutdown"] },
		DeviceGetCountFunc:         func() (int, nvml.Return) { return devices, f["count"] },
		DeviceGetHandleByIndexFunc: func(int) (nvml.Device, nvml.Return) { return device, f["handle"] },
	}
}

func TestDetectGPUs(t *testing.T) {
	whole := &policy.GPU{
		Id: "gpu0", Uuid: "GPU-1", Type: "H100-PCIe", MemoryBytes: 80 << 30, SmCount: 114, BandwidthBytesPerSecond: 5120. / 8 * 1593e6 * 2,
	}
	for name, c := range map[string]struct {
		fails       failing
		devices     int
		want        *policy.GPU
		remark, err string
	}{
		"all is said":                  {devices: 1, want: whole},
		"it cannot be closed":          {failing{"shutdown": nvml.ERROR_UNKNOWN}, 1, whole, "", ""},
		"no library":                   {failing{"init": nvml.ERROR_LIBRARY_NOT_FOUND}, 0, nil, "libnvidia-ml.so.1 is not installed", ""},
		"no driver":                    {failing{"init": nvml.ERROR_DRIVER_NOT_LOADED}, 0, nil, "the NVIDIA driver does not answer", ""},
		"no permission":                {failing{"init": nvml.ERROR_NO_PERMISSION}, 0, nil, "the NVIDIA driver does not answer", ""},
		"a library of another version": {failing{"init": nvml.ERROR_LIB_RM_VERSION_MISMATCH}, 0, nil, "", "write the list of GPUs into gpus"},
		"no GPU":                       {nil, 0, nil, "NVML finds no GPU", ""},
		"they cannot be counted":       {failing{"count": nvml.ERROR_UNKNOWN}, 1, nil, "", "counting GPUs"},
		"one fell off the bus":         {failing{"handle": nvml.ERROR_GPU_IS_LOST}, 1, nil, "", "GPU 0"},
		"no name":                      {failing{"name": nvml.ERROR_UNKNOWN}, 1, nil, "", "name of GPU 0"},
		"no memory":                    {failing{"memory": nvml.ERROR_UNKNOWN}, 1, nil, "", "memory of GPU 0"},
		"no unique id":                 {failing{"uuid": nvml.ERROR_NOT_SUPPORTED}, 1, nil, "", "id of GPU 0"},
		"cores are not told":           {failing{"cores": nvml.ERROR_NOT_SUPPORTED}, 1, without(whole, "cores"), "", ""},
		"nor what they can":            {failing{"capability": nvml.ERROR_NOT_SUPPORTED}, 1, without(whole, "cores"), "", ""},
		"nor the bus":                  {failing{"width": nvml.ERROR_NOT_SUPPORTED}, 1, without(whole, "bandwidth"), "", ""},
		"nor the clock":                {failing{"clock": nvml.ERROR_NOT_SUPPORTED}, 1, without(whole, "bandwidth"), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			gpus, remark, err := detectGPUs(fakeNVML(c.fails, c.devices))
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			require.Contains(t, remark, c.remark)
			if c.want == nil {
				require.Empty(t, gpus)
				require.NotEmpty(t, remark)
				return
			}
			require.Len(t, gpus, 1)
			require.Equal(t, c.want.String(), gpus[0].String())
		})
	}
}

func without(g *policy.GPU, what string) *policy.GPU {
	less := &policy.GPU{Id: g.GetId(), Uuid: g.GetUuid(), Type: g.GetType(), MemoryBytes: g.GetMemoryBytes()}
	if what != "cores" {
		less.SmCount = g.GetSmCount()
	}
	if what != "bandwidth" {
		less.BandwidthBytesPerSecond = g.GetBandwidthBytesPerSecond()
	}
	return less
}
