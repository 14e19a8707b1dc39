# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""System shared memory: inputs and outputs that are in no message."""

import os

import numpy as np
import tritonclient.utils.shared_memory as shm
from target import clients, refused, tensor

for protocol, (module, client) in clients().items():
    name = f"clients_{protocol}"
    key = f"/conformance_clients_{os.getpid()}_{protocol}"
    a = np.arange(16, dtype=np.int32).reshape(1, 16)
    region = shm.create_shared_memory_region(name, key, 4 * a.nbytes)
    try:
        shm.set_shared_memory_region(region, [a, a + 1])
        client.register_system_shared_memory(name, key, 4 * a.nbytes)
        status = client.get_system_shared_memory_status()
        print(protocol, sorted(status.regions) if protocol == "grpc" else [r["name"] for r in status])

        inputs, outputs = [], []
        for i in range(2):
            t = module.InferInput(f"INPUT{i}", [1, 16], "INT32")
            t.set_shared_memory(name, a.nbytes, offset=i * a.nbytes)
            inputs.append(t)
            o = module.InferRequestedOutput(f"OUTPUT{i}")
            o.set_shared_memory(name, a.nbytes, offset=(2 + i) * a.nbytes)
            outputs.append(o)
        for _ in range(8):  # whichever server serves it
            r = client.infer("add_sub", inputs, outputs=outputs)
            assert r.get_output("OUTPUT0") is not None
            got = shm.get_contents_as_numpy(region, np.int32, [4, 16])
            assert np.array_equal(got[2], (a + a + 1)[0]) and np.array_equal(got[3], np.full(16, -1)), got
            got[2:] = 0
        print(protocol, "in and out")
        r = client.infer("add_sub", inputs)
        print(protocol, "in", r.as_numpy("OUTPUT0").tolist(), r.as_numpy("OUTPUT1").tolist())
        r = client.infer("add_sub", [tensor(module, "INPUT0", a), inputs[1]], outputs=[outputs[0], module.InferRequestedOutput("OUTPUT1")])
        print(protocol, "mixed", r.as_numpy("OUTPUT1").tolist(), shm.get_contents_as_numpy(region, np.int32, [4, 16])[2].tolist())

        refused(protocol + " again", lambda: client.register_system_shared_memory(name, key, 4 * a.nbytes))
        beyond = module.InferInput("INPUT0", [1, 16], "INT32")
        beyond.set_shared_memory(name, a.nbytes, offset=4 * a.nbytes)
        refused(protocol + " beyond its end", lambda: client.infer("add_sub", [beyond, inputs[1]]))
        client.unregister_system_shared_memory(name)
        refused(protocol + " unregistered", lambda: client.infer("add_sub", inputs))
        refused(protocol + " status", lambda: client.get_system_shared_memory_status(name))
        client.unregister_system_shared_memory()
    finally:
        shm.destroy_shared_memory_region(region)
    client.close()
