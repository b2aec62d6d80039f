"""Loads kernels.c: built with the system compiler at first use, cached under the build folder."""
from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
from pathlib import Path

import torch

_SOURCE = Path(__file__).with_name("kernels.c")
_CACHE = Path(__file__).resolve().parents[3] / "build" / "train" / "kernels"
_FLAGS = ["-O3", "-march=native", "-mprefer-vector-width=512", "-ffast-math", "-fno-reciprocal-math", "-fPIC",
          "-shared"]
_library = None


def library() -> ctypes.CDLL:
    global _library
    if _library is None:
        source = _SOURCE.read_bytes()
        cpu = Path("/proc/cpuinfo").read_text().split("flags", 1)[-1].split("\n", 1)[0]
        name = hashlib.sha256(source + " ".join(_FLAGS).encode() + cpu.encode()).hexdigest()[:16]
        path = _CACHE / f"kernels-{name}.so"
        if not path.exists():
            _CACHE.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}")
            subprocess.run(["gcc", *_FLAGS, "-o", str(partial), str(_SOURCE), "-lm"], check=True)
            partial.replace(path)
        _library = ctypes.CDLL(str(path))
    return _library


def call(name: str, *arguments) -> None:
    """Calls a kernel: tensors become pointers, ints 64-bit (the register is shared by int32 parameters),
    floats float32, None a null pointer."""
    converted = []
    for a in arguments:
        if isinstance(a, torch.Tensor):
            if not a.is_contiguous():
                raise ValueError(f"{name}: tensor of shape {tuple(a.shape)} is not contiguous")
            converted.append(ctypes.c_void_p(a.data_ptr()))
        elif isinstance(a, bool) or isinstance(a, int):
            converted.append(ctypes.c_int64(int(a)))
        elif isinstance(a, float):
            converted.append(ctypes.c_float(a))
        elif a is None:
            converted.append(ctypes.c_void_p(0))
        else:
            raise TypeError(f"{name}: {type(a)}")
    getattr(library(), name)(*converted)
