# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""Sequences: state on the server, over unary calls, HTTP and streams, with numbers and text as ids."""

import queue

import numpy as np
from target import ADDRESS, clients, refused, tensor


def value(module, n):
    return [tensor(module, "INPUT", np.array([[n]], np.int32))]


for protocol, (module, client) in clients().items():
    for model, ids in [("sequence", [1001, 1002, 1003]), ("sequence_text", ["a", "b b", "1003"])]:
        for step, n in enumerate([1, 10, 100, 1000]):
            for sequence in ids:
                r = client.infer(model, value(module, n), sequence_id=sequence, sequence_start=step == 0, sequence_end=step == 3)
                print(protocol, model, sequence, r.as_numpy("OUTPUT").tolist())
        refused(protocol + " after its end", lambda: client.infer(model, value(module, 1), sequence_id=ids[0]))

    if protocol == "grpc":
        answers = queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        for step in range(5):
            for sequence in [2001, 2002]:
                client.async_stream_infer("sequence", value(module, step + 1), sequence_id=sequence, sequence_start=step == 0, sequence_end=step == 4, request_id=str(sequence))
        for _ in range(10):
            result, error = answers.get(timeout=30)
            assert error is None, error
            print("stream", result.get_response().id, result.as_numpy("OUTPUT").tolist())
        client.stop_stream()
    client.close()
