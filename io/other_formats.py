"""What a file is that is not what its name says, by how it begins."""

from __future__ import annotations

_UTF16_HINT = "it is UTF-16: convert it, iconv -f UTF-16 -t UTF-8"
_BEGINNINGS = {
    b"PAR1": "it is Parquet, which is read from files named .parquet, not from standard input",
    b"PARE": "it is Parquet, and encrypted",
    b"\x1f\x8b": "it is compressed: name the file with .gz, or decompress it with gzip -dc",
    b"\x28\xb5\x2f\xfd": "it is compressed: name the file with .zst, or decompress it with zstd -dc",
    b"BZh": "it is compressed: decompress it with bzip2 -dc",
    b"\xfd7zXZ\0": "it is compressed: decompress it with xz -dc",
    b"\x04\x22\x4d\x18": "it is compressed: decompress it with lz4 -dc",
    b"PK\x03\x04": "it is a zip archive, or a spreadsheet: unpack or export it",
    b"ARROW1": "it is Arrow or Feather: write it as Parquet",
    b"Obj\x01": "it is Avro: write it as Parquet or JSONL",
    b"ORC": "it is ORC: write it as Parquet",
    b"SQLite format 3": "it is a database: export the table",
    b"%PDF": "it is a PDF",
    b"version https://git-lfs": "it stands for a file that was not fetched: git lfs pull",
    b"<!DOCTYPE": "it is a web page, perhaps an error message in place of a download",
    b"<html": "it is a web page, perhaps an error message in place of a download",
    # The longer one first: it begins like the shorter one.
    b"\xff\xfe\0\0": "it is UTF-32: convert it, iconv -f UTF-32 -t UTF-8",
    b"\xff\xfe": _UTF16_HINT,
    b"\xfe\xff": _UTF16_HINT,
    b"\0\0\xfe\xff": "it is UTF-32: convert it, iconv -f UTF-32 -t UTF-8",
    b"{\0": _UTF16_HINT,
    b"\0{": _UTF16_HINT,
}


def other_format(beginning: bytes) -> str:
    """What the file is and what to do about it, for a hint; empty where that cannot be told."""
    return next((hint for magic, hint in _BEGINNINGS.items() if beginning.startswith(magic)), "")
