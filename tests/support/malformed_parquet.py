"""Parquet files that are not what they should be."""

from __future__ import annotations

import base64
import datetime
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
from malformed import DONE, INPUT, ROW_ERRORS, USAGE, Malformed, constant, mutated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_NUM_MUTATED = 10
_TEXTS = [f"row {number}" for number in range(60)]
_DAMAGED = "copy or write it again"


def parquet(columns: dict[str, Any] | pa.Table, **options: Any) -> bytes:
    stream = pa.BufferOutputStream()
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), stream, **options)
    return bytes(stream.getvalue())


def _plain() -> bytes:
    return parquet({"text": _TEXTS}, compression="none", use_dictionary=False, write_page_checksum=True)


def _footer_begin(data: bytes) -> int:
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


def _with_footer_length(num_bytes: int) -> bytes:
    return _plain()[:-8] + num_bytes.to_bytes(4, "little") + b"PAR1"


def _with_num_rows(claimed: int) -> bytes:
    """A footer that promises other than its 1,000 rows."""
    data = parquet({"text": ["a"] * 1000})
    # Thrift writes numbers in groups of seven bits; field 3, a number of 64 bits, is that of the rows.
    start = data.index(b"\x16" + _varint(1000), _footer_begin(data))
    changed = data[_footer_begin(data) : start] + b"\x16" + _varint(claimed) + data[start + 3 : -8]
    return data[: _footer_begin(data)] + changed + len(changed).to_bytes(4, "little") + b"PAR1"


def _varint(number: int) -> bytes:
    number = number * 2
    groups = []
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    return bytes([*groups, number])


def _in_page_damaged() -> bytes:
    data = bytearray(_plain())
    data[_footer_begin(data) // 2] ^= 1
    return bytes(data)


class _Keys(pe.KmsClient):  # type: ignore[misc]
    """Keys that are not secret."""

    def __init__(self, config: object) -> None:
        super().__init__()

    def wrap_key(self, key: bytes, name: str) -> bytes:
        return base64.b64encode(key)

    def unwrap_key(self, wrapped: bytes, name: str) -> bytes:
        return base64.b64decode(wrapped)


def _encrypted(*, plaintext_footer: bool) -> bytes:
    wanted = pe.EncryptionConfiguration(
        footer_key="footer", column_keys={"column": ["text"]}, plaintext_footer=plaintext_footer
    )
    properties = pe.CryptoFactory(_Keys).file_encryption_properties(pe.KmsConnectionConfig(), wanted)
    table = pa.table({"text": ["a", "b"], "n": [1, 2]})
    stream = pa.BufferOutputStream()
    with pq.ParquetWriter(stream, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    return bytes(stream.getvalue())


def _broken_text(*values: bytes) -> pa.Array:
    return pa.array(values, pa.binary()).view(pa.string())


def _row_groups(*sizes: int) -> bytes:
    table = pa.table({"text": _TEXTS})
    stream = pa.BufferOutputStream()
    with pq.ParquetWriter(stream, table.schema) as writer:
        for size in sizes:
            writer.write_table(table.slice(0, size))
    return bytes(stream.getvalue())


def _nested(depth: int) -> pa.Array:
    type_ = pa.int64()
    for _ in range(depth):
        type_ = pa.list_(type_)
    return pa.nulls(1, type_)


def _twice(name: str) -> bytes:
    return parquet(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], [name, name]))


def _damaged_files() -> dict[str, tuple[bytes, str]]:
    data = _plain()
    footer = _footer_begin(data)
    feather = pa.BufferOutputStream()
    pa.ipc.new_file(feather, pa.schema([("text", pa.string())])).close()
    return {
        "0 bytes": (b"", _DAMAGED),
        "1 byte": (b"P", _DAMAGED),
        "magic only": (b"PAR1", _DAMAGED),
        "magic twice": (b"PAR1PAR1", _DAMAGED),
        "footer of 0 bytes": (b"PAR1" + bytes(4) + b"PAR1", _DAMAGED),
        "half": (data[: len(data) // 2], _DAMAGED),
        "no footer": (data[:footer], _DAMAGED),
        "no end": (data[:-8], _DAMAGED),
        "one byte short": (data[:-1], _DAMAGED),
        "one byte more": (data + b"x", _DAMAGED),
        "one byte before": (b"x" + data, _DAMAGED),
        "footer length 0": (_with_footer_length(0), _DAMAGED),
        "footer length too small": (_with_footer_length(20), _DAMAGED),
        "footer length too large": (_with_footer_length(len(data) - footer), _DAMAGED),
        "footer length beyond the file": (_with_footer_length(2**31 - 1), _DAMAGED),
        "footer length of 4 GiB": (_with_footer_length(2**32 - 1), _DAMAGED),
        "zeros": (bytes(1000), _DAMAGED),
        "zeros between": (b"PAR1" + bytes(1000) + b"PAR1", _DAMAGED),
        "as text": (data.decode("latin-1").encode(), _DAMAGED),
        "jsonl": (b'{"text": "a"}\n', _DAMAGED),
        "gzip": (b"\x1f\x8b" + bytes(100), "gzip -dc"),
        "feather": (bytes(feather.getvalue()), "Feather"),
        "git-lfs": (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        "a bit in a page": (_in_page_damaged(), "could not verify page integrity"),
        "more rows promised": (_with_num_rows(1001), "promises 1001 rows"),
        "fewer rows promised": (_with_num_rows(999), "promises 999 rows"),
        "2 to the 61 rows promised": (_with_num_rows(2**61), f"promises {2**61} rows"),
        "no rows promised": (_with_num_rows(0), "promises 0 rows"),
        "encrypted": (_encrypted(plaintext_footer=False), "is encrypted"),
        "encrypted column": (_encrypted(plaintext_footer=True), "is encrypted"),
        "column twice": (_twice("text"), "more than one column has the name text"),
        "no name twice": (_twice(""), "more than one column has the name"),
        "lists in lists": (parquet({"text": ["a"], "x": _nested(60)}), "too deeply nested"),
        "no columns": (parquet({}), "the input has no columns"),
        "taken name": (parquet({"text": ["a"], "response": ["b"]}), "already has a column"),
    }


def _unusual_files() -> dict[str, tuple[Any, tuple[int, ...], str, tuple[str, ...]]]:
    """What is unusual, and right."""
    years = pa.array([2**62, -(2**62), None], pa.timestamp("us"))
    written = ("--prompt", "{text}{x}")
    long_names = {"text": ["a"], "a.b": [1], "": [2], "\x1b[2J\0\n": [3], "x" * 5000: [4], "ü🙂": [5]}
    return {
        "no rows": (parquet({"text": pa.array([], pa.string())}), (DONE,), "", ()),
        "row groups without rows": (_row_groups(0, 2, 0, 0, 1, 0), (DONE,), "", ()),
        "no row groups": (_row_groups(), (DONE,), "", ()),
        "nulls only": (parquet({"text": pa.nulls(3)}), (ROW_ERRORS,), "column text is null", ()),
        "names": (parquet(long_names), (DONE,), "", ()),
        "years": (parquet({"text": ["a"] * 3, "x": years}), (ROW_ERRORS,), "column x is null", written),
        "nanoseconds": (parquet({"text": ["a"], "x": pa.array([2**63 - 1], pa.timestamp("ns"))}), (DONE,), "", written),
        "int96": (
            parquet({"text": ["a"], "x": [datetime.datetime(2024, 1, 2)]}, use_deprecated_int96_timestamps=True),
            *((DONE,), "", written),
        ),
        "durations": (parquet({"text": ["a"], "x": pa.array([2**62], pa.duration("s"))}), (DONE,), "", written),
        "time zone": (
            parquet({"text": ["a"], "x": pa.array([0], pa.timestamp("us", "No/Where"))}),
            (DONE,),
            "",
            written,
        ),
        "uuid": (parquet({"text": ["a"], "x": pa.array([uuid.UUID(int=1).bytes], pa.uuid())}), (DONE,), "", written),
        "binary": (parquet({"text": pa.array([b"a"])}), (USAGE,), "cast it to string", ()),
        "integers": (parquet({"text": [1, None]}), (USAGE,), "a template writes other values", ()),
        "structs": (parquet({"messages": pa.array([{"role": "user"}])}), (USAGE,), "a list of messages", ()),
    }


def _mutations() -> Iterator[Malformed]:
    messages = [[{"role": "user", "content": text}] * (len(text) % 3) for text in _TEXTS]
    kinds = {
        "plain": {"use_dictionary": False, "compression": "none"},
        "zstd": {"compression": "zstd", "row_group_size": 20},
        "snappy": {"compression": "snappy", "data_page_version": "2.0", "write_page_checksum": True},
        "delta": {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY"}, "compression": "gzip"},
    }
    for name, options in kinds.items():
        columns: dict[str, Any] = {"text": _TEXTS, "x": range(60)} | ({"m": messages} if name != "delta" else {})
        data = parquet(columns, **options)
        for part, first, last in (("pages", 4, _footer_begin(data)), ("footer", _footer_begin(data), len(data))):
            for seed in range(_NUM_MUTATED):
                damaged = mutated(data, seed, first, last)
                codes = (DONE, USAGE, ROW_ERRORS, INPUT)
                yield Malformed(f"mutated {part} {name} {seed}.parquet", constant(damaged), codes)


def _write(columns: Callable[[], dict[str, Any]], path: Path, **options: Any) -> None:
    pq.write_table(pa.table(columns()), path, **options)


def _large() -> Iterator[Malformed]:
    bomb = partial(_write, lambda: {"text": ["a" * (1 << 20)] * 2048}, compression="zstd", use_dictionary=False)
    said = "write the file again with smaller row groups"
    yield Malformed("bomb.parquet", bomb, (INPUT,), message=said, is_large=True)
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 200, pa.int8()), pa.array(["a" * (5 << 20)]))
    once = partial(_write, lambda: {"text": repeated.cast(pa.string())}, compression="zstd", row_group_size=200)
    yield Malformed("text kept once.parquet", once, (ROW_ERRORS,), message="more than 4,194,304", is_large=True)
    long = partial(_write, lambda: {"text": ["ab " * (7 << 20)]}, use_dictionary=False)
    yield Malformed("text of 21 MiB.parquet", long, (ROW_ERRORS,), message="more than 4,194,304", is_large=True)
    wide = partial(_write, lambda: {"text": ["a"], **{f"c{number}": [number] for number in range(10_000)}})
    yield Malformed("10000 columns.parquet", wide, (DONE,), is_large=True)


CASES = [
    *(
        Malformed(f"{name}.parquet", constant(data), (INPUT,), (), said)
        for name, (data, said) in _damaged_files().items()
    ),
    *(
        Malformed(f"{name}.parquet", constant(data), codes, (), said, arguments)
        for name, (data, codes, said, arguments) in _unusual_files().items()
    ),
    Malformed(
        "not utf-8.parquet",
        constant(parquet({"text": _broken_text(b"a", b"\xff", b"b", b"\xed\xa0\x80")})),
        *((ROW_ERRORS,), (1, 3), "is not valid UTF-8"),
    ),
    *_mutations(),
    *_large(),
]
