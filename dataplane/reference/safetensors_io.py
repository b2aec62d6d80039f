"""Reading and writing safetensors files with the dtype tags of the official checkpoint.

File: u64 little endian header length, JSON header padded with spaces to a multiple of 8, then the
tensors without gaps, wider elements first so that every tensor is aligned to its element size.

Arrays are numpy; formats without a numpy type travel as raw codes: BF16 as uint16, F8_E4M3 and
F8_E8M0 as uint8.
"""

import json
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy

_STORAGE = {
    "F32": numpy.float32, "BF16": numpy.uint16, "F8_E4M3": numpy.uint8, "F8_E8M0": numpy.uint8,
    "I8": numpy.int8, "U8": numpy.uint8, "I32": numpy.int32, "I64": numpy.int64, "F64": numpy.float64,
}
_MAX_HEADER_BYTES = 100_000_000


@dataclass
class Tensor:
    """`tag` is a safetensors dtype; `array` has the storage type that belongs to it."""

    tag: str
    array: numpy.ndarray

    def __post_init__(self):
        if self.tag not in _STORAGE:
            raise ValueError(f"unknown dtype tag {self.tag}")
        self.array = numpy.ascontiguousarray(self.array).reshape(self.array.shape)
        if self.array.dtype != _STORAGE[self.tag]:
            raise ValueError(f"{self.tag} needs {numpy.dtype(_STORAGE[self.tag])}, not {self.array.dtype}")


def element_bytes(tag):
    return numpy.dtype(_STORAGE[tag]).itemsize


def write(path, tensors, metadata=None):
    """Writes {name: Tensor}. `metadata` maps strings to strings."""
    names = sorted(tensors, key=lambda name: (-element_bytes(tensors[name].tag), name))
    header, offset = ({"__metadata__": metadata} if metadata else {}), 0
    for name in names:
        tensor = tensors[name]
        end = offset + tensor.array.nbytes
        header[name] = {"dtype": tensor.tag, "shape": list(tensor.array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for name in names:
            file.write(tensors[name].array.tobytes())


def read(path):
    """({name: Tensor}, metadata). A damaged file raises ValueError naming the file and the tensor."""
    data = Path(path).read_bytes()
    if len(data) < 8:
        raise ValueError(f"{path}: no header")
    length = struct.unpack("<Q", data[:8])[0]
    if length > min(len(data) - 8, _MAX_HEADER_BYTES):
        raise ValueError(f"{path}: header length {length} exceeds the file")
    header = json.loads(data[8:8 + length])
    metadata, tensors = header.pop("__metadata__", {}), {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        if entry["dtype"] not in _STORAGE:
            raise ValueError(f"{path}: {name}: unknown dtype {entry['dtype']}")
        count = int(numpy.prod(entry["shape"], dtype=numpy.int64))
        if end > len(data) or end - begin != count * element_bytes(entry["dtype"]):
            raise ValueError(f"{path}: {name}: bytes do not match its shape")
        array = numpy.frombuffer(data[begin:end], _STORAGE[entry["dtype"]]).reshape(entry["shape"])
        tensors[name] = Tensor(entry["dtype"], array)
    return tensors, metadata
