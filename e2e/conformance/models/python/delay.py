# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""delay: identity that takes as many milliseconds as the largest value of its requests says."""

import json
import os
import tempfile
import time

import triton_python_backend_utils as pb


def pass_gate(directory):
    """If there is a file "closed" in the directory, writes a file "begun-*" beside it and returns once that is removed."""
    if not directory or not os.path.exists(os.path.join(directory, "closed")):
        return
    handle, begun = tempfile.mkstemp(prefix="begun-", dir=directory)
    os.close(handle)
    while os.path.exists(begun):
        time.sleep(0.001)


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.gate = parameters.get("conch_gate", {}).get("string_value")

    def execute(self, requests):
        pass_gate(self.gate)
        values = [
            pb.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            for request in requests
        ]
        time.sleep(max([float(v.max()) for v in values if v.size], default=0) / 1000)
        return [
            pb.InferenceResponse(output_tensors=[pb.Tensor("OUTPUT0", v)])
            for v in values
        ]
