"""The Arrow type of what JSON says in one place."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from infer.io.json_type import JsonType


def type_of(values: list[Any]) -> JsonType:
    type_ = JsonType()
    for value in values:
        type_.add(value)
    return type_


def column(values: list[Any]) -> pa.Array:
    """`values` as they are written to Parquet."""
    type_ = type_of(values)
    convert = type_.converter()
    return pa.array(values if convert is None else [convert(value) for value in values], type_.arrow_type())


@pytest.mark.parametrize(
    ("values", "arrow_type"),
    [
        ([], pa.string()),
        ([None, None], pa.string()),
        (["a", None], pa.string()),
        ([True, None, False], pa.bool_()),
        ([1, 2**63 - 1, -(2**63)], pa.int64()),
        ([1.5, None], pa.float64()),
        ([None] * 1000 + [1, 2.5], pa.float64()),
        ([[], None, [1]], pa.list_(pa.int64())),
        ([[], [None]], pa.list_(pa.string())),
        ([[], [{"a": 1}], [{"b": "x"}]], pa.list_(pa.struct([("a", pa.int64()), ("b", pa.string())]))),
        ([{"a": None}, {"a": {"b": [1]}}], pa.struct([("a", pa.struct([("b", pa.list_(pa.int64()))]))])),
    ],
)
def test_json_type_unifies_what_fits_one_type(values: list[Any], arrow_type: pa.DataType) -> None:
    assert type_of(values).arrow_type() == arrow_type
    assert type_of(values[::-1]).converter() is None


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        (["a", 1], ['"a"', "1"]),
        ([True, 1], ["true", "1"]),
        ([1.5, 2**53 + 1], ["1.5", "9007199254740993"]),
        ([2**63, 1], ["9223372036854775808", "1"]),
        ([{"a": 1}, None, [1], "x"], ['{"a":1}', None, "[1]", '"x"']),
        ([{}, {}], ["{}", "{}"]),
    ],
)
def test_json_type_keeps_what_has_no_common_type_as_json(values: list[Any], texts: list[str | None]) -> None:
    assert column(values).type == pa.string()
    assert column(values).to_pylist() == texts


def test_json_type_keeps_only_the_mixed_field_as_json() -> None:
    values = [[{"role": "user", "content": "hi"}], [{"role": "user", "content": ["hi"]}], None, [None, {"role": "x"}]]
    assert column(values).to_pylist() == [
        [{"role": "user", "content": '"hi"'}],
        [{"role": "user", "content": '["hi"]'}],
        None,
        [None, {"role": "x", "content": None}],
    ]


def test_json_type_makes_no_struct_of_keys_that_never_repeat() -> None:
    values = [{f"user {number}": number} for number in range(1000)]
    assert column(values).to_pylist()[7] == '{"user 7":7}'


def test_json_type_bounds_how_many_fields_a_column_has_inside() -> None:
    values = [{f"a{number % 100}": {f"b{number // 100}": number}} for number in range(2000)]
    assert type_of(values[:500]).arrow_type().field("a1").type == pa.struct([(f"b{i}", pa.int64()) for i in range(5)])
    assert type_of(values).arrow_type() == pa.struct([(f"a{i}", pa.string()) for i in range(100)])
    assert column(values)[1999].as_py()["a99"] == '{"b19":1999}'


def test_json_type_stops_typing_where_values_are_nested_deep() -> None:
    deep: Any = "bottom"
    for _ in range(30):
        deep = [deep]
    arrow_type = type_of([deep]).arrow_type()
    levels = 0
    while pa.types.is_list(arrow_type):
        arrow_type = arrow_type.value_type
        levels += 1
    assert (levels, arrow_type) == (16, pa.string())
