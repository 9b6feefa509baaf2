"""JSONL files that are not what they should be, plain and compressed."""

from __future__ import annotations

import gzip
import struct
import zlib
from typing import TYPE_CHECKING

import pyarrow as pa
from malformed import DONE, INPUT, ROW_ERRORS, USAGE, Malformed, constant, mutated

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

OK = b'{"text": "fine"}\n'
_NUM_MUTATED = 16


def _zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, "zstd", asbytes=True))


def _zstd_frame(header: bytes) -> bytes:
    """A frame with a header of its own and `OK` in it, not compressed."""
    last_raw_block = struct.pack("<I", (len(OK) << 3) | 1)[:3]
    return b"\x28\xb5\x2f\xfd" + header + last_raw_block + OK


def _bad_second_lines() -> dict[str, bytes]:
    """By what they are."""
    return {
        "trailing comma": b'{"text": "a",}',
        "list": b"[1]",
        "number": b"17",
        "string": b'"text"',
        "true": b"true",
        "null": b"null",
        "bare word": b"hello",
        "single quotes": b"{'text': 'a'}",
        "comment": b"// a",
        "two objects": b'{"text": "a"}{"text": "b"}',
        "comma after": b'{"text": "a"},',
        "no brace": b'{"text": "a"',
        "no quote": b'{"text": "a}',
        "no colon": b'{"text" "a"}',
        "no value": b'{"text": }',
        "number as key": b'{1: "a"}',
        "nul in text": b'{"text": "a\0b"}',
        "nul line": b"\0\0\0\0",
        "control in text": b'{"text": "a\x01b"}',
        "tab in text": b'{"text": "a\tb"}',
        "bad escape": b'{"text": "\\x41"}',
        "short escape": b'{"text": "\\u12"}',
        "high surrogate": b'{"text": "\\ud835"}',
        "low surrogate": b'{"text": "\\udc00"}',
        "surrogates in wrong order": b'{"text": "\\udc00\\ud800"}',
        "surrogate in key": b'{"\\ud835": 1}',
        "latin-1": '{"text": "é"}'.encode("latin-1"),
        "overlong utf-8": b'{"text": "\xc0\x80"}',
        "utf-8 surrogate": b'{"text": "\xed\xa0\x80"}',
        "utf-8 beyond unicode": b'{"text": "\xf4\x90\x80\x80"}',
        "half a character": b'{"text": "\xe4\xbd"}',
        "bad utf-8 in key": b'{"\xff": 1, "text": "a"}',
        "nan": b'{"text": "a", "x": NaN}',
        "infinity": b'{"text": "a", "x": Infinity}',
        "minus infinity": b'{"text": "a", "x": -Infinity}',
        "1e999": b'{"text": "a", "x": 1e999}',
        "integer of 5000 digits": b'{"text": "a", "x": ' + b"9" * 5000 + b"}",
        "hexadecimal": b'{"text": "a", "x": 0x1F}',
        "leading zero": b'{"text": "a", "x": 007}',
        "plus sign": b'{"text": "a", "x": +1}',
        "100000 lists": b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "100000 open lists": b"[" * 100_000,
        "100000 objects": b'{"a": ' * 100_000 + b"1" + b"}" * 100_000,
        "129 levels": b'{"text": "a", "x": ' + b"[" * 128 + b"]" * 128 + b"}",
        "no-break space": b"\xc2\xa0" + OK.strip(),
        "byte order mark": b"\xef\xbb\xbf" + OK.strip(),
        "separator between": '{"text": "a"}\u2028{"text": "b"}'.encode(),
        "carriage return between": b'{"text": "a"}\r{"text": "b"}',
        "html": b"<html><body>502</body></html>",
        "csv": b"id,text",
        "conflict": b"<<<<<<< HEAD",
    }


def _whole_files() -> dict[str, tuple[bytes, tuple[int, ...], str]]:
    """By name: the content, the exit codes, what is said."""
    wide = b"".join(b'{"text": "a", "c%d": 1}\n' % number for number in range(10_001))
    no_row, empty = "the first bad one is", "the input has no columns"
    return {
        "empty.jsonl": (b"", (INPUT,), empty),
        "blank lines.jsonl": (b"\n\n  \n\t\r\n", (INPUT,), empty),
        "byte order mark only.jsonl": (b"\xef\xbb\xbf", (INPUT,), empty),
        "empty objects.jsonl": (b"{}\n{}\n", (INPUT,), empty),
        "two byte order marks.jsonl": (b"\xef\xbb\xbf" * 2 + OK, (INPUT,), no_row),
        "list of objects.jsonl": (b'[{"text": "a"}, {"text": "b"}]\n', (INPUT,), "jq -c"),
        "object over lines.jsonl": (b'{\n  "text": "a"\n}\n', (INPUT,), "jq -c"),
        "carriage returns.jsonl": (OK.replace(b"\n", b"\r") * 3, (INPUT,), no_row),
        "no line end.jsonl": (b"x" * (1 << 20), (INPUT,), no_row),
        "zeros.jsonl": (b"\0" * 4096, (INPUT,), no_row),
        "utf-16.jsonl": (("\ufeff" + OK.decode()).encode("utf-16-le"), (INPUT,), "iconv -f UTF-16"),
        "utf-16 big.jsonl": (("\ufeff" + OK.decode()).encode("utf-16-be"), (INPUT,), "iconv -f UTF-16"),
        "utf-16 without mark.jsonl": (OK.decode().encode("utf-16-le"), (INPUT,), "iconv -f UTF-16"),
        "utf-32.jsonl": (("\ufeff" + OK.decode()).encode("utf-32-le"), (INPUT,), "iconv -f UTF-32"),
        "parquet.jsonl": (b"PAR1" + b"\0" * 100 + b"PAR1", (INPUT,), "it is Parquet"),
        "gzip.jsonl": (gzip.compress(OK, mtime=0), (INPUT,), "gzip -dc"),
        "zstd.jsonl": (_zstd(OK), (INPUT,), "zstd -dc"),
        "zip.jsonl": (b"PK\x03\x04" + b"\0" * 100, (INPUT,), "zip archive"),
        "git-lfs.jsonl": (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
            (INPUT,),
            "git lfs pull",
        ),
        "web page.jsonl": (b"<!DOCTYPE html>\n<html></html>\n", (INPUT,), "web page"),
        "10001 columns.jsonl": (wide, (INPUT,), ":10000: more than 10000 columns"),
        "windows.jsonl": (b"\xef\xbb\xbf" + OK.replace(b"\n", b"  \r\n") * 2, (DONE,), ""),
        "no final line end.jsonl": (OK + OK.strip(), (DONE,), ""),
        "separators in text.jsonl": ('{"text": "a\u2028b\u2029c\u0085d"}\n'.encode(), (DONE,), ""),
        "key twice.jsonl": (b'{"text": "a", "text": "b"}\n', (DONE,), ""),
        "escapes in names.jsonl": (b'{"a\\u001b[2J\\u0000": 1, "": 2, "text": "a"}\n', (DONE,), ""),
        "types that change.jsonl": (
            OK + b'{"text": ["a"]}\n{"text": {"a": 1}}\n{"text": 1}\n',
            (ROW_ERRORS,),
            "must be text",
        ),
        "no prompt column.jsonl": (b'{"txet": "a"}\n', (USAGE,), "no column is named"),
        "taken name.jsonl": (b'{"text": "a", "response": "b"}\n', (INPUT,), "already has a column"),
    }


def _compressed_files() -> dict[str, tuple[bytes, tuple[int, ...], str]]:
    gz, zst = gzip.compress(OK * 1000, mtime=0), _zstd(OK * 1000)
    small = gzip.compress(OK, mtime=0)
    damage = "copy or compress it again"
    return {
        "empty.jsonl.gz": (b"", (INPUT,), "the input has no columns"),
        "empty.jsonl.zst": (b"", (INPUT,), "the input has no columns"),
        "empty member only.jsonl.gz": (gzip.compress(b"", mtime=0), (INPUT,), "the input has no columns"),
        "empty frame only.jsonl.zst": (_zstd(b""), (INPUT,), "the input has no columns"),
        "plain.jsonl.gz": (OK, (INPUT,), damage),
        "plain.jsonl.zst": (OK, (INPUT,), damage),
        "zstd.jsonl.gz": (_zstd(OK), (INPUT,), damage),
        "gzip.jsonl.zst": (small, (INPUT,), damage),
        "twice.jsonl.gz": (gzip.compress(small, mtime=0), (INPUT,), "it is compressed"),
        "header only.jsonl.gz": (gz[:10], (INPUT,), "truncated"),
        "half a header.jsonl.gz": (gz[:5], (INPUT,), "truncated"),
        "half.jsonl.gz": (gz[: len(gz) // 2], (INPUT,), "truncated"),
        "no trailer.jsonl.gz": (gz[:-8], (INPUT,), "truncated"),
        "wrong checksum.jsonl.gz": (gz[:-8] + bytes(4) + gz[-4:], (INPUT,), "incorrect data check"),
        "wrong length.jsonl.gz": (gz[:-4] + bytes(4), (INPUT,), "incorrect length check"),
        "text after.jsonl.gz": (small + b"garbage", (INPUT,), damage),
        "zeros after.jsonl.gz": (small + bytes(512), (INPUT,), damage),
        "magic only.jsonl.zst": (zst[:4], (INPUT,), "truncated"),
        "half.jsonl.zst": (zst[: len(zst) // 2], (INPUT,), "truncated"),
        "one byte short.jsonl.zst": (zst[:-1], (INPUT,), "truncated"),
        "text after.jsonl.zst": (_zstd(OK) + b"garbage", (INPUT,), damage),
        "window of 2 GiB.jsonl.zst": (_zstd_frame(bytes([0, 21 << 3])), (INPUT,), "too much memory"),
        "window beyond.jsonl.zst": (_zstd_frame(bytes([0, 31 << 3])), (INPUT,), "too much memory"),
        "claims a petabyte.jsonl.zst": (_zstd_frame(b"\xe0" + struct.pack("<Q", 1 << 50)), (INPUT,), damage),
        "old format.jsonl.zst": (b"\x27\xb5\x2f\xfd" + bytes(20), (INPUT,), damage),
        "members.jsonl.gz": (b"".join(gzip.compress(part, mtime=0) for part in (OK[:5], b"", OK[5:], OK)), (DONE,), ""),
        "frames.jsonl.zst": (b"".join(map(_zstd, (OK[:5], b"", OK[5:], OK))), (DONE,), ""),
        "frame to skip.jsonl.zst": (b"\x50\x2a\x4d\x18" + struct.pack("<I", 4) + b"abcd" + _zstd(OK), (DONE,), ""),
    }


def _mutations() -> Iterator[Malformed]:
    plain = OK * 3 + b'{"text": "\\u00e9\\n", "n": [1, {"a": null}], "x": -1.5e3}\n' * 3
    kinds = {"jsonl": plain, "jsonl.gz": gzip.compress(plain, mtime=0), "jsonl.zst": _zstd(plain)}
    for suffix, data in kinds.items():
        for seed in range(_NUM_MUTATED):
            damaged = mutated(data, seed, 0, len(data))
            yield Malformed(f"mutated {seed}.{suffix}", constant(damaged), (DONE, USAGE, ROW_ERRORS, INPUT))


def _gzip_of_zeros(num_bytes: int, before: bytes, after: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
        with path.open("wb") as file:
            file.write(compressor.compress(before))
            for _ in range(num_bytes >> 20):
                file.write(compressor.compress(bytes(1 << 20)))
            file.write(compressor.compress(after) + compressor.flush())

    return write


def _zstd_of_zeros(num_bytes: int, before: bytes, after: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with pa.CompressedOutputStream(str(path), "zstd") as stream:
            for piece in (before, *[bytes(1 << 20)] * (num_bytes >> 20), after):
                stream.write(piece)

    return write


def _long_line(num_bytes: int) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with path.open("wb") as file:
            file.write(OK + b'{"text": "')
            # A hole: zeros that take no room on the disk.
            file.seek(num_bytes, 1)
            file.write(b'"}\n' + OK)

    return write


def _large() -> Iterator[Malformed]:
    too_long = {"places": (2,), "message": ":2: longer than 16 MiB", "is_large": True}
    yield Malformed("line of 1 GB.jsonl", _long_line(10**9), (ROW_ERRORS,), **too_long)  # type: ignore[arg-type]
    yield Malformed("line of 20 MB.jsonl", _long_line(20 * 10**6), (ROW_ERRORS,), **too_long)  # type: ignore[arg-type]
    for suffix, zeros in (("gz", _gzip_of_zeros), ("zst", _zstd_of_zeros)):
        name, bomb = f"bomb.jsonl.{suffix}", zeros(1 << 30, b"", b"")
        yield Malformed(name, bomb, (INPUT,), message="longer than 16 MiB", is_large=True)
        name, bomb = f"bomb in a row.jsonl.{suffix}", zeros(1 << 30, OK, b"\n" + OK)
        yield Malformed(name, bomb, (ROW_ERRORS,), **too_long)  # type: ignore[arg-type]


CASES = [
    *(
        Malformed(f"{what}.jsonl", constant(OK + line + b"\n" + OK), (ROW_ERRORS,), (2,))
        for what, line in _bad_second_lines().items()
    ),
    *(
        Malformed(f"torn {what}.jsonl", constant(b"\n\r\n" + OK + line), (ROW_ERRORS,), (4,))
        for what, line in {"key": b'{"te', "text": b'{"text": "a', "character": b'{"text": "\xe4\xbd'}.items()
    ),
    *(
        Malformed(name, constant(data), codes, (), said)
        for name, (data, codes, said) in (_whole_files() | _compressed_files()).items()
    ),
    *_mutations(),
    *_large(),
]
