# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""serve.py TRITONSERVER DIRECTORY: serves models of PyTorch (internal/pymodels/torch) with a tritonserver, and asks them.

The model "trap" hands tensors over by as_numpy() instead of dlpack: beside numpy 2 the python backend of Triton 2.51 then answers with tensors of no size.
"""

import json
import os
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request

TRAP = """import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb.get_input_tensor_by_name(request, "INPUT").as_numpy() for request in requests]
        return [pb.InferenceResponse(output_tensors=[pb.Tensor("OUTPUT", 2 * array + 1)]) for array in inputs]
"""
CONFIG = """backend: "python"
max_batch_size: 32
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 16 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 16 ] } ]
instance_group [ { count: 1 kind: KIND_CPU } ]
dynamic_batching { }
parameters { key: "conch_torch_network" value { string_value: "%s" } }
"""
SOURCES = "internal/pymodels/torch/"
HTTP = 18000


def write(models, name, network, code=None):
    version = os.path.join(models, name, "1")
    os.makedirs(version)
    with open(os.path.join(models, name, "config.pbtxt"), "w") as config:
        config.write(CONFIG % network)
    for module in ("model.py", "networks.py"):
        with open(SOURCES + module) as source, open(os.path.join(version, module), "w") as to:
            to.write(code if code and module == "model.py" else source.read())


def get(path, body=None):
    request = urllib.request.Request(f"http://127.0.0.1:{HTTP}{path}", data=body)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read()


def ask(name, rows):
    values = [float(i) for i in range(16 * rows)]
    tensor = {"name": "INPUT", "shape": [rows, 16], "datatype": "FP32", "data": values}
    answer = json.loads(get(f"/v2/models/{name}/infer", json.dumps({"inputs": [tensor]}).encode()))
    if answer["outputs"][0]["data"] != [2 * v + 1 for v in values]:
        raise ValueError(f"a wrong answer: {answer}")


def await_ready(server, seconds):
    began = time.time()
    while time.time() < began + seconds and server.poll() is None:
        try:
            get("/v2/health/ready")
            return time.time() - began
        except OSError:
            time.sleep(0.2)
    return None


def main():
    launcher, root = sys.argv[1:3]
    models = os.path.join(root, "models")
    for network in ("resnet50", "encoder"):
        write(models, network, network)
    write(models, "trap", "resnet50", TRAP)
    log = os.path.join(root, "server.log")
    arguments = [
        f"--model-repository={models}", "--disable-auto-complete-config", "--strict-readiness=false", "--exit-on-error=false", "--http-address=127.0.0.1",
        f"--http-port={HTTP}", "--allow-grpc=false", "--allow-metrics=false",
    ]
    with open(log, "w") as output:
        server = subprocess.Popen([launcher, *arguments], stdout=output, stderr=subprocess.STDOUT)
    seconds = await_ready(server, 90)
    print("not ready" if seconds is None else f"ready after {seconds:.1f} s", flush=True)
    for name in sorted(os.listdir(models)):
        for rows in (1, 8, 32):
            try:
                times = []
                for _ in range(40):
                    began = time.perf_counter()
                    ask(name, rows)
                    times.append(1e3 * (time.perf_counter() - began))
                print(f"{name}, {rows} rows: {statistics.median(times):.3f} ms a call over HTTP, median of {len(times)}", flush=True)
            except (OSError, ValueError) as error:
                said = error.read() if isinstance(error, urllib.error.HTTPError) else b""
                print(f"{name}, {rows} rows: fails: {error} {said.decode()[:500]}", flush=True)
                break
    server.terminate()
    try:
        server.wait(20)
    except subprocess.TimeoutExpired:
        server.kill()
        print("the server did not end within 20 s")
    with open(log) as lines:
        print(lines.read()[-3000:])


main()
