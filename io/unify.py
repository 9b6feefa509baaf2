"""One schema for the Parquet files of a data set, and their batches brought to it.

Shards of one data set differ where their writers did: one has only empty lists where the next has structs, one calls
text `large_string`, one stores it as a dictionary. What differs only so is the same column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from infer.io.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def unify_schemas(schemas: Iterable[tuple[Path, pa.Schema]]) -> pa.Schema:
    """The columns of all files in the order of their first appearance; a type that they all agree on stays as it is.

    Raises:
        InputError: two files disagree; names them and the column.
    """
    fields: dict[str, pa.Field] = {}
    origins: dict[str, Path] = {}
    seen: pa.Schema | None = None
    for path, schema in schemas:
        if seen is not None and schema.equals(seen):
            continue
        seen = schema
        for field in schema:
            # A file that lacks the column is null in it.
            known = fields.get(field.name, field.with_nullable(True))
            try:
                unified = known.with_type(_unify_types(known.type, field.type))
            except pa.ArrowException as error:
                message = f"column {field.name} is {field.type} in {path} but {known.type} in {origins[field.name]}"
                raise InputError(message, "cast one of them") from error
            if field.name not in fields or unified != known:
                fields[field.name] = unified
                origins[field.name] = path
    return pa.schema(fields.values())


def conform(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """`column` as type `wanted`, which `unify_schemas` found for it.

    Raises:
        pyarrow.ArrowInvalid: a value does not fit, e.g. a large integer where another file has floats.
    """
    if column.type == wanted:
        return column
    # Arrow 26 casts a list view to a list whose last offset is missing.
    return (_without_views(column) if _has_views(column.type) else column).cast(wanted)


def _unify_types(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one == other:
        return one
    both = [pa.schema([("", _plain(each))]) for each in (one, other)]
    unified = pa.unify_schemas(both, promote_options="permissive").field(0).type
    for each in (one, other):
        # Decimals and integers have a common type that Arrow makes too narrow and then refuses.
        conform(pa.nulls(1, each), unified)
    return unified


def _plain(type_: pa.DataType) -> pa.DataType:
    # How values are encoded says nothing about what they are, and Arrow does not unify across encodings.
    if types.is_dictionary(type_):
        return _plain(type_.value_type)
    if types.is_string_view(type_):
        return pa.string()
    if types.is_binary_view(type_):
        return pa.binary()
    if isinstance(type_, pa.BaseExtensionType):
        return _plain(type_.storage_type)
    if types.is_map(type_):
        return pa.map_(_plain(type_.key_type), type_.item_field.with_type(_plain(type_.item_type)))
    if types.is_large_list(type_) or types.is_large_list_view(type_):
        return pa.large_list(type_.value_field.with_type(_plain(type_.value_type)))
    if types.is_list(type_) or types.is_list_view(type_) or types.is_fixed_size_list(type_):
        return pa.list_(type_.value_field.with_type(_plain(type_.value_type)))
    if types.is_struct(type_):
        return pa.struct([field.with_type(_plain(field.type)) for field in type_])
    return type_


def _has_views(type_: pa.DataType) -> bool:
    if types.is_list_view(type_) or types.is_large_list_view(type_):
        return True
    return any(_has_views(type_.field(child).type) for child in range(type_.num_fields))


def _without_views(column: pa.Array) -> pa.Array:
    """The same lists, each as a run of the values; what they hold is treated alike."""
    type_ = column.type
    if types.is_struct(type_):
        fields = [_without_views(column.field(child)) for child in range(type_.num_fields)]
        names = [type_.field(child).name for child in range(type_.num_fields)]
        return pa.StructArray.from_arrays(fields, names, mask=column.is_null())
    if not types.is_nested(type_) or types.is_map(type_):
        return column
    lengths = pc.list_value_length(column).fill_null(0).cast(pa.int64())
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
    return pa.LargeListArray.from_arrays(offsets, _without_views(column.flatten()), mask=column.is_null())
