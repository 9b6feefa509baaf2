"""The header of a safetensors file, held against the file before the library reads tensors by it.

    number of bytes u64 | JSON: name -> {dtype, shape, data_offsets} | data, each byte of it in one tensor

After the format's own description. The library checks the same again; here the file is named, and what is a pickle
under another name is told apart from what is damaged.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from infer.engine.errors import ModelError
from infer.engine.model_files import PICKLE_HINT

if TYPE_CHECKING:
    from pathlib import Path

_MAX_HEADER_BYTES = 100_000_000
_MAX_DIMENSIONS = 16
_INT64_MAX = 2**63 - 1
_METADATA = "__metadata__"
_NUM_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
}  # fmt: skip
# A zip file is how torch writes a pickle, and the bytes 0x80 and 2 to 5 are how pickle itself begins.
_PICKLE_BEGINNINGS = (b"PK\x03\x04", *(b"\x80" + bytes([protocol]) for protocol in range(2, 6)))


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """What a header says of one tensor."""

    name: str
    dtype: str
    """The format's name: `BF16`, `F32`, ..."""
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


def read_safetensors_header(path: Path) -> tuple[StoredTensor, ...]:
    """Read and check a header. Every tensor lies inside the file, none on another.

    Raises:
        ModelError: the file is no safetensors file, or one of its lengths, types or offsets cannot be right.
    """
    try:
        num_bytes = path.stat().st_size
        with path.open("rb") as file:
            beginning = file.read(8)
            length = int.from_bytes(beginning, "little")
            is_readable = len(beginning) == 8 and length <= min(_MAX_HEADER_BYTES, num_bytes - 8)
            text = file.read(length) if is_readable else b""
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    if not is_readable:
        if beginning.startswith(_PICKLE_BEGINNINGS):
            raise ModelError(
                f"pickled weights under another name are not loaded, for they can run code: {path}", hint=PICKLE_HINT
            )
        raise _refusal(path, f"its header of {length:,} bytes does not fit into {num_bytes:,}")
    return _check(path, text, num_bytes - 8 - length)


def _check(path: Path, text: bytes, num_data_bytes: int) -> tuple[StoredTensor, ...]:
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise _refusal(path, f"its header is no JSON: {error!s:.200}") from error
    if not isinstance(header, dict):
        raise _refusal(path, f"its header is no object but a {type(header).__name__}")
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _refusal(path, f"{_METADATA} holds something else than texts")
    spans = {name: _span(path, name, entry) for name, entry in header.items()}
    end = 0
    for name, (begin, stop, _) in sorted(spans.items(), key=lambda span: span[1][:2]):
        if begin != end:
            raise _refusal(path, f"{name!r:.80} begins at byte {begin} of the data, the one before ends at {end}")
        end = stop
    if end != num_data_bytes:
        raise _refusal(path, f"its tensors end at byte {end} of {num_data_bytes}; the file is cut off or damaged")
    return tuple(tensor for _, _, tensor in spans.values())


def _span(path: Path, name: str, entry: Any) -> tuple[int, int, StoredTensor]:
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _refusal(path, f"{name!r:.80} has not just dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _NUM_BITS:
        raise _refusal(path, f"{name!r:.80} is of the unknown type {dtype!r:.80}")
    if not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS or not all(map(_is_size, shape)):
        raise _refusal(path, f"{name!r:.80} has the impossible shape {shape!r:.80}")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise _refusal(path, f"{name!r:.80} has the impossible offsets {offsets!r:.80}")
    num_bits = math.prod(shape) * _NUM_BITS[dtype]
    if num_bits > _INT64_MAX or num_bits % 8 or offsets[1] - offsets[0] != num_bits // 8:
        raise _refusal(path, f"{name!r:.80} of shape {shape!r:.80} in {dtype} is not bytes {offsets!r:.80}")
    return offsets[0], offsets[1], StoredTensor(name, dtype, tuple(shape))


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _INT64_MAX


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a name is there twice")
    return content


def _refusal(path: Path, found: str) -> ModelError:
    return ModelError(f"{path} is no usable safetensors file: {found}", hint="download or convert it again")
