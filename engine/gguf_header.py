"""The header of a GGUF file, with every length in it held against the file before anything is read by it.

    magic "GGUF" | version u32 | number of tensors u64 | number of keys u64
    keys:    name, type u32, value             strings and arrays carry their length as u64
    tensors: name, number of dimensions u32, dimensions u64, type u32, offset u64
    padding to `general.alignment`, then the tensors' data, offsets counted from here

After ggml's `docs/gguf.md`, versions 2 and 3, little-endian. Arrays are measured, not kept: no vocabulary is needed.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from infer.engine.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_MAX_ALIGNMENT = 1 << 16
_INT64_MAX = 2**63 - 1
_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 18
_MAX_STRINGS = 1 << 22
"""In arrays, all of them together: some times what the largest vocabulary and its merges have. Each is walked over."""
_MAX_TEXT_BYTES = 1 << 24
"""Of a name or a value, which is kept."""
_STRING, _ARRAY = 8, 9
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
"""From the type of a value to its letter in `struct`."""
_SMALLEST_KEY = 8 + 4 + 1
_SMALLEST_TENSOR = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where one tensor is. `shape` has the fastest-moving dimension first, as the file has it."""

    name: str
    shape: tuple[int, ...]
    type_name: str
    """ggml's name: `F32`, `Q4_1`, ..."""
    offset: int
    """In bytes from the start of the file."""
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What a GGUF file says about itself. Every tensor lies inside the file."""

    version: int
    metadata: Mapping[str, str | int | float | bool]
    """The keys with a single value."""
    array_lengths: Mapping[str, int]
    """The keys with an array, which is not kept."""
    tensors: tuple[GgufTensor, ...]


def read_gguf_header(path: Path) -> GgufHeader:
    """Read and check a header.

    Raises:
        ModelError: the file is not a GGUF file, or one of its lengths, types or offsets cannot be right.
    """
    num_bytes = path.stat().st_size
    if num_bytes < 24:
        raise ModelError(f"{path} is no usable gguf file: {num_bytes} bytes are too few for a header")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _Reader(path, data).header()


class _TensorEntry(NamedTuple):
    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int


class _Reader:
    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._position = 0
        self._strings_left = _MAX_STRINGS

    def header(self) -> GgufHeader:
        magic = self._data[:4]
        if magic != b"GGUF":
            raise self._refusal(f"it begins with {magic!r}, not with b'GGUF'")
        self._position = 4
        version = self._scalar("<I", "the version")
        if version not in _VERSIONS:
            byte_order = " (a big-endian file)" if version in (2 << 24, 3 << 24) else ""
            raise self._refusal(f"version {version}{byte_order}; versions 2 and 3 are read")
        num_tensors = self._count("tensors", _SMALLEST_TENSOR, _MAX_TENSORS)
        num_keys = self._count("keys", _SMALLEST_KEY, _MAX_KEYS)
        metadata: dict[str, Any] = {}
        array_lengths: dict[str, int] = {}
        for _ in range(num_keys):
            key = self._string("a key")
            if key in metadata or key in array_lengths:
                raise self._refusal(f"the key {key!r:.80} is there twice")
            value_type = self._scalar("<I", f"the type of {key!r:.80}")
            if value_type == _ARRAY:
                array_lengths[key] = self._skip_array(key)
            else:
                metadata[key] = self._value(value_type, key)
        return GgufHeader(version, metadata, array_lengths, self._tensors(num_tensors, self._alignment(metadata)))

    def _tensors(self, num_tensors: int, alignment: int) -> tuple[GgufTensor, ...]:
        entries: dict[str, _TensorEntry] = {}
        for _ in range(num_tensors):
            name = self._string("a tensor's name")
            if name in entries:
                raise self._refusal(f"the tensor {name!r:.80} is there twice")
            num_dimensions = self._scalar("<I", f"the dimensions of {name!r:.80}")
            if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
                raise self._refusal(
                    f"{name!r:.80} has {num_dimensions} dimensions; 1 to {_MAX_DIMENSIONS} are possible"
                )
            shape = tuple(self._scalar("<Q", f"the shape of {name!r:.80}") for _ in range(num_dimensions))
            type_id = self._scalar("<I", f"the type of {name!r:.80}")
            offset = self._scalar("<Q", f"the offset of {name!r:.80}")
            entries[name] = _TensorEntry(name, shape, type_id, offset)
        # Offsets count from here, which is known only now.
        data_start = -(-self._position // alignment) * alignment
        return tuple(self._tensor(entry, data_start, alignment) for entry in entries.values())

    def _tensor(self, entry: _TensorEntry, data_start: int, alignment: int) -> GgufTensor:
        # Imported here: the package pulls in numpy, and a header that is refused earlier does not need it.
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        name, shape, type_id, offset = entry
        if type_id not in GGML_QUANT_SIZES:
            raise self._refusal(f"{name!r:.80} is of the unknown type {type_id}")
        block_size, block_num_bytes = GGML_QUANT_SIZES[type_id]
        num_elements = math.prod(shape)
        if num_elements == 0 or num_elements > _INT64_MAX:
            raise self._refusal(f"{name!r:.80} has the impossible shape {shape}")
        if shape[0] % block_size:
            raise self._refusal(f"{name!r:.80} has rows of {shape[0]} in blocks of {block_size}")
        num_bytes = num_elements // block_size * block_num_bytes
        if offset % alignment:
            raise self._refusal(f"{name!r:.80} is at offset {offset}, which is not aligned to {alignment}")
        end = data_start + offset + num_bytes
        if end > len(self._data):
            raise self._refusal(f"{name!r:.80} ends at byte {end} of {len(self._data)}; the file is cut off or damaged")
        return GgufTensor(name, shape, GGMLQuantizationType(type_id).name, data_start + offset, num_bytes)

    def _alignment(self, metadata: dict[str, Any]) -> int:
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 1 <= alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
            raise self._refusal(f"general.alignment is {alignment!r}, not a power of two up to {_MAX_ALIGNMENT}")
        return alignment

    def _value(self, value_type: int, key: str) -> str | int | float | bool:
        if value_type == _STRING:
            return self._string(f"the value of {key!r:.80}")
        if value_type not in _SCALARS:
            raise self._refusal(f"{key!r:.80} is of the unknown type {value_type}")
        value: int | float | bool = self._scalar("<" + _SCALARS[value_type], f"the value of {key!r:.80}")
        return value

    def _skip_array(self, key: str) -> int:
        element_type = self._scalar("<I", f"the element type of {key!r:.80}")
        if element_type == _STRING:
            length = self._count(f"strings in {key!r:.80}", 8, self._strings_left)
            self._strings_left -= length
            for _ in range(length):
                self._skip(self._scalar("<Q", f"a string in {key!r:.80}"), f"a string in {key!r:.80}")
        elif element_type in _SCALARS:
            width = struct.calcsize("<" + _SCALARS[element_type])
            length = self._count(f"values in {key!r:.80}", width)
            self._skip(length * width, f"the values of {key!r:.80}")
        else:
            raise self._refusal(f"{key!r:.80} is an array of the type {element_type}, which is not read")
        return length

    def _count(self, what: str, smallest: int, most: int = _INT64_MAX) -> int:
        """How many of something follow. More than the rest of the file can hold is refused before a loop starts."""
        count: int = self._scalar("<Q", f"the number of {what}")
        if count > most and count * smallest <= len(self._data):
            raise self._refusal(f"{count:,} {what}; at most {most:,} are read")
        if count > (len(self._data) - self._position) // smallest:
            raise self._refusal(f"{count} {what} do not fit into {len(self._data)} bytes")
        return count

    def _string(self, what: str) -> str:
        length: int = self._scalar("<Q", f"the length of {what}")
        start = self._skip(length, what)
        if length > _MAX_TEXT_BYTES:
            raise self._refusal(f"{what} at byte {start} has {length:,} bytes; at most {_MAX_TEXT_BYTES:,} are read")
        try:
            return self._data[start : self._position].decode("utf-8")
        except UnicodeDecodeError:
            raise self._refusal(f"{what} at byte {start} is not utf-8") from None

    def _scalar(self, layout: str, what: str) -> Any:
        start = self._skip(struct.calcsize(layout), what)
        return struct.unpack_from(layout, self._data, start)[0]

    def _skip(self, num_bytes: int, what: str) -> int:
        """Move past `num_bytes` of the file and return where they begin."""
        start = self._position
        if num_bytes > len(self._data) - start:
            raise self._refusal(f"it ends inside {what}, which begins at byte {start} of {len(self._data)}")
        self._position = start + num_bytes
        return start

    def _refusal(self, found: str) -> ModelError:
        return ModelError(f"{self._path} is no usable gguf file: {found}", hint="download it again, or convert it anew")
