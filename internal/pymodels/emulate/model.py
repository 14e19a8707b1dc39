# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""An emulated model behind a real tritonserver: OUTPUT = 2 * INPUT + 1, after as long as the GPU would have taken.

The rules are those of internal/minitriton and of the simulator, and internal/zoo/executions has a table that all three are tested against:

- l(b) = beta + alpha * b microseconds for b rows, times knee / min(share, knee), times a normal jitter, times the stretch.
- Everything on a partition takes turns: one flock per partition, whichever process and model. The part conch_emulate_overlap of beta goes before
  the turn: it runs beside other executions, as launches and small kernels do in streams of their own. 0, the default, overlaps nothing.
- An execution that starts beside others on its GPU is slowed by gpulet's linear model, by the worst of them; the factor is taken at the start and
  holds to the end (policy.Interference.Slowdown). What runs where is told through one small file per partition.
- A server over several GPUs has all of their names in CONCH_GPU, with commas between them. An instance in an instance group that is called like one of them
  runs there; any other instance runs wherever it finds a GPU free.
- With a model.onnx beside this file, that says what is computed; how long it takes is emulated all the same.
"""

import ctypes
import fcntl
import json
import os
import random
import struct
import time

import triton_python_backend_utils as pb

# What one partition tells the others: when its execution ends (CLOCK_MONOTONIC, seconds), its L2 and its bandwidth utilisation. An end
# in the past means idle, so that a server killed in the middle of an execution is idle as soon as that execution would have ended.
RUNNING = struct.Struct("=ddd")
PR_SET_TIMERSLACK = 29


def slowdown(l2, bandwidth, other_l2, other_bandwidth):
    """policy.Interference.Slowdown with policy.GpuletInterference: gpulet, section 4.4; never below 1."""
    return max(
        1.0,
        0.1129 * l2 + 0.7160 * other_l2 + 0.3549 * bandwidth + 0.0882 * other_bandwidth + 0.8954,
    )


class Partition:
    """The partition of this process: its lock, and what it and its neighbours run."""

    def __init__(self, directory, gpu, partition):
        self.name = partition
        self.directory = os.path.join(directory, "gpu-" + gpu)
        os.makedirs(self.directory, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self.lock = os.open(os.path.join(directory, "partition-" + partition + ".lock"), flags, 0o600)
        self.state = os.open(os.path.join(self.directory, partition), flags, 0o600)
        self.neighbours = {}
        self.seen = None

    def refresh(self):
        """Opens the files of partitions that came since the last look."""
        changed = os.stat(self.directory).st_mtime_ns
        if changed == self.seen:
            return
        names = set(os.listdir(self.directory)) - {self.name}
        for name in names - self.neighbours.keys():
            self.neighbours[name] = os.open(os.path.join(self.directory, name), os.O_RDONLY | os.O_CLOEXEC)
        for name in self.neighbours.keys() - names:
            os.close(self.neighbours.pop(name))
        self.seen = changed

    def factor(self, l2, bandwidth):
        """By how much the neighbours that run now slow an execution that starts now."""
        self.refresh()
        now, worst = time.monotonic(), 1.0
        for fd in self.neighbours.values():
            state = os.pread(fd, RUNNING.size, 0)
            if len(state) == RUNNING.size:
                end, other_l2, other_bandwidth = RUNNING.unpack(state)
                if end > now:
                    worst = max(worst, slowdown(l2, bandwidth, other_l2, other_bandwidth))
        return worst

    def take(self, wait=True):
        """Takes the partition's turn; whether it could, if it does not wait."""
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def hold(self, seconds, l2, bandwidth):
        """Holds the turn for the given time at full speed, stretched by interference, and gives it back."""
        try:
            end = time.monotonic() + seconds * self.factor(l2, bandwidth)
            os.pwrite(self.state, RUNNING.pack(end, l2, bandwidth), 0)
            while True:
                left = end - time.monotonic()
                if left <= 0:
                    return
                time.sleep(left)
        finally:
            os.pwrite(self.state, RUNNING.pack(0, 0, 0), 0)
            fcntl.flock(self.lock, fcntl.LOCK_UN)

    def run(self, seconds, l2, bandwidth):
        self.take()
        self.hold(seconds, l2, bandwidth)


class Node:
    """All GPUs of a server, for instances that are bound to none of them."""

    LOOK = 0.0005  # seconds between two looks, some percent of an execution

    def __init__(self, directory, gpus):
        self.partitions = [Partition(directory, gpu, gpu) for gpu in gpus]
        self.door = os.open(os.path.join(directory, "node.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def run(self, seconds, l2, bandwidth):
        """Takes the turn of the first GPU that is free, and waits for one if none is: one instance looks at a time, the others stand in line."""
        fcntl.flock(self.door, fcntl.LOCK_EX)
        try:
            while not (free := next((p for p in self.partitions if p.take(wait=False)), None)):
                time.sleep(self.LOOK)
        finally:
            fcntl.flock(self.door, fcntl.LOCK_UN)
        free.hold(seconds, l2, bandwidth)


class TritonPythonModel:
    def initialize(self, args):
        parameters = {k: v["string_value"] for k, v in json.loads(args["model_config"])["parameters"].items()}

        def number(name, default):
            return float(parameters.get("conch_emulate_" + name, default))

        share = float(os.environ.get("CONCH_SHARE") or 100)
        knee = number("knee", 100)
        stretch = float(os.environ.get("CONCH_EMULATION_STRETCH") or 1)
        scale = knee / min(share, knee) * stretch / 1e6
        self.alpha, self.beta = number("alpha_us", 0) * scale, number("beta_us", 0) * scale
        self.overlapped = number("overlap", 0) * self.beta
        self.l2 = number("l2", 0.3) * share / 100
        self.bandwidth = number("bandwidth", 0.3) * share / 100
        self.jitter = number("jitter", 0)
        self.random = random.Random(args["model_name"])

        gpus = (os.environ.get("CONCH_GPU") or "0").replace("/", "_").split(",")
        partition = (os.environ.get("CONCH_PARTITION") or gpus[0]).replace("/", "_")
        directory = os.environ.get("CONCH_EMULATION_DIR")
        if not directory:
            raise pb.TritonModelException(
                "CONCH_EMULATION_DIR is not set: an emulated model needs a directory in which the servers of one machine share their locks"
            )
        group = args.get("model_instance_name", "").rsplit("_", 1)[0]
        if len(gpus) == 1:
            self.partition = Partition(directory, gpus[0], partition)
        elif group in gpus:
            self.partition = Partition(directory, group, group)
        else:
            self.partition = Node(directory, gpus)
        self.session = None
        graph = os.path.join(args["model_repository"], args["model_version"], "model.onnx")
        if os.path.exists(graph):
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            self.session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
            self.names = [i.name for i in self.session.get_inputs()], [o.name for o in self.session.get_outputs()]
        # By default Linux may be 50 us late with every timer.
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)

    def execute(self, requests):
        inputs = [pb.get_input_tensor_by_name(request, "INPUT").as_numpy() for request in requests]
        seconds, overlapped = self.beta + self.alpha * sum(len(array) for array in inputs), self.overlapped
        if self.jitter:
            factor = max(0.0, self.random.gauss(1, self.jitter))
            seconds, overlapped = seconds * factor, overlapped * factor
        if overlapped:
            time.sleep(overlapped)
        self.partition.run(seconds - overlapped, self.l2, self.bandwidth)
        if self.session:
            return [self.compute(request) for request in requests]
        return [pb.InferenceResponse(output_tensors=[pb.Tensor("OUTPUT", 2 * array + 1)]) for array in inputs]

    def compute(self, request):
        inputs, outputs = self.names
        got = self.session.run(outputs, {n: pb.get_input_tensor_by_name(request, n).as_numpy() for n in inputs})
        return pb.InferenceResponse(output_tensors=[pb.Tensor(n, array) for n, array in zip(outputs, got)])
