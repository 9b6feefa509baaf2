"""A Parquet file of records that are no rows of an input, such as one a step. It appears when it is closed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import pyarrow as pa
import pyarrow.parquet as pq

from infer.io.aside import check_inputs, check_name, new_file, publish, resolved
from infer.io.errors import OutputNameError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from types import TracebackType

_ROW_GROUP_ROWS = 4096


class TableFile:
    """Takes records inside `with`. What there is of them is kept, too, where the block ends by an exception.

    Raises:
        OutputNameError: the name does not end in `.parquet`.
        OutputExistsError: it is taken, and `overwrite` is not set, or it is one of `inputs`.
        StorageError: the file system refused.
    """

    def __init__(
        self, path: str | Path, schema: pa.Schema, *, inputs: Iterable[str | Path] = (), overwrite: bool = False
    ) -> None:
        self.path = resolved(path)
        self._overwrite = overwrite
        if self.path.suffix.lower() != ".parquet":
            raise OutputNameError(f"unknown output format: {self.path.name}", "it is written as .parquet")
        check_inputs(self.path, inputs)
        check_name(self.path, overwrite=overwrite)
        self._schema = schema
        self._records: list[dict[str, object]] = []

    def __enter__(self) -> Self:
        self._file = new_file(self.path)
        try:
            self._writer = pq.ParquetWriter(self._file, self._schema, compression="zstd")
        except BaseException:
            self._file.discard()
            raise
        return self

    def add(self, record: dict[str, object]) -> None:
        self._records.append(record)
        if len(self._records) == _ROW_GROUP_ROWS:
            self._flush()

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._flush()
            self._writer.close()
            self._file.commit()
            publish(self._file, self.path, overwrite=self._overwrite)
        except BaseException:
            self._file.discard()
            raise

    def _flush(self) -> None:
        if self._records:
            self._writer.write_batch(pa.RecordBatch.from_pylist(self._records, self._schema))
        self._records = []
