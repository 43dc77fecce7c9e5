"""`allocation.keep_memory`: the CPU's memory is reused from one step to the next."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import ctypes, json, sys, threading
from examples.llama.train import allocation

class Info(ctypes.Structure):
    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
before = libc.mallinfo2()
done = sys.argv[1] == "yes" and allocation.keep_memory()

def allocate():
    pointer = libc.malloc(200 << 20)
    mapped.append(libc.mallinfo2().hblkhd - before.hblkhd)
    libc.free(pointer)

mapped = []
allocate()
thread = threading.Thread(target=allocate)
thread.start()
thread.join()
free = libc.mallinfo2().fordblks - before.fordblks
print(json.dumps([done, mapped, free]))
"""


def told(keep: str) -> tuple[bool, list[int], int]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    argv = [sys.executable, "-c", CODE, keep]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.slow
def test_keep_memory_reuses_freed_large_arrays() -> None:
    half = 100 << 20  # of an array; some of the heap was free before
    done, mapped, free = told("no")
    assert (done, min(mapped) > half, free < half) == (False, True, True)
    done, mapped, free = told("yes")
    assert (done, mapped, free > half) == (True, [0, 0], True)
