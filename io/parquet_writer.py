"""Writes rows to Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from infer.io.errors import StorageError
from infer.io.row_batch import row_batches

if TYPE_CHECKING:
    from infer.io.row import Row, RowBlock
    from infer.io.schema import OutputSchema
    from infer.io.storage import NewFile

_BATCH_ROWS = 1024
# Rows hold their blocks, and a block of long rows has few of them.
_MAX_HELD_BLOCKS = 16
_ROW_GROUP_ROWS = 8192
_ROW_GROUP_BYTES = 64 << 20


class ParquetWriter:
    """Rows go to `file` a row group at a time; in between they are held, bounded by number and by bytes."""

    def __init__(self, file: NewFile, schema: OutputSchema) -> None:
        self._file = file
        self._schema = schema
        self._records: list[tuple[Row, dict[str, object]]] = []
        self._last_block: RowBlock | None = None
        self._num_blocks = 0
        self._batches: list[pa.RecordBatch] = []
        self._num_rows = self._num_bytes = 0
        columns = schema.columns
        self._writer = pq.ParquetWriter(
            file,
            columns,
            compression="zstd",
            write_page_checksum=True,
            # The least and the greatest of a column of texts help nobody, and make the footer grow with the rows.
            write_statistics=[field.name for field in columns if types.is_primitive(field.type)],
        )

    def write(self, records: list[tuple[Row, dict[str, object]]]) -> None:
        for record in records:
            self._records.append(record)
            if record[0].block is not self._last_block:
                self._last_block = record[0].block
                self._num_blocks += 1
            if len(self._records) == _BATCH_ROWS or self._num_blocks == _MAX_HELD_BLOCKS:
                self._convert()

    def close(self) -> None:
        """Writes what is still held, and the footer."""
        self._convert()
        self._flush()
        self._writer.close()

    def check(self, num_rows: int) -> None:
        """Returns if the footer can be read back and says `num_rows`.

        Raises:
            StorageError: it does not.
        """
        path = self._file.path
        try:
            # Opened here: Arrow takes no name that is not UTF-8.
            with path.open("rb") as file:
                found = pq.read_metadata(file).num_rows
        except (OSError, pa.ArrowException) as error:
            raise StorageError(f"the file that was just written cannot be read back: {path}") from error
        if found != num_rows:
            raise StorageError(f"{num_rows} rows were written, but {found} can be read back: {path}")

    def _convert(self) -> None:
        # Many rows at once, so that the price of a column is paid once for all of them.
        batches = row_batches(self._records, self._schema)
        self._records = []
        self._last_block = None
        self._num_blocks = 0
        self._batches += batches
        self._num_rows += sum(batch.num_rows for batch in batches)
        self._num_bytes += sum(batch.nbytes for batch in batches)
        if self._num_rows >= _ROW_GROUP_ROWS or self._num_bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches), row_group_size=self._num_rows)
        self._batches = []
        self._num_rows = self._num_bytes = 0
