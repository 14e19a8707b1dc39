# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""add_sub: OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1."""

import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            a = pb.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            b = pb.get_input_tensor_by_name(request, "INPUT1").as_numpy()
            outputs = []
            if "OUTPUT0" in request.requested_output_names():
                outputs.append(pb.Tensor("OUTPUT0", a + b))
            if "OUTPUT1" in request.requested_output_names():
                outputs.append(pb.Tensor("OUTPUT1", a - b))
            responses.append(pb.InferenceResponse(output_tensors=outputs))
        return responses
