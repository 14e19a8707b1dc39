# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""string: every element of INPUT0 with its ASCII letters in upper case."""

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            a = pb.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            up = np.array([e.upper() for e in a.flatten()], dtype=np.object_)
            out = pb.Tensor("OUTPUT0", up.reshape(a.shape))
            responses.append(pb.InferenceResponse(output_tensors=[out]))
        return responses
