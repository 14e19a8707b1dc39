// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package gpu tests what only a machine with an NVIDIA GPU can show: that NVML is read right, and that MPS enforces the shares and memory
// limits which Conch asks for and says when a client has made a GPU fault. `make e2e-gpu` runs it; elsewhere its tests say what is missing.
package gpu
