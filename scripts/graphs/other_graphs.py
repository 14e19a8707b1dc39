# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes architectures that neither torchvision nor keras.applications has, without weights: a LeNet, an encoder of BERT's base size on 128
tokens, and MobileNetV1 with an SSD head on 300x300 images (the models of gpulet's utilisation files); and the transformers that NeuSight timed whole,
as Hugging Face's models without a fused attention execute them.

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

    def scalar(self, value):
        self.count += 1
        self.weights.append(helper.make_tensor(f"w{self.count}", TensorProto.INT64, [], [value]))
        return f"w{self.count}"

    def mask(self, length):
        """A lower triangle: which positions a position may see."""
        self.count += 1
        t = TensorProto(name=f"w{self.count}", data_type=TensorProto.BOOL, dims=(1, 1, length, length))
        t.data_location = TensorProto.EXTERNAL
        entry = t.external_data.add()
        entry.key, entry.value = "location", "weights.bin"
        self.weights.append(t)
        return t.name

    def split(self, x, width):
        """Three views: PyTorch moves nothing for them."""
        self.count += 1
        names = [f"t{self.count}_{i}" for i in range(3)]
        self.nodes.append(helper.make_node("Split", [x, self.ints(width, width, width)], names, name=f"split_{self.count}", axis=-1))
        return names

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


def classifier(path, length=512, width=1024, heads=16, layers=24, vocabulary=30522, classes=2):
    """BertForSequenceClassification."""
    g = Graph()

    def norm(x):
        return g.add("LayerNormalization", x, g.weight(width), g.weight(width), axis=-1)

    def split(x, order):
        return g.add("Transpose", g.add("Reshape", x, g.ints(0, length, heads, width // heads)), perm=order)

    x = g.add("Add", g.add("Gather", g.weight(vocabulary, width), "input"), g.weight(1, length, width))
    x = norm(g.add("Add", x, g.weight(1, length, width)))
    for _ in range(layers):
        q, k, v = split(g.linear(x, width, width), [0, 2, 1, 3]), split(g.linear(x, width, width), [0, 2, 3, 1]), split(g.linear(x, width, width), [0, 2, 1, 3])
        scores = g.add("Softmax", g.add("Add", g.add("Div", g.add("MatMul", q, k), g.weight(1)), g.weight(1, 1, 1, length)), axis=-1)
        mixed = g.add("Reshape", g.add("Transpose", g.add("MatMul", scores, v), perm=[0, 2, 1, 3]), g.ints(0, length, width))
        x = norm(g.add("Add", g.linear(mixed, width, width), x))
        x = norm(g.add("Add", g.linear(g.add("Gelu", g.linear(x, width, 4 * width)), 4 * width, width), x))
    first = g.add("Gather", x, g.scalar(0), axis=1)
    x = g.linear(g.add("Tanh", g.linear(first, width, width)), width, classes)
    g.save(path, "bert-large", [helper.make_tensor_value_info("input", TensorProto.INT64, ["N", length])], x)


def gpt(path, name, length, width, heads, layers, vocabulary=50257):
    """GPT2LMHeadModel with gelu_new, whose eight steps are eight kernels."""
    g = Graph()

    def norm(x):
        return g.add("LayerNormalization", x, g.weight(width), g.weight(width), axis=-1)

    def split(x, order):
        return g.add("Transpose", g.add("Reshape", x, g.ints(0, length, heads, width // heads)), perm=order)

    def number():
        return g.weight(1)

    x = g.add("Add", g.add("Gather", g.weight(vocabulary, width), "input"), g.weight(1, length, width))
    for _ in range(layers):
        parts = g.split(g.linear(norm(x), width, 3 * width), width)
        q, k, v = split(parts[0], [0, 2, 1, 3]), split(parts[1], [0, 2, 3, 1]), split(parts[2], [0, 2, 1, 3])
        scores = g.add("Div", g.add("MatMul", q, k), number())
        scores = g.add("Softmax", g.add("Where", g.mask(length), scores, number()), axis=-1)
        mixed = g.add("Reshape", g.add("Transpose", g.add("MatMul", scores, v), perm=[0, 2, 1, 3]), g.ints(0, length, width))
        x = g.add("Add", g.linear(mixed, width, width), x)
        y = g.linear(norm(x), width, 4 * width)
        inner = g.add("Tanh", g.add("Mul", g.add("Add", y, g.add("Mul", g.add("Pow", y, number()), number())), number()))
        y = g.add("Mul", g.add("Mul", y, number()), g.add("Add", inner, number()))
        x = g.add("Add", x, g.linear(y, 4 * width, width))
    g.save(path, name, [helper.make_tensor_value_info("input", TensorProto.INT64, ["N", length])], g.add("MatMul", norm(x), g.weight(width, vocabulary)))


def opt(path, name, length, width, heads, layers, vocabulary=50272):
    """OPTForCausalLM: a scaled query, scores bounded from below, Relu."""
    g = Graph()

    def norm(x):
        return g.add("LayerNormalization", x, g.weight(width), g.weight(width), axis=-1)

    def split(x, order):
        return g.add("Transpose", g.add("Reshape", x, g.ints(0, length, heads, width // heads)), perm=order)

    x = g.add("Add", g.add("Gather", g.weight(vocabulary, width), "input"), g.weight(1, length, width))
    for _ in range(layers):
        y = norm(x)
        q, k, v = split(g.add("Mul", g.linear(y, width, width), g.weight(1)), [0, 2, 1, 3]), split(g.linear(y, width, width), [0, 2, 3, 1]), split(g.linear(y, width, width), [0, 2, 1, 3])
        scores = g.add("Add", g.add("MatMul", q, k), g.weight(1, 1, length, length))
        scores = g.add("Softmax", g.add("Max", scores, g.weight(1)), axis=-1)
        mixed = g.add("Reshape", g.add("Transpose", g.add("MatMul", scores, v), perm=[0, 2, 1, 3]), g.ints(0, length, width))
        x = g.add("Add", x, g.linear(mixed, width, width))
        x = g.add("Add", x, g.linear(g.add("Relu", g.linear(norm(x), width, 4 * width)), 4 * width, width))
    g.save(path, name, [helper.make_tensor_value_info("input", TensorProto.INT64, ["N", length])], g.add("MatMul", norm(x), g.weight(width, vocabulary)))


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
    classifier(directory / "bert-large.onnx")
    gpt(directory / "gpt2-large.onnx", "gpt2-large", 1024, 1280, 20, 36)
    gpt(directory / "gpt3-xl.onnx", "gpt3-xl", 2048, 3072, 24, 24)
    gpt(directory / "gpt3-2.7b.onnx", "gpt3-2.7b", 2048, 2560, 32, 32)
    opt(directory / "opt-1.3b.onnx", "opt-1.3b", 2048, 2048, 32, 24)
