# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""slow: identity that takes conch_slow_ms milliseconds per execution, however large."""

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
        self.seconds = float(parameters["conch_slow_ms"]["string_value"]) / 1000

    def execute(self, requests):
        pass_gate(self.gate)
        time.sleep(self.seconds)
        return [
            pb.InferenceResponse(
                output_tensors=[
                    pb.Tensor(t.name().replace("INPUT", "OUTPUT"), t.as_numpy())
                    for t in request.inputs()
                ]
            )
            for request in requests
        ]
