# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""Classification: the largest values of an output with their indices."""

import numpy as np
from target import clients, refused, tensor

for protocol, (module, client) in clients().items():
    data = np.array([[0.5, 3.0, -1.0, 2.0], [9.0, 8.0, 7.0, 10.0]], np.float32)
    for count in [1, 3, 4, 9]:
        r = client.infer("identity", [tensor(module, "INPUT0", data)], outputs=[module.InferRequestedOutput("OUTPUT0", class_count=count)])
        print(protocol, count, r.as_numpy("OUTPUT0").tolist())
    a = np.arange(16, dtype=np.int32).reshape(1, 16)
    outputs = [module.InferRequestedOutput("OUTPUT0", class_count=2), module.InferRequestedOutput("OUTPUT1")]
    r = client.infer("add_sub", [tensor(module, "INPUT0", a), tensor(module, "INPUT1", a)], outputs=outputs)
    print(protocol, r.as_numpy("OUTPUT0").tolist(), r.as_numpy("OUTPUT1").tolist())
    refused(protocol + " of nothing there", lambda: client.infer("identity", [tensor(module, "INPUT0", data)], outputs=[module.InferRequestedOutput("X", class_count=1)]))
    client.close()
