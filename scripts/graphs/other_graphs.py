# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes architectures that neither torchvision nor keras.applications has, without weights: a LeNet, an encoder of BERT's base size on 128
tokens, and MobileNetV1 with an SSD head on 300x300 images (the models of gpulet's utilisation files).

    python other_graphs.py DIRECTORY
"""

import sys
from pathlib import Path

import onnx
from onnx import TensorProto, helper

FLOAT = TensorProto.FLOAT


class Graph:
    def __init__(self):
        self.nodes, self.weights, self.count = [], [], 0

    def weight(self, *dims):
        self.count += 1
        t = TensorProto(name=f"w{self.count}", data_type=FLOAT, dims=dims)
        t.data_location = TensorProto.EXTERNAL
        entry = t.external_data.add()
        entry.key, entry.value = "location", "weights.bin"
        self.weights.append(t)
        return t.name

    def ints(self, *values):
        self.count += 1
        self.weights.append(helper.make_tensor(f"w{self.count}", TensorProto.INT64, [len(values)], values))
        return f"w{self.count}"

    def add(self, op, *inputs, **attributes):
        self.count += 1
        self.nodes.append(helper.make_node(op, inputs, [f"t{self.count}"], name=f"{op.lower()}_{self.count}", **attributes))
        return f"t{self.count}"

    def conv(self, x, inputs, outputs, size, stride=1, group=1, pad=None):
        pad = size // 2 if pad is None else pad
        return self.add("Conv", x, self.weight(outputs, inputs // group, size, size), self.weight(outputs), kernel_shape=[size] * 2, strides=[stride] * 2, pads=[pad] * 4, group=group)

    def linear(self, x, inputs, outputs):
        return self.add("Add", self.add("MatMul", x, self.weight(inputs, outputs)), self.weight(outputs))

    def save(self, path, name, inputs, last):
        self.nodes.append(helper.make_node("Identity", [last], ["output"]))
        graph = helper.make_graph(self.nodes, name, inputs, [helper.make_tensor_value_info("output", FLOAT, None)], self.weights)
        path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]).SerializeToString(deterministic=True))


def lenet(path):
    g = Graph()
    x = g.add("MaxPool", g.add("Relu", g.conv("input", 1, 6, 5, pad=2)), kernel_shape=[2, 2], strides=[2, 2])
    x = g.add("MaxPool", g.add("Relu", g.conv(x, 6, 16, 5, pad=0)), kernel_shape=[2, 2], strides=[2, 2])
    x = g.add("Flatten", x)
    for a, b in [(400, 120), (120, 84)]:
        x = g.add("Relu", g.linear(x, a, b))
    g.save(path, "lenet", [helper.make_tensor_value_info("input", FLOAT, ["N", 1, 28, 28])], g.linear(x, 84, 10))


def bert(path, length=128, width=768, heads=12, layers=12):
    g = Graph()

    def norm(x):
        return g.add("LayerNormalization", x, g.weight(width), g.weight(width), axis=-1)

    def split(x, order):
        return g.add("Transpose", g.add("Reshape", x, g.ints(0, length, heads, width // heads)), perm=order)

    x = norm(g.add("Add", g.add("Gather", g.weight(30522, width), "input"), g.weight(length, width)))
    for _ in range(layers):
        q, k, v = split(g.linear(x, width, width), [0, 2, 1, 3]), split(g.linear(x, width, width), [0, 2, 3, 1]), split(g.linear(x, width, width), [0, 2, 1, 3])
        scores = g.add("Softmax", g.add("Add", g.add("Mul", g.add("MatMul", q, k), g.weight(1)), g.weight(1, 1, 1, length)), axis=-1)
        mixed = g.add("Reshape", g.add("Transpose", g.add("MatMul", scores, v), perm=[0, 2, 1, 3]), g.ints(0, length, width))
        x = norm(g.add("Add", x, g.linear(mixed, width, width)))
        x = norm(g.add("Add", x, g.linear(g.add("Gelu", g.linear(x, width, 4 * width)), 4 * width, width)))
    g.save(path, "bert", [helper.make_tensor_value_info("input", TensorProto.INT64, ["N", length])], x)


def ssd(path):
    g = Graph()
    x, taps = g.add("Relu", g.conv("input", 3, 32, 3, 2)), []
    for i, (a, b, stride) in enumerate([(32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)] + [(512, 512, 1)] * 5 + [(512, 1024, 2), (1024, 1024, 1)]):
        x = g.add("Relu", g.conv(x, a, a, 3, stride, group=a))
        x = g.add("Relu", g.conv(x, a, b, 1))
        if i in (10, 12):
            taps.append((x, b))
    for a, b in [(1024, 512), (512, 256), (256, 256), (256, 128)]:
        x = g.add("Relu", g.conv(g.add("Relu", g.conv(x, a, b // 2, 1)), b // 2, b, 3, 2))
        taps.append((x, b))
    heads = []
    for tap, channels in taps:
        for outputs in (6 * 4, 6 * 91):
            y = g.add("Transpose", g.conv(tap, channels, outputs, 1), perm=[0, 2, 3, 1])
            heads.append(g.add("Reshape", y, g.ints(0, -1)))
    g.save(path, "ssd-mobilenetv1", [helper.make_tensor_value_info("input", FLOAT, ["N", 3, 300, 300])], g.add("Concat", *heads, axis=1))


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    lenet(directory / "lenet.onnx")
    bert(directory / "bert.onnx")
    ssd(directory / "ssd-mobilenetv1.onnx")
