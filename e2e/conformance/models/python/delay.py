# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""delay: identity that takes as many milliseconds as the largest value of its requests says."""

import time

import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        values = [
            pb.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            for request in requests
        ]
        time.sleep(max([float(v.max()) for v in values if v.size], default=0) / 1000)
        return [
            pb.InferenceResponse(output_tensors=[pb.Tensor("OUTPUT0", v)])
            for v in values
        ]
