// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package pymodels holds the model.py files that stand behind a real tritonserver in tests, demo and benchmarks: Triton's wheel has the
// python backend only, so a graph runs through ONNX Runtime in Python, and a GPU that is not there is emulated by sleeping.
package pymodels
