# Copyright The Conch Authors
# SPDX-License-Identifier: Apache-2.0
"""A CUDA client without anything but the driver's library.

    client.py sms           prints how many multiprocessors it may use
    client.py alloc BYTES   allocates
    client.py hold          prints "held", waits for a line, and uses the GPU again
    client.py fault         writes to an address that is none
Errors of CUDA are printed as "CUDA error N in CALL", with exit status 3.
"""

import ctypes
import sys

cuda = ctypes.CDLL("libcuda.so.1")
MULTIPROCESSOR_COUNT = 16

FAULT = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry fault() {
    .reg .u64 %address;
    .reg .u32 %value;
    mov.u64 %address, 64;
    mov.u32 %value, 1;
    st.global.u32 [%address], %value;
    ret;
}
"""


def call(name, *arguments):
    error = getattr(cuda, name)(*arguments)
    if error != 0:
        print(f"CUDA error {error} in {name}", flush=True)
        sys.exit(3)


def allocate(size):
    pointer = ctypes.c_uint64()
    call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
    call("cuMemsetD8_v2", pointer, ctypes.c_ubyte(1), ctypes.c_size_t(size))
    call("cuCtxSynchronize")


def main():
    call("cuInit", 0)
    device = ctypes.c_int()
    call("cuDeviceGet", ctypes.byref(device), 0)
    context = ctypes.c_void_p()
    call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
    command = sys.argv[1]
    if command == "sms":
        count = ctypes.c_int()
        call("cuDeviceGetAttribute", ctypes.byref(count), MULTIPROCESSOR_COUNT, device)
        print(count.value)
    elif command == "alloc":
        allocate(int(sys.argv[2]))
        print("allocated")
    elif command == "hold":
        allocate(1 << 20)
        print("held", flush=True)
        sys.stdin.readline()
        allocate(1 << 20)
        print("goes on")
    elif command == "fault":
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(FAULT))
        call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(b"fault"))
        call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, None, None)
        call("cuCtxSynchronize")


main()
