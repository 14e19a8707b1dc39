# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""Ensembles: over gRPC, HTTP and streams, one output alone, steps that fail, an ensemble of an ensemble, statistics."""

import queue
import time

import numpy as np
from target import clients, refused, show, tensor

A, B = np.arange(32, dtype=np.int32).reshape(2, 16), np.full((2, 16), 10, np.int32)


def both(module):
    return [tensor(module, "A", A), tensor(module, "B", B)]


def floats(module, *values):
    return [tensor(module, "X", np.array([values], np.float32))]


for protocol, (module, client) in clients().items():
    options = {"as_json": True} if protocol == "grpc" else {}
    wanted = module.InferRequestedOutput

    def counts(model):
        """What was counted of a model: requests that were answered, and rows."""
        statistics = client.get_inference_statistics(model, **options)["model_stats"][0]
        return np.array([int(statistics["inference_stats"]["success"].get("count", 0)), int(statistics.get("inference_count", 0))])

    expected = {"pipeline": [2, 4], "add_sub": [4, 8]}
    before = {model: counts(model) for model in expected}
    show(protocol, client.infer("pipeline", both(module), request_id="an id"), "TWICE_A", "TWICE_B")
    show(protocol + " one output", client.infer("pipeline", both(module), outputs=[wanted("TWICE_B")]), "TWICE_B")
    for model in expected:
        until = time.time() + 30
        while (counts(model) < before[model] + expected[model]).any() and time.time() < until:  # a server counts after it has answered
            time.sleep(0.02)
        print(protocol, model, "counted", (counts(model) - before[model]).tolist())

    show(protocol + " diamond", client.infer("pipeline_diamond", both(module), outputs=[wanted("DIFFERENCE")]), "DIFFERENCE")
    show(protocol + " classes", client.infer("pipeline", both(module), outputs=[wanted("TWICE_A", class_count=1)]), "TWICE_A")
    show(protocol + " six steps", client.infer("pipeline_six", floats(module, 1, 2.5), priority=1, timeout=60_000_000), "Y")
    refused(protocol + " the fifth of six steps", lambda: client.infer("pipeline_six", floats(module, 1, -2.5)))
    show(protocol + " an ensemble of an ensemble", client.infer("pipeline_nested", floats(module, 3)), "Y")
    refused(protocol + " a step of a step", lambda: client.infer("pipeline_nested", floats(module, -3)))
    refused(protocol + " a tensor between steps", lambda: client.infer("pipeline", both(module), outputs=[wanted("sum")]))
    for model in ["pipeline", "pipeline_diamond"]:
        print(protocol, model, client.get_model_metadata(model, **options))

    if protocol == "grpc":
        answers = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        for i in range(4):
            client.async_stream_infer("pipeline", both(module), request_id=f"p{i}", outputs=[wanted("TWICE_B")])
            client.async_stream_infer("pipeline_six", floats(module, i, -i), request_id=f"s{i}")
            client.async_stream_infer("pipeline_nested", floats(module, i), request_id=f"n{i}")
        for _ in range(12):
            result, error = answers.get(timeout=30)
            if error is not None:
                print("stream error:", error.message())
                continue
            response = result.get_response()
            print("stream", response.id, response.model_name, [result.as_numpy(o.name).tolist() for o in response.outputs])
        client.stop_stream()
    client.close()
