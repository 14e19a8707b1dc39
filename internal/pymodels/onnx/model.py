# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs model.onnx of the version directory with ONNX Runtime on the CPU.

Requests that Triton hands over together run as one batch. If that fails each runs alone, so that one caller's data cannot fail another's.
The parameter onnx_threads sets the threads of one operator (default 1): with a fixed number of threads a graph's answers are the same
bit for bit, here and in a session opened directly.
"""

import ctypes
import json
import os

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb


def give_back():
    """Returns to the system what loading took besides: glibc keeps it for later, up to three times the weights, for as long as the process lives."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except AttributeError:  # another C library
        pass


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(config["parameters"].get("onnx_threads", {}).get("string_value", 1))
        options.inter_op_num_threads = 1
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        path = os.path.join(args["model_repository"], args["model_version"], "model.onnx")
        self.session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        give_back()
        self.inputs = [i["name"] for i in config["input"]]
        self.outputs = [o["name"] for o in config["output"]]
        self.batched = config["max_batch_size"] > 0

    def run(self, arrays):
        return self.session.run(self.outputs, dict(zip(self.inputs, arrays)))

    def respond(self, arrays):
        return pb.InferenceResponse(output_tensors=[pb.Tensor(n, a) for n, a in zip(self.outputs, arrays)])

    def alone(self, arrays):
        try:
            return self.respond(self.run(arrays))
        except Exception as e:  # ONNX Runtime's errors share no base class; all of them are this caller's answer
            return pb.InferenceResponse(output_tensors=[], error=pb.TritonError(str(e)))

    def execute(self, requests):
        calls = [[pb.get_input_tensor_by_name(r, n).as_numpy() for n in self.inputs] for r in requests]
        if len(calls) == 1 or not self.batched:
            return [self.alone(arrays) for arrays in calls]
        try:
            together = self.run([np.concatenate(column) for column in zip(*calls)])
        except Exception:
            return [self.alone(arrays) for arrays in calls]
        ends = np.cumsum([len(arrays[0]) for arrays in calls])[:-1]
        parts = zip(*(np.split(output, ends) for output in together))
        return [self.respond(list(part)) for part in parts]
