"""Which columns a run reads and writes, settled before row 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from infer.io.errors import InputError
from infer.io.near_match import near_match_hint

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_MAX_LISTED = 20


@dataclass(frozen=True, slots=True)
class OutputSchema:
    """The columns of an output: those kept from the input, then the results."""

    kept: pa.Schema
    results: pa.Schema
    """Under the names that the records of a run use."""
    prefix: str = ""
    """Stands before the name of every result column in the output."""

    @property
    def result_names(self) -> list[str]:
        """The results' names in the output."""
        return [self.prefix + name for name in self.results.names]

    @property
    def columns(self) -> pa.Schema:
        """All of it, as it is written."""
        renamed = [field.with_name(self.prefix + field.name) for field in self.results]
        return pa.schema([*self.kept, *renamed])


def output_schema(
    source_schema: pa.Schema, keep: Sequence[str] | None, result_schema: pa.Schema, prefix: str = ""
) -> OutputSchema:
    """The columns of `source_schema` that are kept (`keep` None: all), then those of `result_schema`.

    Raises:
        InputError: `keep` names an unknown column, or a result would take the name of a kept one.
    """
    names = source_schema.names if keep is None else list(dict.fromkeys(keep))
    check_columns(names, source_schema)
    # The rows that could not be read are null in every kept column.
    kept = pa.schema([source_schema.field(name).with_nullable(True) for name in names])
    schema = OutputSchema(kept, result_schema, prefix)
    taken = sorted(set(schema.result_names).intersection(names), key=schema.result_names.index)
    if taken:
        raise InputError(
            f"the input already has a column of this name: {', '.join(taken)}",
            "put --prefix before the result names, or leave the column out with --keep",
        )
    return schema


def check_columns(names: Iterable[str], schema: pa.Schema) -> None:
    """Returns if `schema` has every column of `names`.

    Raises:
        InputError: it has not.
    """
    # A schema builds its list of names anew each time it is asked.
    columns = schema.names
    known = set(columns)
    for name in names:
        if name not in known:
            listed = ", ".join(columns[:_MAX_LISTED]) + (", ..." if len(columns) > _MAX_LISTED else "")
            raise InputError(f"no such column: {name}", near_match_hint(name, columns) or f"columns: {listed}")
