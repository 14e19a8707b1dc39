# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""KeepAliveOptions: pings beside calls, beside a stream, and while nothing happens."""

import concurrent.futures
import queue
import time

import tritonclient.grpc as grpcclient
from target import ADDRESS, ROW, tensor

EVERY = 0.3  # seconds between two pings


def lines(permit, without_data):
    """What a client with these options sees; its calls and messages are rarer than its pings."""
    options = grpcclient.KeepAliveOptions(
        keepalive_time_ms=int(EVERY * 1000),
        keepalive_timeout_ms=5000,
        keepalive_permit_without_calls=permit,
        http2_max_pings_without_data=without_data,
    )
    client = grpcclient.InferenceServerClient(ADDRESS.grpc, keepalive_options=options)
    inputs = [tensor(grpcclient, "INPUT0", ROW)]
    seen = [f"permit={permit} without_data={without_data}"]
    for _ in range(3):
        seen.append(client.infer("identity", inputs).as_numpy("OUTPUT0").tolist())
        time.sleep(2 * EVERY)
    answers = queue.Queue()
    client.start_stream(lambda result, error: answers.put((result, error)))
    for i in range(3):
        client.async_stream_infer("identity", inputs, request_id=str(i))
        result, error = answers.get(timeout=30)
        seen.append(error or result.get_response().id)
        time.sleep(2 * EVERY)
    client.stop_stream()
    client.close()
    return seen


with concurrent.futures.ThreadPoolExecutor() as pool:
    for seen in pool.map(lines, [False, False, True, True], [0, 2, 0, 2]):
        print(*seen)
