# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the emulating model of MODEL.PY on cases of internal/zoo/executions, a line of JSON each, and prints what each execution took in microseconds.

What Triton gives to a python model is stood in for, and so is the clock: sleeping takes no time. Every partition is an instance of the model with an
environment of its own, as in a process of its own.
"""

import importlib.util
import json
import os
import sys
import tempfile
import types


class Clock:
    """Stands in for the module time: what sleeps wakes when the clock is there."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Rows:
    """Stands in for an array of so many rows."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return self.rows

    def __rmul__(self, _):
        return self

    def __add__(self, _):
        return self


stand_in = types.ModuleType("triton_python_backend_utils")
stand_in.TritonModelException = Exception
stand_in.get_input_tensor_by_name = lambda request, _: types.SimpleNamespace(as_numpy=lambda: request)
stand_in.Tensor = lambda name, array: (name, array)
stand_in.InferenceResponse = lambda output_tensors: output_tensors
sys.modules["triton_python_backend_utils"] = stand_in
spec = importlib.util.spec_from_file_location("model", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)


def model(partition, share, alpha, beta, knee, l2, bandwidth, overlap=0):
    """A model on a partition, initialised as Triton does."""
    os.environ.update(CONCH_GPU="gpu0", CONCH_PARTITION=partition, CONCH_SHARE=str(share))
    given = {"alpha_us": alpha, "beta_us": beta, "knee": knee, "l2": l2, "bandwidth": bandwidth, "overlap": overlap}
    parameters = {"conch_emulate_" + name: {"string_value": repr(value)} for name, value in given.items()}
    m = module.TritonPythonModel()
    m.initialize({"model_config": json.dumps({"parameters": parameters}), "model_name": "m", "model_repository": "/nowhere", "model_version": "1"})
    return m


for line in sys.stdin:
    case = json.loads(line)
    with tempfile.TemporaryDirectory() as directory:
        os.environ["CONCH_EMULATION_DIR"] = directory
        clock = module.time = Clock()
        began = clock.now
        for i, other in enumerate(case["others"]):
            # What runs beside, on its own: it is still running for the others once the clock is set back.
            o = model("other%d" % i, other["share"], 0, other["takes_us"] * other["share"] / 100, 100, other["l2"], other["bandwidth"])
            clock.now, write = began, os.pwrite
            seen = []
            os.pwrite = lambda fd, data, offset: seen.append((fd, data)) or write(fd, data, offset)
            o.execute([Rows(1)])
            os.pwrite = write
            fd, running = seen[0]
            os.pwrite(fd, running, 0)
        clock.now = began + case["after_us"] / 1e6
        own = model("own", case["share"], case["alpha_us"], case["beta_us"], case["knee"], case["l2"], case["bandwidth"], case["overlap"])
        start = clock.now
        own.execute([Rows(case["rows"])])
        print(round((clock.now - start) * 1e6, 3), flush=True)
