# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""Reads a model with the onnx package and writes it again, weights inside.

    python again.py FROM TO
"""

import sys

import onnx

onnx.save(onnx.load(sys.argv[1]), sys.argv[2])
