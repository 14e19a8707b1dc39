# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the graphs of torchvision's models without their weights: what `make bench BENCH=estimator` compares published measurements with.

    python torchvision_graphs.py DIRECTORY NAME...     writes DIRECTORY/NAME.onnx

Needs torch, torchvision and onnx. The models are built with random weights; large tensors are then cut out of the file and named as external
data that is not there, which is all that shapes and costs need. Not part of build or test: estimator/data/README.md says what comes of it.
"""

import io
import sys
from pathlib import Path

import onnx
import torch
import torchvision
from onnx import TensorProto


def strip(model):
    """Takes the elements out of every initializer of more than 256."""
    for t in model.graph.initializer:
        count = 1
        for d in t.dims:
            count *= d
        if count <= 256:
            continue
        for field in ("raw_data", "float_data", "int32_data", "int64_data", "double_data"):
            t.ClearField(field)
        t.data_location = TensorProto.EXTERNAL
        entry = t.external_data.add()
        entry.key, entry.value = "location", "weights.bin"


def main(directory, names):
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = directory / f"{name}.onnx"
        if path.exists():
            continue
        keywords = {"weights": None}
        if name in ("googlenet", "inception_v3"):
            keywords |= {"init_weights": False, "aux_logits": False}
        model = torchvision.models.get_model(name, **keywords).eval()
        size = 299 if name == "inception_v3" else 224
        out = io.BytesIO()
        with torch.no_grad():
            torch.onnx.export(model, torch.zeros(2, 3, size, size), out, input_names=["input"], output_names=["output"],
                              dynamic_axes={"input": {0: "N"}, "output": {0: "N"}}, opset_version=17, do_constant_folding=True)
        graph = onnx.load_from_string(out.getvalue())
        strip(graph)
        path.write_bytes(graph.SerializeToString(deterministic=True))
        print(name, path.stat().st_size, flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: torchvision_graphs.py DIRECTORY NAME...")
    main(Path(sys.argv[1]), sys.argv[2:])
