// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

// Package graphs generates ONNX models of known architectures with weights from a seed: chains of matrix products, ResNet-50,
// BERT-base. Models of the same architecture can share any part of their weights, as fine-tunes of one model do. They compute nothing
// of use; their operators, shapes and sizes are those of the real ones.
package graphs
