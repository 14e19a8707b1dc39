# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""error: identity that answers a request with an error if an element is negative, answers it twice if one is -500, and fails the whole
execution if one is -1000 or less."""

import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            least = value.min()
            if least <= -1000:
                raise RuntimeError("the whole execution fails")
            if least == -500:
                responses += [
                    pb.InferenceResponse(output_tensors=[pb.Tensor("OUTPUT0", value)])
                ] * 2
                continue
            if least < 0:
                responses.append(
                    pb.InferenceResponse(error=pb.TritonError("negative input"))
                )
                continue
            responses.append(
                pb.InferenceResponse(output_tensors=[pb.Tensor("OUTPUT0", value)])
            )
        return responses
