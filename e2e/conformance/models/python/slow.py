# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""slow: identity that takes conch_slow_ms milliseconds per execution, however large."""

import json
import time

import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.seconds = float(parameters["conch_slow_ms"]["string_value"]) / 1000

    def execute(self, requests):
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
