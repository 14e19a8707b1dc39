# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""controls: OUTPUT is INPUT and the sequence controls START, END, READY and CORRID that came with it."""

import numpy as np
import triton_python_backend_utils as pb

NAMES = ["INPUT", "START", "END", "READY", "CORRID"]


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            seen = [
                int(pb.get_input_tensor_by_name(request, name).as_numpy().flatten()[0])
                for name in NAMES
            ]
            out = pb.Tensor("OUTPUT", np.array([seen], np.int64))
            responses.append(pb.InferenceResponse(output_tensors=[out]))
        return responses
