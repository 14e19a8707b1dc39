# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs an ONNX graph on rows of standard input, one at a time, and writes the raw FP32 answers to standard output."""

import sys

import numpy as np
import onnxruntime

TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64}

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
tensor = session.get_inputs()[0]
rows = np.frombuffer(sys.stdin.buffer.read(), TYPES[tensor.type]).reshape(-1, 1, *tensor.shape[1:])
for row in rows:
    sys.stdout.buffer.write(session.run(None, {tensor.name: row})[0].tobytes())
