# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks every model of a directory and runs it on two rows.

    python run.py DIRECTORY
"""

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

for path in sorted(Path(sys.argv[1]).glob("*.onnx")):
    onnx.checker.check_model(str(path), full_check=True)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feed = session.get_inputs()[0]
    shape = [2] + feed.shape[1:]
    x = np.ones(shape, np.int64 if "int64" in feed.type else np.float32)
    y = session.run(None, {feed.name: x})[0]
    print(path.name, "finite" if np.isfinite(y).all() and np.abs(y).max() > 0 else y)
