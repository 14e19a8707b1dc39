# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""version: OUTPUT0 = INPUT0 + 100 times the version that runs."""

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        self.offset = np.int32(100 * int(args["model_version"]))

    def execute(self, requests):
        responses = []
        for request in requests:
            value = pb.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            out = pb.Tensor("OUTPUT0", value + self.offset)
            responses.append(pb.InferenceResponse(output_tensors=[out]))
        return responses
