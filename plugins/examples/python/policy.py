# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""A policy for Conch in Python: one place per model, on the GPU with most memory left, and a second one where that serves more.

README.md in this folder says how to run it. The messages come from ../../policy/policy.proto.
"""
import os
import queue
import sys
import tempfile
from concurrent import futures

import grpc

import policy_pb2 as pb
import policy_pb2_grpc as rpc

COOKIE = "6d0a3b5e-policy-v2"


def weights_and_working(model):
    """Bytes of the model once loaded, and of the work on its largest batch."""
    return model.memory_bytes, model.activation_bytes_per_row * max(1, model.max_batch_size)


class Packing:
    """Partitions of 100%, one per GPU, and why a model may not go into one."""

    def __init__(self, snapshot):
        self.s = snapshot
        gpus = [(n.name, g) for n in snapshot.nodes for g in n.gpus if not g.unavailable]
        self.gpus = sorted(gpus, key=lambda ng: (ng[0], ng[1].index, ng[1].id))
        self.held = {i: [] for i in range(len(self.gpus))}

    def rules(self, model):
        return [c for c in self.s.constraints if c.model in ("*", model.name)]

    def bytes(self, i, *more):
        parts = [weights_and_working(m) for m in self.held[i] + list(more)]
        context = self.gpus[i][1].context_bytes if parts else 0
        return context + sum(w for w, _ in parts) + max([a for _, a in parts], default=0)

    def refuse(self, i, model):
        """One of the causes of the contract; empty where the model may lie on GPU i."""
        gpu = self.gpus[i][1]
        for c in self.rules(model):
            if c.gpus and gpu.id not in c.gpus or c.max_instances and self.places(model) >= c.max_instances:
                return "constraint"
            if c.max_thread_percentage and c.max_thread_percentage < 100:
                return "share"
        # What wants a partition for itself, or has to stay somewhere, or calls other models, is beyond this example.
        if model.depends_on or any(c.exclusive or c.pinned for c in self.rules(model)):
            return "constraint"
        if gpu.memory_bytes and self.bytes(i, model) > gpu.memory_bytes:
            return "memory"
        return ""

    def places(self, model):
        return sum(model in held for held in self.held.values())

    def put(self, model):
        """Adds the model to the allowed GPU with most memory left; false where there is none."""
        allowed = [i for i in self.held if model not in self.held[i] and not self.refuse(i, model)]
        if not allowed:
            return False
        left = lambda i: (self.gpus[i][1].memory_bytes or 1 << 62) - self.bytes(i)
        self.held[max(allowed, key=lambda i: (left(i), -i))].append(model)
        return True

    def plan(self):
        plan = pb.Plan(snapshot_revision=self.s.revision, policy="spread", policy_version="0.1.0")
        for i, (node, gpu) in enumerate(self.gpus):
            if self.held[i]:
                name = f"{node}.{gpu.id}".replace("/", "-")
                part = plan.partitions.add(id=name, node=node, gpus=[gpu.id], thread_percentage=100, rank=i)
                for model in sorted(self.held[i], key=lambda m: m.name):
                    part.instances.add(model=model.name)
        for model in self.s.models:
            wanted = max([1] + [c.min_instances for c in self.rules(model)])
            if self.places(model) >= wanted:
                plan.dispatch.add(model=model.name, discipline="adaptive")
                load = max(model.rate, model.row_rate)
                if self.places(model) > 1 and load > 0:  # it does not say how many rows each place is to serve
                    plan.reasons.add(model=model.name, text=f"its instances are counted on for {load:.4g} rows/s less than it has")
                continue
            causes = [self.refuse(i, model) for i in self.held]
            counted = {c: causes.count(c) for c in sorted(set(causes)) if c}
            text = ", ".join(f"{n} {c}" for c, n in counted.items()) or "there are none"
            u = plan.unplaced.add(model=model.name, tried=len(causes), text=f"{causes.count('')}/{len(causes)} partitions: {text}")
            for cause, n in counted.items():
                u.refusals.add(cause=cause, count=n)
        return plan


def spread(snapshot, evaluate):
    """The plan for a snapshot. evaluate(plans) gives their outcomes, or is None where the host evaluates nothing."""
    packing = Packing(snapshot)
    for model in sorted(snapshot.models, key=lambda m: (-m.rate, m.name)):
        wanted = max([1] + [c.min_instances for c in packing.rules(model)])
        while packing.places(model) < wanted and packing.put(model):
            pass
    once = packing.plan()
    for model in snapshot.models:
        packing.put(model)
    twice = packing.plan()
    if evaluate is None:
        return once
    first, second = evaluate([once, twice])
    return twice if not second.violations and second.goodput > 1.01 * first.goodput else once


class Spread(rpc.PolicyServicer):
    def Describe(self, request, context):
        return pb.Description(name="spread", version="0.1.0", disciplines=["adaptive"],
                              summary="One place per model, and a second one where that serves more.")

    def Plan(self, messages, context):
        snapshot = next(messages).snapshot
        out = queue.SimpleQueue()

        def evaluate(plans):
            out.put(pb.PolicyMessage(evaluate=pb.EvaluateRequest(plans=plans)))
            return next(messages).outcomes.outcomes

        def work():
            try:
                out.put(pb.PolicyMessage(plan=spread(snapshot, evaluate if snapshot.evaluations >= 2 else None)))
            except Exception as failure:  # the host learns it as the error of the call
                out.put(failure)

        with futures.ThreadPoolExecutor(1) as worker:
            worker.submit(work)
            while True:
                message = out.get()
                if isinstance(message, Exception):
                    context.abort(grpc.StatusCode.INTERNAL, str(message))
                yield message
                if message.HasField("plan"):
                    return


def health():
    """gRPC's health service, which go-plugin asks: status 1 is SERVING."""
    check = grpc.unary_unary_rpc_method_handler(lambda request, context: b"\x08\x01")
    return grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": check})


def main():
    if os.environ.get("CONCH_POLICY_PLUGIN") != COOKIE:
        sys.exit("This is a policy for Conch: name it in conch.yaml, or try it with tritonctl policy try --executable.")
    server = grpc.server(futures.ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", -1)])
    rpc.add_PolicyServicer_to_server(Spread(), server)
    server.add_generic_rpc_handlers((health(),))
    # Conch names a folder that nobody else can enter; other hosts of go-plugin may not.
    socket = os.path.join(os.environ.get("PLUGIN_UNIX_SOCKET_DIR") or tempfile.mkdtemp(), "policy")
    server.add_insecure_port("unix:" + socket)
    server.start()
    print(f"1|2|unix|{socket}|grpc", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
