# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""Serves the models of e2e/models with a tritonserver and compares the answers with what they must be.

    python check_triton.py TRITONSERVER GRAPHS
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import onnxruntime

ROOT = Path(__file__).resolve().parents[2]
MODEL_PY = {"cnn": "onnx", "encoder": "onnx", "emulated": "emulate", "fragile": "fragile"}


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def write_repository(repository, graphs):
    for name, kind in MODEL_PY.items():
        version = repository / name / "1"
        version.mkdir(parents=True)
        shutil.copy(ROOT / "e2e" / "models" / name / "config.pbtxt", version.parent)
        shutil.copy(ROOT / "internal" / "pymodels" / kind / "model.py", version)
        if kind == "onnx":
            shutil.copy(graphs / (name + ".onnx"), version / "model.onnx")


def call(base, path, body=None):
    request = urllib.request.Request(base + path, None if body is None else json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def infer(base, model, name, datatype, array):
    body = {"inputs": [{"name": name, "datatype": datatype, "shape": list(array.shape), "data": array.ravel().tolist()}]}
    output = json.loads(call(base, f"/v2/models/{model}/infer", body))["outputs"][0]
    return np.array(output["data"], np.float32).reshape(output["shape"])


def check(what, got, want, tolerance=0.0):
    worst = float(np.max(np.abs(got - want)))
    if got.shape != want.shape or not worst <= tolerance:
        sys.exit(f"{what}: the answer is off by {worst}, shape {got.shape} instead of {want.shape}")
    print(f"{what}: off by {worst}")


def main(server, graphs):
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="conch-check-") as directory:
        repository = Path(directory, "models")
        write_repository(repository, graphs)
        http, grpc, metrics = free_ports(3)
        base = f"http://127.0.0.1:{http}"
        process = subprocess.Popen(
            [
                server,
                f"--model-repository={repository}",
                "--model-control-mode=explicit",
                "--disable-auto-complete-config",
                "--strict-readiness=false",
                "--http-address=127.0.0.1",
                "--grpc-address=127.0.0.1",
                f"--http-port={http}",
                f"--grpc-port={grpc}",
                f"--metrics-port={metrics}",
                "--backend-config=python,shm-region-prefix-name=conch-check",
            ],
            env=dict(os.environ, CONCH_EMULATION_DIR=directory, CONCH_PARTITION="check", CONCH_GPU="0", CONCH_SHARE="100"),
        )
        try:
            while True:
                try:
                    call(base, "/v2/health/ready")
                    break
                except (urllib.error.URLError, ConnectionError):
                    if process.poll() is not None:
                        sys.exit(f"tritonserver ended with status {process.returncode}")
                    if time.monotonic() - started > 60:
                        sys.exit("tritonserver was not ready after a minute")
                    time.sleep(0.02)
            print(f"ready after {time.monotonic() - started:.2f} s")
            for name in MODEL_PY:
                call(base, f"/v2/repository/models/{name}/load", {})

            random = np.random.RandomState(0)
            x = random.rand(3, 16).astype(np.float32)
            check("emulated", infer(base, "emulated", "INPUT", "FP32", x), 2 * x + 1)
            check("fragile", infer(base, "fragile", "INPUT", "FP32", x), 2 * x + 1)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            for name, tensor, datatype, array in [
                ("cnn", "INPUT", "FP32", random.rand(2, 3, 32, 32).astype(np.float32)),
                ("encoder", "TOKENS", "INT64", random.randint(0, 1000, (2, 32))),
            ]:
                direct = onnxruntime.InferenceSession(str(graphs / (name + ".onnx")), options)
                check(name, infer(base, name, tensor, datatype, array), direct.run(None, {tensor: array})[0], 1e-6)
            version = json.loads(call(base, "/v2"))["version"]
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
    print(f"tritonserver {version} serves all four models; checked in {time.monotonic() - started:.1f} s")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], Path(sys.argv[2]))
