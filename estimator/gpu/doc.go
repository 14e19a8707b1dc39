// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package gpu has the sheet facts of GPU types: what a roofline needs, with its source. The table is sheets.csv.
//
// context_mb is the one column that no sheet has: the device memory that a CUDA context with cuBLAS and cuDNN loaded takes before a model is
// there. It grows with the number of SMs; the values are rounded from what nvidia-smi commonly shows and are a prior, not a measurement of ours.
package gpu
