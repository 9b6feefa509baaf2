"""Which columns an output has."""

from __future__ import annotations

import pyarrow as pa
import pytest

from infer.io.errors import InputError
from infer.io.schema import output_schema

SOURCE = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.large_string()), ("label", pa.string())])
RESULTS = pa.schema([("response", pa.string()), ("_row", pa.int64())])


def error_of(source: pa.Schema, keep: list[str] | None, prefix: str = "") -> tuple[str, str]:
    with pytest.raises(InputError) as caught:
        output_schema(source, keep, RESULTS, prefix)
    return str(caught.value), caught.value.hint


def test_output_schema_keeps_all_columns_and_adds_the_results() -> None:
    columns = output_schema(SOURCE, None, RESULTS).columns
    assert columns.names == ["id", "text", "label", "response", "_row"]
    assert columns.types == [pa.int64(), pa.large_string(), pa.string(), pa.string(), pa.int64()]
    assert all(field.nullable for field in columns), "a row that could not be read is null in all of them"


def test_output_schema_keeps_the_columns_asked_for_in_that_order() -> None:
    assert output_schema(SOURCE, ["label", "id", "label"], RESULTS).columns.names == ["label", "id", "response", "_row"]
    assert output_schema(SOURCE, [], RESULTS).columns.names == ["response", "_row"]


def test_output_schema_puts_the_prefix_before_the_results_only() -> None:
    assert output_schema(SOURCE, ["id"], RESULTS, "model_").columns.names == ["id", "model_response", "model__row"]


def test_output_schema_names_the_column_that_was_meant() -> None:
    assert error_of(SOURCE, ["txt"]) == ("no such column: txt", "did you mean 'text'?")
    assert error_of(SOURCE, ["quite else"]) == ("no such column: quite else", "columns: id, text, label")


def test_output_schema_refuses_a_name_that_is_taken() -> None:
    source = pa.schema([("response", pa.string()), ("text", pa.string())])
    assert error_of(source, None) == (
        "the input already has a column of this name: response",
        "put --prefix before the result names, or leave the column out with --keep",
    )
    assert output_schema(source, ["text"], RESULTS).columns.names == ["text", "response", "_row"]
    assert output_schema(source, None, RESULTS, "x_").columns.names == ["response", "text", "x_response", "x__row"]
    assert error_of(pa.schema([("x_response", pa.string())]), None, "x_")[0].endswith("name: x_response")
