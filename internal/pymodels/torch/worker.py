# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""Times executions of networks on a GPU: a command, one line of JSON, for each answer, another line.

    {"do": "sms"}                                              multiprocessors that this process may use
    {"do": "alone", "network": N, "rows": B, "seconds": S}     milliseconds of executions, one after the other: median and 99th percentile
    {"do": "streams", ..., "streams": K}                       executions a second and the median milliseconds of one, K at a time, each in a stream of its own
    {"do": "count", ..., "at": T}                              executions between T (seconds of time.time) and T + S, for processes side by side

Its one argument is a JSON object: {"networks": {N: how many instances of it}, "sizes": [B, ...]}. K is at most the number of instances.
"""

import json
import statistics
import sys
import time

import networks
import torch


class Worker:
    def __init__(self, networks_wanted, sizes, device):
        self.cuda = device == "cuda"
        self.made = {n: [networks.Network(n, sizes, device) for _ in range(count)] for n, count in networks_wanted.items()}
        self.lanes = [torch.cuda.Stream() for _ in range(max(networks_wanted.values()))] if self.cuda else []

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()

    def once(self, network, rows):
        start = time.perf_counter()
        network.launch(rows)
        self.wait()
        return 1e3 * (time.perf_counter() - start)

    def sms(self):
        return {"sms": torch.cuda.get_device_properties(0).multi_processor_count if self.cuda else 0}

    def alone(self, network, rows, seconds):
        n = self.made[network][0]
        end, times = time.perf_counter() + seconds, []
        while time.perf_counter() < end or len(times) < 5:
            times.append(self.once(n, rows))
        times = sorted(times[len(times) // 10 :])
        return {"ms": statistics.median(times), "p99_ms": times[len(times) * 99 // 100], "n": len(times)}

    def streams(self, network, rows, seconds, streams):
        pairs = list(zip(self.made[network][:streams], self.lanes, strict=False))
        assert len(pairs) == streams
        done, times, busy = 0, [], []
        start = time.perf_counter()
        for n, lane in pairs:
            busy.append(self.begin(n, lane, rows))
        while time.perf_counter() < start + seconds:
            for i, (n, lane) in enumerate(pairs):
                began, event = busy[i]
                if event.query():
                    times.append(1e3 * (time.perf_counter() - began))
                    done += 1
                    busy[i] = self.begin(n, lane, rows)
        took = time.perf_counter() - start
        self.wait()
        return {"per_second": done / took, "ms": statistics.median(times), "n": done}

    def begin(self, network, lane, rows):
        with torch.cuda.stream(lane):
            network.launch(rows)
            event = torch.cuda.Event()
            event.record(lane)
        return time.perf_counter(), event

    def count(self, network, rows, seconds, at):
        n, done = self.made[network][0], 0
        while time.time() < at:
            pass
        end = at + seconds
        while True:
            self.once(n, rows)
            if time.time() > end:
                return {"per_second": done / seconds, "n": done}
            done += 1


def main():
    asked = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    worker = Worker(asked["networks"], asked["sizes"], asked.get("device", "cuda"))
    print(json.dumps({"ready": True, "torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        do = command.pop("do")
        try:
            answer = getattr(worker, do)(**command)
        except Exception as error:  # whoever asked reads it
            answer = {"error": f"{do} {command}: {error!r}"}
        print(json.dumps(answer), flush=True)


main()
