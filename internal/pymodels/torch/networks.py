# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""Two networks that a GPU really computes, with random weights in half precision: a CNN and an encoder.

Each is captured once for every batch size of SIZES as a CUDA graph, so that an execution costs the processor one launch, as with engines
that are compiled ahead. Rows between two sizes are padded to the larger.
"""

import torch

SIZES = (1, 2, 4, 8, 16, 32)


def resnet50():
    """ResNet50 (torchvision) and its row: an image of 224 x 224."""
    import torchvision

    return torchvision.models.resnet50(weights=None).to(memory_format=torch.channels_last), (3, 224, 224)


def encoder():
    """An encoder of BERT-large's shape: 24 layers, 1024 wide, 16 heads; its row is 384 embedded tokens."""
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, activation="gelu", batch_first=True)
    return torch.nn.TransformerEncoder(layer, 24, enable_nested_tensor=False), (384, 1024)


NETWORKS = {"resnet50": resnet50, "encoder": encoder}


class Network:
    """A network with a graph for each of some batch sizes. Not for two executions at once: each size has one input and one output."""

    def __init__(self, name, sizes=SIZES, device="cuda"):
        torch.manual_seed(1)
        module, self.row = NETWORKS[name]()
        self.device = torch.device(device)
        self.kind = torch.half if self.device.type == "cuda" else torch.float
        self.module = module.eval().to(self.device, self.kind)
        self.channels_last = len(self.row) == 3
        self.sizes = tuple(sizes)
        self.inputs, self.outputs, self.graphs = {}, {}, {}
        with torch.inference_mode():
            for rows in self.sizes:
                self.capture(rows)

    def capture(self, rows):
        x = torch.randn(rows, *self.row, device=self.device, dtype=self.kind)
        if self.channels_last:
            x = x.to(memory_format=torch.channels_last)
        self.inputs[rows] = x
        if self.device.type != "cuda":
            self.outputs[rows] = self.module(x)
            return
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(3):
                self.module(x)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.outputs[rows] = self.module(x)
        self.graphs[rows] = graph

    def size(self, rows):
        """The smallest batch size that holds so many rows."""
        return next(size for size in self.sizes if size >= rows)

    def launch(self, rows):
        """Starts an execution on the current stream; its result is in outputs[size(rows)] once the stream has come so far."""
        size = self.size(rows)
        if self.graphs:
            self.graphs[size].replay()
        else:
            with torch.inference_mode():
                self.outputs[size] = self.module(self.inputs[size])
        return self.outputs[size]
