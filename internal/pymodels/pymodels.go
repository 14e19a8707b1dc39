// Copyright The Conch Authors
// SPDX-License-Identifier: Apache-2.0

package pymodels

import _ "embed"

// Emulate is the model.py of an emulated model: it takes beta + alpha*rows under its partition's lock and answers OUTPUT = 2*INPUT + 1.
// Its config.pbtxt carries the conch_emulate_* parameters, its environment CONCH_PARTITION, CONCH_GPU, CONCH_SHARE,
// CONCH_EMULATION_DIR and CONCH_EMULATION_STRETCH. internal/minitriton emulates by the same rules: internal/zoo/executions holds both to one table.
//
//go:embed emulate/model.py
var Emulate []byte

// ONNX is the model.py that runs model.onnx of its version directory with ONNX Runtime on the CPU.
//
//go:embed onnx/model.py
var ONNX []byte

// Fragile is the model.py of a model that answers OUTPUT = 2*INPUT + 1 but raises for a whole execution if any value of it is negative:
// one caller's bad tensor takes down the batch it travels in.
//
//go:embed fragile/model.py
var Fragile []byte

// torchNetworks is the module networks of TorchWorker.
//
//go:embed torch/networks.py
var torchNetworks []byte

// TorchWorker is a program that times executions of networks of PyTorch on a GPU, by commands on its standard input. TorchModules go beside it.
//
//go:embed torch/worker.py
var TorchWorker []byte

// TorchModules are the modules that TorchWorker imports, by file name.
func TorchModules() map[string][]byte { return map[string][]byte{"networks.py": torchNetworks} }
