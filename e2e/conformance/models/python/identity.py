# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""identity: output k is input k, whatever its type and shape."""

import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            outputs = [
                pb.Tensor(t.name().replace("INPUT", "OUTPUT"), t.as_numpy())
                for t in request.inputs()
            ]
            responses.append(pb.InferenceResponse(output_tensors=outputs))
        return responses
