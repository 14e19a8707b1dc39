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
    feeds = {f.name: np.ones([2] + f.shape[1:], np.int64 if "int64" in f.type else np.float32) for f in session.get_inputs()}
    y = session.run(None, feeds)[0]
    print(path.name, "finite" if np.isfinite(y).all() and np.abs(y).max() > 0 else y)
