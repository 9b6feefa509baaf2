"""A segment: an immutable Parquet file with the results of some rows, in their order.

The kept columns are not in it: the input still has them, and it is read again when the output is published.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from infer.io.errors import StateError
from infer.io.storage import NewFile, read_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

ROW = "_row"
"""The result column that says which row it is."""


def result_table(records: Sequence[Mapping[str, object]], schema: pa.Schema) -> pa.Table:
    """Records of a run as columns, in the order of their rows."""
    ordered = sorted(records, key=lambda record: record[ROW])  # type: ignore[arg-type,return-value]
    columns = [pa.array([record[field.name] for record in ordered], field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def write_segment(path: Path, table: pa.Table) -> tuple[int, str]:
    """Returns its size and sha256 when every byte of it has reached the disk.

    Raises:
        StorageError: the file system refused; nothing is left of it.
    """
    file = NewFile(path)
    try:
        pq.write_table(table, file, compression="zstd", write_page_checksum=True, write_statistics=False)
        file.commit()
    except BaseException:
        file.discard()
        raise
    return file.tell(), file.hexdigest()


def is_intact(path: Path, num_bytes: int, sha256: str) -> bool:
    """Whether a segment is what was written."""
    data = read_bytes(path)
    return data is not None and len(data) == num_bytes and hashlib.sha256(data).hexdigest() == sha256


def read_segment(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Those of its columns; without a list, all.

    Raises:
        StateError: it is gone or damaged.
    """
    data = read_bytes(path)
    try:
        return pq.read_table(pa.BufferReader(data or b""), columns=columns, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        # Arrow's own OSError: a page whose checksum is wrong.
        raise StateError(
            f"a segment of saved rows cannot be read: {path}", "run the same command again: its rows are run again"
        ) from error
