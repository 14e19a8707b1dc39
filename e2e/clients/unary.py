# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""Synchronous inference: datatypes, outputs, compression, parameters, errors."""

import numpy as np
from target import ROW, clients, refused, show, tensor

TYPES = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64, "INT8": np.int8,
    "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "FP32": np.float32, "FP64": np.float64,
}

for protocol, (module, client) in clients().items():
    r = client.infer("identity", [tensor(module, "INPUT0", ROW)], request_id="an id")
    show(protocol, r, "OUTPUT0")
    head = r.get_response()
    print(protocol, head.id if protocol == "grpc" else head["id"], head.model_version if protocol == "grpc" else head["model_version"])
    show(protocol + " version", client.infer("identity", [tensor(module, "INPUT0", ROW)], model_version="1"), "OUTPUT0")

    inputs = [tensor(module, "INPUT_" + n, np.array([[1, 0]], t)) for n, t in TYPES.items()]
    inputs.append(tensor(module, "INPUT_STRING", np.array([[b"ab", b""]], np.object_)))
    show(protocol, client.infer("types", inputs), *("OUTPUT_" + n for n in [*TYPES, "STRING"]))
    show(protocol, client.infer("half", [tensor(module, "INPUT0", np.array([[1, -2]], np.float16))]), "OUTPUT0")

    words = np.array([["ab", "", "x" * 100_000, "é"]], np.object_)
    upper = client.infer("string", [tensor(module, "INPUT0", words)]).as_numpy("OUTPUT0")
    print(protocol, [len(w) for w in upper[0]], upper[0][0], upper[0][3])
    show(protocol + " nothing", client.infer("identity", [tensor(module, "INPUT0", np.zeros((2, 0), np.float32))]), "OUTPUT0")

    a = np.arange(16, dtype=np.int32).reshape(1, 16)
    both = [tensor(module, "INPUT0", a), tensor(module, "INPUT1", a)]
    show(protocol, client.infer("add_sub", both, outputs=[module.InferRequestedOutput("OUTPUT1")]), "OUTPUT1")
    show(protocol + " optional", client.infer("optional", [tensor(module, "INPUT0", ROW)]), "OUTPUT0")
    show(protocol + " unbatched", client.infer("unbatched", [tensor(module, "INPUT0", np.ones((3, 2), np.int32))]), "OUTPUT0")
    show(protocol + " parameters", client.infer("identity", [tensor(module, "INPUT0", ROW)], priority=1, timeout=10_000_000, parameters={"mine": 1, "text": "x", "flag": True}), "OUTPUT0")

    for algorithm in ["gzip", "deflate"]:
        if protocol == "grpc":
            options = {"compression_algorithm": algorithm}
        else:
            options = {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
        big = np.arange(20_000, dtype=np.float32).reshape(2, 10_000)
        r = client.infer("identity", [tensor(module, "INPUT0", big)], **options)
        print(protocol, algorithm, np.array_equal(r.as_numpy("OUTPUT0"), big))
    if protocol == "http":
        for sent in [True, False]:
            for wanted in [True, False]:
                outputs = [module.InferRequestedOutput("OUTPUT0", binary_data=wanted), module.InferRequestedOutput("OUTPUT1", binary_data=not wanted)]
                inputs = [tensor(module, "INPUT0", a, binary_data=sent), tensor(module, "INPUT1", a, binary_data=not sent)]
                show(f"http binary in {sent} out {wanted}", client.infer("add_sub", inputs, outputs=outputs), "OUTPUT0", "OUTPUT1")

    refused(protocol + " model", lambda: client.infer("nope", [tensor(module, "INPUT0", ROW)]))
    refused(protocol + " type", lambda: client.infer("identity", [tensor(module, "INPUT0", ROW.astype(np.int32))]))
    refused(protocol + " rows", lambda: client.infer("identity", [tensor(module, "INPUT0", np.ones((9, 1), np.float32))]))
    refused(protocol + " decoupled", lambda: client.infer("decoupled", [tensor(module, "IN", np.ones(1, np.int32)), tensor(module, "DELAY", np.zeros(1, np.uint32))]))
    refused(protocol + " by the model", lambda: client.infer("error", [tensor(module, "INPUT0", -ROW)]))
    client.close()
