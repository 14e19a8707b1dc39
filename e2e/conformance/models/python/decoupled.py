# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""decoupled: one answer per element of IN: the element in OUT, its index in IDX, after DELAY milliseconds each."""

import time

import numpy as np
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            values = pb.get_input_tensor_by_name(request, "IN").as_numpy()
            delays = pb.get_input_tensor_by_name(request, "DELAY").as_numpy()
            for i, value in enumerate(values):
                if i < len(delays) and delays[i]:
                    time.sleep(delays[i] / 1000)
                sender.send(
                    pb.InferenceResponse(
                        output_tensors=[
                            pb.Tensor("OUT", np.array([value], np.int32)),
                            pb.Tensor("IDX", np.array([i], np.uint32)),
                        ]
                    )
                )
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        return None
