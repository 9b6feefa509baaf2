"""Whether the kept columns of an output are those of the input: row by row, as both are read."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import types

from infer.io.arrow_value import to_python
from infer.io.json_value import dump
from infer.io.row_batch import row_batches
from infer.io.schema import OutputSchema, check_columns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from infer.io.reader import Source

NO_VALUE = object()


class InputMatch:
    """Goes through `source` as fast as the output is told to it. The columns are those that the output has kept.

    Raises:
        InputError: the input has no such column, or (later) cannot be read.
    """

    def __init__(self, source: Source, kept: Sequence[str]) -> None:
        check_columns(kept, source.schema)
        self._names = list(kept)
        self._schema = OutputSchema(pa.schema([source.schema.field(name) for name in kept]), pa.schema([]))
        self._rows = source.rows(self._names)

    def differing(self, batch: pa.RecordBatch) -> Iterator[tuple[str, list[int]]]:
        """Columns of the next rows of a Parquet output that differ, and in which rows of `batch`.

        Rows that the input does not have are no difference: it is for others to count.
        """
        rows = list(islice(self._rows, batch.num_rows))
        if not self._names:
            return
        start = 0
        differing: dict[str, list[int]] = {}
        for expected in row_batches(rows, pa.record_batch([], schema=self._schema.results), self._schema):
            found = batch.slice(start, expected.num_rows)
            for name in self._names:
                offsets = _differing_offsets(expected.column(name), found.column(name))
                differing.setdefault(name, []).extend(start + offset for offset in offsets)
            start += expected.num_rows
        yield from ((name, offsets) for name, offsets in differing.items() if offsets)

    def differing_line(self, values: Mapping[str, object]) -> list[str]:
        """Columns of the next row of a JSONL output that differ."""
        row = next(self._rows, None)
        if row is None:
            return []
        expected = row.to_dict(self._names)
        found = {name: values.get(name) for name in self._names}
        # Compared as what is written, since not every value of an input has a JSON value of its own.
        if dump(expected) == dump(found):
            return []
        return [name for name in self._names if dump(expected[name]) != dump(found[name])]

    def skip(self) -> None:
        """Pass over the row of a line that cannot be read."""
        next(self._rows, None)


def _differing_offsets(expected: pa.Array, found: pa.Array) -> list[int]:
    expected, found = _decoded(expected), _decoded(found)
    if expected.equals(found):
        return []
    # One by one: also where nothing differs, but there are NaNs, or encodings inside of lists.
    return [offset for offset in range(len(expected)) if not _is_same(_value(expected[offset]), _value(found[offset]))]


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if types.is_dictionary(column.type) else column


def _value(scalar: pa.Scalar) -> object:
    try:
        return to_python(scalar)
    except UnicodeDecodeError:
        # The rows of the input that hold such text have no values at all.
        return NO_VALUE


def _is_same(one: object, other: object) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(_is_same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return one == other or (one != one and other != other)
