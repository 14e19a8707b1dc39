# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""Streams: several models in order, decoupled models, errors, asyncio, cancellation."""

import asyncio
import queue

import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.grpc.aio as grpcaio
from target import ADDRESS, ROW, tensor


def repeat(*elements):
    return [tensor(grpcclient, "IN", np.array(elements, np.int32)), tensor(grpcclient, "DELAY", np.zeros(len(elements), np.uint32))]


def line(result, error):
    if error is not None:
        return f"error: {error.message()}"
    r = result.get_response()
    return f"{r.id} {r.model_name} {[o.name for o in r.outputs]} final={r.parameters['triton_final_response'].bool_param}"


answers = queue.Queue()
client = grpcclient.InferenceServerClient(ADDRESS.grpc)
client.start_stream(lambda result, error: answers.put((result, error)))
for i in range(12):
    client.async_stream_infer("identity", [tensor(grpcclient, "INPUT0", ROW * i)], request_id=str(i))
    client.async_stream_infer("string", [tensor(grpcclient, "INPUT0", np.array([["a"]], np.object_))], request_id=f"s{i}")
client.async_stream_infer("nope", [tensor(grpcclient, "INPUT0", ROW)], request_id="n")
client.async_stream_infer("identity", [tensor(grpcclient, "INPUT0", ROW)], request_id="last")
for _ in range(26):
    print(line(*answers.get(timeout=30)))
client.async_stream_infer("decoupled", repeat(4, 5, 6), request_id="d", enable_empty_final_response=True)
for _ in range(4):
    print(line(*answers.get(timeout=30)))
client.async_stream_infer("decoupled", repeat(7), request_id="e")
print(line(*answers.get(timeout=30)))
client.stop_stream()
assert answers.empty(), "more than was asked for"

client.start_stream(lambda result, error: answers.put((result, error)), compression_algorithm="gzip")
client.async_stream_infer("identity", [tensor(grpcclient, "INPUT0", ROW)], request_id="z")
print(line(*answers.get(timeout=30)))
client.async_stream_infer("pause", [tensor(grpcclient, "INPUT0", ROW)], request_id="gone")
client.stop_stream(cancel_requests=True)
print("after a cancelled stream:", client.infer("identity", [tensor(grpcclient, "INPUT0", ROW)]).as_numpy("OUTPUT0").tolist())
client.close()


async def stream():
    async with grpcaio.InferenceServerClient(ADDRESS.grpc) as client:

        async def requests():
            for i in range(4):
                yield {"model_name": "decoupled", "inputs": repeat(i, i + 1), "request_id": str(i), "enable_empty_final_response": True}

        lines = []
        async for result, error in client.stream_infer(requests()):
            lines.append(line(result, error))
        for text in sorted(lines):
            print("aio", text)


asyncio.run(stream())
