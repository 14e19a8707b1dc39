# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""rank: OUTPUT0 of every row is the number of dimensions in which INPUT0 comes, batch included."""

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            out = np.full(value.shape[:1], value.ndim, np.int32)
            responses.append(
                pb.InferenceResponse(output_tensors=[pb.Tensor("OUTPUT0", out)])
            )
        return responses
