# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""What the scripts share: the server under test, and tensors for its clients. What they print must not depend on the server."""

import argparse

import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

parser = argparse.ArgumentParser()
parser.add_argument("--grpc", required=True)
parser.add_argument("--http", required=True)
ADDRESS = parser.parse_args()


def clients():
    """One client of each protocol, by name."""
    return {
        "grpc": (grpcclient, grpcclient.InferenceServerClient(ADDRESS.grpc, ssl=False)),
        "http": (httpclient, httpclient.InferenceServerClient(ADDRESS.http, ssl=False, concurrency=8)),
    }


def tensor(module, name, array, **options):
    """An input that holds the array."""
    t = module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    t.set_data_from_numpy(array, **options)
    return t


def show(what, result, *names):
    """Prints outputs: datatype, shape and values."""
    for name in names:
        a = result.as_numpy(name)
        print(what, name, a.dtype, a.shape, a.tolist())


def refused(what, call):
    """Prints the status and the words of an error, which must come."""
    try:
        call()
    except InferenceServerException as e:
        print(what, "refused:", e.status(), e.message())
        return
    raise AssertionError(what + ": answered, but must be refused")


ROW = np.array([[1.0, 2.5]], np.float32)
