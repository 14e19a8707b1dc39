// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package lower turns a graph of operators into the sequence of kernels that a runtime launches for it (USHER, section 3.2 and figure 10): what it
// fuses, what it folds before it serves, and what each operator becomes.
//
// The table of kernels per operator is sequence; the fusions are those that ONNX Runtime's CUDA provider, PyTorch without a compiler and TensorRT
// do without being asked.
package lower
