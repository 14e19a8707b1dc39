// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package kernel says how long a GPU kernel takes: a wave-quantised roofline from the GPU's sheet, times a correction that regressors
// have learnt from measured kernels, as a function of the share of the GPU that the kernel may use.
//
// The regressors see ratios (waves, intensity, watts per operation), never the name of a GPU, so that one fit serves GPUs that were never measured.
package kernel
