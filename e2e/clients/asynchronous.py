# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""Asynchronous inference: callbacks, futures, asyncio."""

import asyncio
import queue

import numpy as np
import tritonclient.grpc.aio as grpcaio
import tritonclient.http.aio as httpaio
from target import ADDRESS, clients, tensor

N = 24


def values(i):
    return np.full((i % 3 + 1, 2), i, np.float32)


for protocol, (module, client) in clients().items():
    if protocol == "grpc":
        done = queue.Queue()
        for i in range(N):
            client.async_infer("identity", [tensor(module, "INPUT0", values(i))], lambda result, error: done.put((result, error)), request_id=str(i))
        for _ in range(N):
            result, error = done.get(timeout=30)
            assert error is None, error
            i = int(result.get_response().id)
            assert np.array_equal(result.as_numpy("OUTPUT0"), values(i)), i
    else:
        futures = [client.async_infer("identity", [tensor(module, "INPUT0", values(i))]) for i in range(N)]
        for i, f in enumerate(futures):
            assert np.array_equal(f.get_result(timeout=30).as_numpy("OUTPUT0"), values(i)), i
    print(protocol, N, "answers, each its caller's")
    client.close()


async def together(name, module, address):
    async with module.InferenceServerClient(address) as client:
        answers = await asyncio.gather(*(client.infer("identity", [tensor(module, "INPUT0", values(i))]) for i in range(N)))
        for i, a in enumerate(answers):
            assert np.array_equal(a.as_numpy("OUTPUT0"), values(i)), i
        print(name, N, "answers;", "live", await client.is_server_live(), "ready", await client.is_model_ready("identity"))


asyncio.run(together("grpc.aio", grpcaio, ADDRESS.grpc))
asyncio.run(together("http.aio", httpaio, ADDRESS.http))
