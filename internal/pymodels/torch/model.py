# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""A model that a GPU really computes: OUTPUT = 2 * INPUT + 1, after an execution of the network conch_torch_network over as many rows.

The network computes random rows that lie on the GPU; only INPUT is copied there, and OUTPUT back. Tensors are handed over by dlpack: the python backend of Triton
2.51 was built for numpy 1, and beside numpy 2 its as_numpy() gives wrong shapes.
"""

import json
import os
import sys

import torch
import triton_python_backend_utils as pb

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import networks


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        name = config["parameters"]["conch_torch_network"]["string_value"]
        largest = config["max_batch_size"]
        sizes = [size for size in networks.SIZES if size < largest] + [largest]
        self.network = networks.Network(name, sizes, device="cuda" if torch.cuda.is_available() else "cpu")
        self.device = self.network.device

    def execute(self, requests):
        given = [torch.from_dlpack(pb.get_input_tensor_by_name(request, "INPUT").to_dlpack()) for request in requests]
        rows = [len(tensor) for tensor in given]
        x = torch.cat(given).to(self.device, non_blocking=True)
        # The answer depends on the network's result, so that it is made after that; times 0, the result changes nothing.
        done = self.network.launch(len(x)).flatten()[:1].float().nan_to_num(0.0, 0.0, 0.0)
        answers = (2 * x + 1 + 0 * done).cpu().split(rows)
        return [pb.InferenceResponse(output_tensors=[pb.Tensor.from_dlpack("OUTPUT", a.contiguous())]) for a in answers]
