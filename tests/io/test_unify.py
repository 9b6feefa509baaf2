"""One schema for files whose writers differed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from infer.io.errors import InputError
from infer.io.unify import conform, unify_schemas

if TYPE_CHECKING:
    from collections.abc import Callable

STRUCT = pa.struct([("role", pa.string()), ("content", pa.string())])
VIEWS = pa.struct([("role", pa.string_view()), ("content", pa.string_view())])


def unified(*types: pa.DataType) -> pa.DataType:
    return (
        unify_schemas((Path(f"{i}.parquet"), pa.schema([("x", type_)])) for i, type_ in enumerate(types))
        .field("x")
        .type
    )


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (pa.string_view(), pa.string_view(), pa.string_view()),
        (
            pa.dictionary(pa.int8(), pa.string()),
            pa.dictionary(pa.int8(), pa.string()),
            pa.dictionary(pa.int8(), pa.string()),
        ),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.string(), pa.string_view(), pa.string()),
        (pa.string(), pa.dictionary(pa.int32(), pa.string()), pa.string()),
        (pa.string(), pa.dictionary(pa.int32(), pa.large_string()), pa.large_string()),
        (pa.null(), STRUCT, STRUCT),
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.int64(), pa.float64(), pa.float64()),
        (pa.list_(pa.null()), pa.list_(STRUCT), pa.list_(STRUCT)),
        (pa.list_(STRUCT), pa.list_(VIEWS), pa.list_(STRUCT)),
        (pa.list_(STRUCT), pa.list_view(STRUCT), pa.list_(STRUCT)),
        (pa.list_(STRUCT), pa.large_list_view(VIEWS), pa.large_list(STRUCT)),
        (pa.list_(pa.null()), pa.list_view(STRUCT), pa.list_(STRUCT)),
        (pa.list_(STRUCT, 2), pa.list_(STRUCT, 3), pa.list_(STRUCT)),
        (
            pa.map_(pa.string(), pa.dictionary(pa.int8(), pa.string())),
            pa.map_(pa.string(), pa.string()),
            pa.map_(pa.string(), pa.string()),
        ),
        (pa.json_(), pa.large_string(), pa.large_string()),
        (pa.uuid(), pa.binary(16), pa.binary(16)),
        (
            pa.struct([("a", pa.int64())]),
            pa.struct([("b", pa.string())]),
            pa.struct([("a", pa.int64()), ("b", pa.string())]),
        ),
    ],
)
def test_unify_schemas_finds_the_type_that_holds_both(one: pa.DataType, other: pa.DataType, both: pa.DataType) -> None:
    assert unified(one, other) == both
    for type_ in (one, other):
        assert conform(pa.nulls(2, type_), both) == pa.nulls(2, both)


def test_unify_schemas_takes_columns_in_the_order_they_appear() -> None:
    one, other = pa.schema([("a", pa.int64()), ("b", pa.string())]), pa.schema([("c", pa.bool_()), ("a", pa.int32())])
    assert unify_schemas([(Path("1"), one), (Path("2"), other)]).names == ["a", "b", "c"]


def test_unify_schemas_names_both_files_that_disagree() -> None:
    with pytest.raises(InputError) as caught:
        unified(pa.null(), pa.int64(), pa.int64(), pa.string())
    assert str(caught.value) == "column x is string in 3.parquet but int64 in 1.parquet"


def test_unify_schemas_refuses_types_whose_common_type_holds_only_one_of_them() -> None:
    with pytest.raises(InputError, match=r"^column x is int64 in 1.parquet but decimal128\(5, 2\) in 0.parquet$"):
        unified(pa.decimal128(5, 2), pa.int64())


@pytest.mark.parametrize("view", [pa.list_view, pa.large_list_view])
def test_conform_makes_lists_of_views(view: Callable[[pa.DataType], pa.DataType]) -> None:
    values = [[{"a": [1, 2]}, {"a": None}], None, [], [None, {"a": [3]}]]
    item = pa.struct([("a", view(pa.int64()))])
    wanted = pa.large_list(pa.struct([("a", pa.large_list(pa.int64()))]))
    for column in (pa.array(values, view(item)), pa.array([[], *values, None], view(item)).slice(1, 4)):
        conformed = conform(column, wanted)
        conformed.validate(full=True)
        assert conformed.to_pylist() == values
    assert conform(pa.array([], view(item)), wanted).to_pylist() == []


def test_conform_keeps_the_values() -> None:
    messages = [[{"role": "user", "content": "hi"}], [], None]
    assert conform(pa.array(messages, pa.large_list(VIEWS)), pa.list_(STRUCT)).to_pylist() == messages
    assert conform(pa.array([[], None], pa.list_(pa.null())), pa.list_(STRUCT)).to_pylist() == [[], None]
    assert conform(pa.array(["a", None]).dictionary_encode(), pa.large_string()).to_pylist() == ["a", None]
    wider = pa.struct([("b", pa.string()), ("a", pa.float64())])
    assert conform(pa.array([{"a": 1}, None]), wider).to_pylist() == [{"b": None, "a": 1.0}, None]
