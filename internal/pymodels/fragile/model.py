# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""OUTPUT = 2 * INPUT + 1, but one negative value fails the whole execution, as an assertion inside a real model would.

The parameter conch_fragile_ms makes an execution take that long, so that callers meet in a batch.
"""

import json
import time

import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.seconds = float(parameters.get("conch_fragile_ms", {}).get("string_value", 0)) / 1000

    def execute(self, requests):
        inputs = [pb.get_input_tensor_by_name(request, "INPUT").as_numpy() for request in requests]
        time.sleep(self.seconds)
        for array in inputs:
            if (array < 0).any():
                raise ValueError("negative input of a caller")
        return [pb.InferenceResponse(output_tensors=[pb.Tensor("OUTPUT", 2 * array + 1)]) for array in inputs]
