"""What a run says about its output: in the footer of a Parquet file, as JSON under the key `infer`, or in its state."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from types import NoneType
from typing import TYPE_CHECKING, cast

import pyarrow as pa
from pyarrow import types

if TYPE_CHECKING:
    from collections.abc import Mapping

    from infer.io.schema import OutputSchema

RECORD_KEY = "infer"


@dataclass(frozen=True, slots=True)
class OutputColumns:
    """Those of the input that are kept, then the results."""

    kept: tuple[str, ...]
    results: Mapping[str, str]
    """Name without the prefix, and type as `type_text` says it."""
    prefix: str = ""

    @property
    def names(self) -> list[str]:
        """As they stand in the output."""
        return [*self.kept, *(self.prefix + name for name in self.results)]


@dataclass(frozen=True, slots=True)
class OutputRecord:
    """The promises that an output is held to."""

    run_id: str
    fingerprint: str
    """The digest of all that decides the answers."""
    num_rows: int
    """Of the whole output, also where it has several parts."""
    columns: OutputColumns
    limit: int | None = None
    """How many rows of the input were asked for; None: all."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """Rows that failed, by code."""
    versions: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: object) -> OutputRecord:
        """The inverse of `to_json`. What a later version may have added is passed over.

        Raises:
            ValueError: this is no such record.
        """
        record = _mapping(value)
        columns = _mapping(record.get("columns"))
        kept, num_rows, limit = columns.get("kept"), record.get("num_rows"), record.get("limit")
        if not isinstance(kept, list | tuple) or type(num_rows) is not int or type(limit) not in (int, NoneType):
            raise ValueError(f"no record of an output: {value!r:.200}")
        return cls(
            run_id=_text(record.get("run_id")),
            fingerprint=_text(record.get("fingerprint")),
            num_rows=num_rows,
            columns=OutputColumns(
                tuple(map(_text, kept)), _texts(columns.get("results")), _text(columns.get("prefix"))
            ),
            limit=cast("int | None", limit),
            failures=_counts(record.get("failures")),
            versions=_texts(record.get("versions")),
        )

    def footer(self) -> dict[str, str]:
        """The key and value for the footer of a Parquet file."""
        return {RECORD_KEY: json.dumps(self.to_json())}


def output_columns(schema: OutputSchema) -> OutputColumns:
    """The columns of `schema`."""
    results = {each.name: type_text(each.type) for each in schema.results}
    return OutputColumns(tuple(schema.kept.names), results, schema.prefix)


def read_record(metadata: Mapping[bytes, bytes] | None) -> OutputRecord | None:
    """The record in the key-value metadata of a Parquet footer; None where there is none.

    Raises:
        ValueError: what stands there is no record.
    """
    text = (metadata or {}).get(RECORD_KEY.encode())
    return None if text is None else OutputRecord.from_json(json.loads(text))


def type_text(type_: pa.DataType) -> str:
    """A type as text that is the same before and after Parquet, which renames the items of lists."""
    if types.is_list(type_):
        return f"list<{type_text(type_.value_type)}>"
    if types.is_fixed_size_list(type_):
        return f"list<{type_text(type_.value_type)}>[{type_.list_size}]"
    if types.is_map(type_):
        return f"map<{type_text(type_.key_type)}, {type_text(type_.item_type)}>"
    if types.is_struct(type_):
        return f"struct<{', '.join(f'{each.name}: {type_text(each.type)}' for each in type_)}>"
    return str(type_)


def _mapping(value: object) -> dict[object, object]:
    if not isinstance(value, dict):
        raise ValueError(f"expected a mapping: {value!r:.200}")
    return value


def _counts(value: object) -> dict[str, int]:
    counts = {_text(name): count for name, count in _mapping(value).items()}
    if not all(type(count) is int for count in counts.values()):
        raise ValueError(f"expected numbers: {value!r:.200}")
    return counts  # type: ignore[return-value]


def _texts(value: object) -> dict[str, str]:
    return {_text(name): _text(text) for name, text in _mapping(value).items()}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text: {value!r:.200}")
    return value
