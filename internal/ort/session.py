# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs ONNX models for a Go program: one JSON line per request on stdin, with tensors as raw bytes behind it, answers the same way.

    {"do": "load", "name": N, "path": P, "level": L}     level: 0 to 3, how much ONNX Runtime optimises
    {"do": "run", "name": N, "inputs": [{"name", "type", "dims", "bytes"}], "repeat": R}     then the bytes of each input
    {"do": "unload", "name": N}
    {"do": "nothing"}

An answer is {"error": text} or {"outputs": [...], "seconds": [...], "rss": bytes}, then the bytes of each output.
"""

import json
import sys
import time

import numpy as np
import onnx
import onnxruntime


def main():
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    sessions = {}
    levels = [
        onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
        onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
        onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    ]
    for line in stdin:
        ask = json.loads(line)
        feed = {}
        for i in ask.get("inputs") or []:
            raw = stdin.read(i["bytes"])
            kind = onnx.helper.tensor_dtype_to_np_dtype(i["type"])
            feed[i["name"]] = np.frombuffer(raw, kind).reshape(i["dims"])
        outputs, arrays, seconds, error = [], [], [], ""
        try:
            if ask["do"] == "load":
                options = onnxruntime.SessionOptions()
                options.intra_op_num_threads = options.inter_op_num_threads = 1
                options.graph_optimization_level = levels[ask["level"]]
                sessions[ask["name"]] = onnxruntime.InferenceSession(ask["path"], options, providers=["CPUExecutionProvider"])
            elif ask["do"] == "unload":
                del sessions[ask["name"]]
            elif ask["do"] == "run":
                session = sessions[ask["name"]]
                for _ in range(max(ask.get("repeat") or 1, 1)):
                    start = time.perf_counter()
                    arrays = session.run(None, feed)
                    seconds.append(time.perf_counter() - start)
                for o, a in zip(session.get_outputs(), arrays):
                    outputs.append({"name": o.name, "type": onnx.helper.np_dtype_to_tensor_dtype(a.dtype), "dims": list(a.shape), "bytes": a.nbytes})
        except Exception as e:  # ONNX Runtime's errors share no base class; the caller gets every one of them
            outputs, arrays, error = [], [], str(e) or type(e).__name__
        with open("/proc/self/status") as status:
            rss = next(int(s.split()[1]) * 1024 for s in status if s.startswith("VmRSS"))
        stdout.write(json.dumps({"error": error, "outputs": outputs, "seconds": seconds, "rss": rss}).encode() + b"\n")
        for a in arrays:
            stdout.write(np.ascontiguousarray(a).tobytes())
        stdout.flush()


main()
