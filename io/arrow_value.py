"""An Arrow value as the Python value a prompt or a JSON line is made from."""

from __future__ import annotations

from typing import cast

import pyarrow as pa
from pyarrow import types

_OUT_OF_RANGE = "<value out of range"
"""What Arrow writes in place of times that are further away than its calendar goes."""


def to_list(column: pa.Array) -> list[object] | None:
    """The values of a whole column, 30 times as fast as one by one; None where Python lacks one of them."""
    if _has_nanoseconds(column.type):
        return None
    try:
        return cast("list[object]", column.to_pylist())
    except (ValueError, OverflowError):
        return None


def to_python(scalar: pa.Scalar) -> object:
    """The Python value, and text where Python has none: nanoseconds, years beyond 9999, unknown time zones.

    Raises:
        UnicodeDecodeError: text that is not UTF-8.
    """
    # pyarrow gives another value for nanoseconds where pandas is installed; an output must not depend on that.
    if _has_nanoseconds(scalar.type):
        return _to_text(scalar)
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        raise
    except (ValueError, OverflowError):
        return _to_text(scalar)


def _has_nanoseconds(type_: pa.DataType) -> bool:
    children = (type_.field(child).type for child in range(type_.num_fields))
    return getattr(type_, "unit", None) == "ns" or any(map(_has_nanoseconds, children))


def _to_text(scalar: pa.Scalar) -> object:
    if not scalar.is_valid:
        return None
    if types.is_struct(scalar.type):
        return {name: to_python(value) for name, value in scalar.items()}
    if types.is_map(scalar.type):
        return [(to_python(entry["key"]), to_python(entry["value"])) for entry in scalar.values]
    if types.is_nested(scalar.type):
        return [to_python(value) for value in scalar.values]
    try:
        text = scalar.cast(pa.string()).as_py()
    except pa.ArrowInvalid:
        return str(scalar.value)
    if text.startswith(_OUT_OF_RANGE):
        return str(scalar.value)
    # As datetime.isoformat() has it, for the values beside this one that Python can hold.
    return text.replace(" ", "T", 1) if types.is_timestamp(scalar.type) else text
