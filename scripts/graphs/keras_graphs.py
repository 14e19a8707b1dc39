# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the graphs of keras.applications without weights, layer by layer, as ONNX in NCHW order.

    KERAS_BACKEND=torch python keras_graphs.py DIRECTORY NAME...     writes DIRECTORY/NAME.onnx

Needs keras 3, torch and onnx. Weights are named as external data that is not there. Not part of build or test.
"""

import sys
from pathlib import Path

import keras
import onnx
from onnx import TensorProto, helper

FLOAT = TensorProto.FLOAT
ACTIVATIONS = {"relu": "Relu", "sigmoid": "Sigmoid", "softmax": "Softmax", "tanh": "Tanh", "hard_sigmoid": "HardSigmoid", "hard_silu": "HardSwish", "gelu": "Gelu"}


class Writer:
    def __init__(self):
        self.nodes, self.weights, self.count = [], [], 0

    def weight(self, dims):
        self.count += 1
        t = TensorProto(name=f"w{self.count}", data_type=FLOAT, dims=dims)
        t.data_location = TensorProto.EXTERNAL
        entry = t.external_data.add()
        entry.key, entry.value = "location", "weights.bin"
        self.weights.append(t)
        return t.name

    def ints(self, values):
        self.count += 1
        self.weights.append(helper.make_tensor(f"w{self.count}", TensorProto.INT64, [len(values)], values))
        return f"w{self.count}"

    def floats(self, values):
        self.count += 1
        self.weights.append(helper.make_tensor(f"w{self.count}", FLOAT, [len(values)], values))
        return f"w{self.count}"

    def add(self, op, inputs, **attributes):
        self.count += 1
        name = f"t{self.count}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def activation(self, x, function):
        name = getattr(function, "__name__", str(function))
        if name == "linear":
            return x
        if name in ("silu", "swish"):
            return self.add("Mul", [x, self.add("Sigmoid", [x])])
        if name == "relu6":
            return self.add("Clip", [x])
        if name not in ACTIVATIONS:
            raise ValueError(f"activation {name}")
        return self.add(ACTIVATIONS[name], [x])


def pads(layer):
    return {"auto_pad": "SAME_UPPER" if getattr(layer, "padding", "valid") == "same" else "VALID"}


def convert(w, layer, x):
    kind = type(layer).__name__
    if kind in ("InputLayer", "Rescaling", "Normalization", "Dropout", "SpatialDropout2D", "GlobalAveragePooling2D", "Activation", "Reshape", "Flatten"):
        if kind == "GlobalAveragePooling2D":
            y = w.add("GlobalAveragePool", x)
            return y if layer.keepdims else w.add("Flatten", [y])
        if kind == "Activation":
            return w.activation(x[0], layer.activation)
        if kind == "Reshape":
            shape = layer.target_shape
            return w.add("Reshape", [x[0], w.ints([0, shape[-1], *shape[:-1]])])
        if kind == "Flatten":
            return w.add("Flatten", x)
        return w.add("Mul", [x[0], w.floats([0.5])]) if kind in ("Rescaling", "Normalization") else x[0]
    if kind in ("Conv2D", "DepthwiseConv2D", "SeparableConv2D"):
        inputs = layer.input.shape[-1]
        keys = {"kernel_shape": list(layer.kernel_size), "strides": list(layer.strides), "dilations": list(layer.dilation_rate), **pads(layer)}
        if kind == "Conv2D":
            y = w.add("Conv", [x[0], w.weight([layer.filters, inputs // layer.groups, *layer.kernel_size])], group=layer.groups, **keys)
        else:
            y = w.add("Conv", [x[0], w.weight([inputs, 1, *layer.kernel_size])], group=inputs, **keys)
            if kind == "SeparableConv2D":
                y = w.add("Conv", [y, w.weight([layer.filters, inputs, 1, 1])], kernel_shape=[1, 1])
        return w.activation(y, layer.activation)
    if kind == "Dense":
        y = w.add("Gemm", [x[0], w.weight([layer.input.shape[-1], layer.units]), w.weight([layer.units])])
        return w.activation(y, layer.activation)
    if kind == "BatchNormalization":
        c = layer.input.shape[-1]
        return w.add("BatchNormalization", [x[0]] + [w.weight([c]) for _ in range(4)])
    if kind == "ReLU":
        return w.add("Relu" if layer.max_value is None else "Clip", x[:1])
    if kind in ("MaxPooling2D", "AveragePooling2D"):
        return w.add("MaxPool" if kind[0] == "M" else "AveragePool", x, kernel_shape=list(layer.pool_size), strides=list(layer.strides), **pads(layer))
    if kind == "ZeroPadding2D":
        (a, b), (c, d) = layer.padding
        return w.add("Pad", [x[0], w.ints([0, 0, a, c, 0, 0, b, d])])
    if kind == "Cropping2D":
        (a, b), (c, d) = layer.cropping
        return w.add("Slice", [x[0], w.ints([a, c]), w.ints([-b or 2**31, -d or 2**31]), w.ints([2, 3])])
    if kind in ("Add", "Multiply"):
        return w.add("Add" if kind == "Add" else "Mul", x if len(x) > 1 else [x[0], w.floats([0.5])])
    if kind == "Concatenate":
        return w.add("Concat", x, axis=1)
    if kind == "CustomScaleLayer":
        return w.add("Add", [x[0], w.add("Mul", [x[1], w.floats([0.2])])])
    raise ValueError(f"layer {kind}")


def main(directory, names):
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = directory / f"{name}.onnx"
        if path.exists():
            continue
        model = getattr(keras.applications, name)(weights=None)
        w, value = Writer(), {}
        waiting = list(model._operations)  # layers, and arithmetic between them
        while waiting:  # not every model lists its layers in an order in which they can run
            left = []
            for layer in waiting:
                sources = layer._inbound_nodes[0].input_tensors
                if type(layer).__name__ == "InputLayer":
                    value[id(layer.output)] = "input"
                elif all(id(s) in value for s in sources):
                    value[id(layer.output)] = convert(w, layer, [value[id(s)] for s in sources])
                else:
                    left.append(layer)
            if len(left) == len(waiting):
                raise ValueError(f"{name}: nothing gives the inputs of {[layer.name for layer in left][:5]}")
            waiting = left
        size = model.input_shape[1]
        w.nodes.append(helper.make_node("Identity", [value[id(model.output)]], ["output"]))
        graph = helper.make_graph(w.nodes, name, [helper.make_tensor_value_info("input", FLOAT, ["N", 3, size, size])],
                                  [helper.make_tensor_value_info("output", FLOAT, ["N", 1000])], w.weights)
        path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString(deterministic=True))
        print(name, path.stat().st_size, flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: keras_graphs.py DIRECTORY NAME...")
    main(Path(sys.argv[1]), sys.argv[2:])
