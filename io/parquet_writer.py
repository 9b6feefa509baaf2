"""Writes rows to Parquet, into a file that carries the digest of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from infer.io.row_batch import row_batches
from infer.io.seal import BLANK_SEAL, SEAL_KEY, SealedSink

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from infer.io.row import Row
    from infer.io.schema import OutputSchema
    from infer.io.storage import NewFile

_ROW_GROUP_ROWS = 8192
_ROW_GROUP_BYTES = 64 << 20


class ParquetWriter:
    """Rows go to `file` a row group at a time; in between they are held, bounded by number and by bytes.

    `metadata` is for the footer, beside the seal.
    """

    def __init__(self, file: NewFile, schema: OutputSchema, metadata: Mapping[str, str] | None = None) -> None:
        self._sink = SealedSink(file)
        self._metadata = dict(metadata or {})
        self.sha256: str | None = None
        """The seal, once the file is closed."""
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []
        self._num_rows = self._num_bytes = 0
        columns = schema.columns
        self._writer = pq.ParquetWriter(
            self._sink,
            columns,
            compression="zstd",
            write_page_checksum=True,
            # The least and the greatest of a column of texts help nobody, and make the footer grow with the rows.
            write_statistics=[field.name for field in columns if types.is_primitive(field.type)],
        )

    def write(self, rows: Sequence[Row], results: pa.RecordBatch) -> None:
        """Appends rows, each with its values for the result columns under their names without the prefix."""
        batches = row_batches(rows, results, self._schema)
        self._batches += batches
        self._num_rows += len(rows)
        self._num_bytes += sum(batch.nbytes for batch in batches)
        if self._num_rows >= _ROW_GROUP_ROWS or self._num_bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        """Writes what is still held, the footer, and the seal."""
        self._flush()
        self._writer.add_key_value_metadata({**self._metadata, SEAL_KEY: BLANK_SEAL})
        self._sink.begin_footer()
        self._writer.close()
        self.sha256 = self._sink.seal()

    def _flush(self) -> None:
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches), row_group_size=self._num_rows)
        self._batches = []
        self._num_rows = self._num_bytes = 0
