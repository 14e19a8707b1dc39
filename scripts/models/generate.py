# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the graphs that the end-to-end tests serve: a residual CNN and a small transformer encoder, with weights from fixed seeds.

    python generate.py DIRECTORY      writes DIRECTORY/cnn.onnx and DIRECTORY/encoder.onnx
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8
FLOAT = TensorProto.FLOAT


class Graph:
    """Collects nodes and weights; every method returns the name of what it adds."""

    def __init__(self, name, seed):
        self.name, self.random = name, np.random.RandomState(seed)
        self.nodes, self.weights, self.count = [], [], 0

    def fresh(self, kind):
        self.count += 1
        return f"{kind.lower()}_{self.count}"

    def weight(self, array):
        name = self.fresh("weight")
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def normal(self, *shape, scale):
        return self.weight((self.random.standard_normal(shape) * scale).astype(np.float32))

    def add(self, kind, *inputs, **attributes):
        name = self.fresh(kind)
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def linear(self, x, inputs, outputs):
        product = self.add("MatMul", x, self.normal(inputs, outputs, scale=inputs**-0.5))
        return self.add("Add", product, self.normal(outputs, scale=0.02))

    def save(self, path, inputs, outputs, last):
        self.nodes.append(helper.make_node("Identity", [last], [outputs[0].name], name="result"))
        graph = helper.make_graph(self.nodes, self.name, inputs, outputs, self.weights)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="conch"
        )
        onnx.checker.check_model(model, full_check=True)
        path.write_bytes(model.SerializeToString(deterministic=True))


def cnn(path):
    """Residual network in three stages on 32x32 images, about 0.7 million weights."""
    g = Graph("cnn", seed=1)

    def convolution(x, inputs, outputs, size, stride):
        w = g.normal(outputs, inputs, size, size, scale=(2 / (inputs * size * size)) ** 0.5)
        b = g.normal(outputs, scale=0.02)
        pad = size // 2
        return g.add("Conv", x, w, b, kernel_shape=[size] * 2, strides=[stride] * 2, pads=[pad] * 4)

    def block(x, inputs, outputs, stride):
        y = g.add("Relu", convolution(x, inputs, outputs, 3, stride))
        y = convolution(y, outputs, outputs, 3, 1)
        if stride != 1 or inputs != outputs:
            x = convolution(x, inputs, outputs, 1, stride)
        return g.add("Relu", g.add("Add", x, y))

    x = g.add("Relu", convolution("INPUT", 3, 32, 3, 2))
    for inputs, outputs, stride in [(32, 32, 1), (32, 64, 2), (64, 64, 1), (64, 128, 2), (128, 128, 1)]:
        x = block(x, inputs, outputs, stride)
    x = g.add("Flatten", g.add("GlobalAveragePool", x), axis=1)
    g.save(
        path,
        [helper.make_tensor_value_info("INPUT", FLOAT, ["N", 3, 32, 32])],
        [helper.make_tensor_value_info("OUTPUT", FLOAT, ["N", 100])],
        g.linear(x, 128, 100),
    )


def encoder(path, vocabulary=1000, length=32, width=128, heads=4, layers=3, classes=8):
    """Transformer encoder over token ids, pre-normalised, mean-pooled, about 0.7 million weights."""
    g = Graph("encoder", seed=2)

    def norm(x):
        ones = g.weight((1 + 0.1 * g.random.standard_normal(width)).astype(np.float32))
        return g.add("LayerNormalization", x, ones, g.normal(width, scale=0.02), axis=-1, epsilon=1e-5)

    def split_heads(x, order):
        shape = g.weight(np.array([0, length, heads, width // heads], np.int64))
        return g.add("Transpose", g.add("Reshape", x, shape), perm=order)

    def attention(x):
        q = split_heads(g.linear(x, width, width), [0, 2, 1, 3])
        k = split_heads(g.linear(x, width, width), [0, 2, 3, 1])
        v = split_heads(g.linear(x, width, width), [0, 2, 1, 3])
        scores = g.add("Mul", g.add("MatMul", q, k), g.weight(np.float32((width // heads) ** -0.5)))
        mixed = g.add("MatMul", g.add("Softmax", scores, axis=-1), v)
        joined = g.add("Transpose", mixed, perm=[0, 2, 1, 3])
        joined = g.add("Reshape", joined, g.weight(np.array([0, length, width], np.int64)))
        return g.linear(joined, width, width)

    def gelu(x):
        half = g.add("Mul", x, g.weight(np.float32(0.5)))
        scaled = g.add("Mul", x, g.weight(np.float32(0.5**0.5)))
        return g.add("Mul", half, g.add("Add", g.add("Erf", scaled), g.weight(np.float32(1))))

    x = g.add("Gather", g.normal(vocabulary, width, scale=1.0), "TOKENS", axis=0)
    x = g.add("Add", x, g.normal(length, width, scale=0.1))
    for _ in range(layers):
        x = g.add("Add", x, attention(norm(x)))
        x = g.add("Add", x, g.linear(gelu(g.linear(norm(x), width, 4 * width)), 4 * width, width))
    x = g.add("ReduceMean", norm(x), axes=[1], keepdims=0)
    g.save(
        path,
        [helper.make_tensor_value_info("TOKENS", TensorProto.INT64, ["N", length])],
        [helper.make_tensor_value_info("SCORES", FLOAT, ["N", classes])],
        g.linear(x, width, classes),
    )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: generate.py DIRECTORY")
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    cnn(directory / "cnn.onnx")
    encoder(directory / "encoder.onnx")
