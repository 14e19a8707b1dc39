# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""sequence: OUTPUT is the sum of INPUT over the requests of one sequence so far."""

import triton_python_backend_utils as pb


class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            # The direct batcher also runs the slots of idle sequences, with READY zero.
            ready = pb.get_input_tensor_by_name(request, "READY").as_numpy().flatten()[0]
            value = pb.get_input_tensor_by_name(request, "INPUT").as_numpy()
            start = pb.get_input_tensor_by_name(request, "START").as_numpy().flatten()[0]
            end = pb.get_input_tensor_by_name(request, "END").as_numpy().flatten()[0]
            corr = request.correlation_id()
            total = value
            if ready:
                total = value if start else self.sums[corr] + value
                self.sums[corr] = total
                if end:
                    del self.sums[corr]
            responses.append(
                pb.InferenceResponse(output_tensors=[pb.Tensor("OUTPUT", total)])
            )
        return responses
