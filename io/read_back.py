"""The results of an output, read back into what a segment holds of them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from infer.io.errors import VerificationError
from infer.io.json_value import InvalidLineError, parse_object
from infer.io.paths import FileFormat, file_format

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from infer.io.schema import OutputSchema

_BATCH_ROWS = 1024


def read_results(files: Sequence[Path], schema: OutputSchema) -> Iterator[pa.Table]:
    """The result columns of `files`, some rows at a time, with exactly the schema `schema.results`.

    The kept columns are not read. Of JSONL, a number that JSON has no text for has become null.

    Raises:
        VerificationError: a file does not hold them.
    """
    for path in files:
        read = _read_parquet if file_format(path) is FileFormat.PARQUET else _read_jsonl
        try:
            yield from read(path, schema)
        except (OSError, KeyError, pa.ArrowException, InvalidLineError) as error:
            raise VerificationError(
                f"the results cannot be read back from {path}: {error}", "infer verify tells what is wrong with it"
            ) from error


def _read_parquet(path: Path, schema: OutputSchema) -> Iterator[pa.Table]:
    names = schema.result_names
    # Opened here: Arrow takes no name that is not UTF-8.
    with path.open("rb") as stream:
        file = pq.ParquetFile(stream, page_checksum_verification=True)
        for batch in file.iter_batches(_BATCH_ROWS, columns=names, use_threads=False):
            # By name: where a name has a dot, Parquet may have taken it for a path, and read a kept column too.
            columns = [batch.column(name) for name in names]
            yield pa.Table.from_arrays(columns, names=schema.results.names).cast(schema.results)


def _read_jsonl(path: Path, schema: OutputSchema) -> Iterator[pa.Table]:
    with path.open("rb", buffering=1 << 20) as stream:
        while lines := list(islice(stream, _BATCH_ROWS)):
            rows = [parse_object(line) for line in lines]
            columns = [
                pa.array([row[name] for row in rows], field.type)
                for name, field in zip(schema.result_names, schema.results, strict=True)
            ]
            yield pa.Table.from_arrays(columns, schema=schema.results)
