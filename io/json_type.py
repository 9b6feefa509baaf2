"""Finds the Arrow type that fits everything JSON said in one place, and brings values to it.

    seen                                type
    nothing but null                    string
    true, false                         bool
    integers of 64 bits                 int64
    integers and floats                 float64, if every integer is exact as one
    strings                             string
    lists                               list of what their items unify to
    objects                             struct of what their fields unify to
    anything else, or mixed             string, which holds the value as JSON

Types grow while values are added, so no first window decides anything, and all of them together stay bounded: an
object with a key of its own in every row becomes JSON, not a struct with a million fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from infer.io.json_value import dump

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Converter = Callable[[object], object]

_MAX_DEPTH = 16
_MAX_FIELDS = 256
_MAX_TYPES = 1000
_MAX_EXACT_IN_FLOAT = 2**53


class _LongInt:
    """Seen: an integer that a float could not hold."""


class _HugeInt:
    """Seen: an integer beyond 64 bits."""


class _Untyped:
    """Seen: more than an Arrow type should hold."""


_SCALARS: dict[frozenset[type], pa.DataType] = {
    frozenset(): pa.string(),
    frozenset({bool}): pa.bool_(),
    frozenset({int}): pa.int64(),
    frozenset({_LongInt}): pa.int64(),
    frozenset({int, _LongInt}): pa.int64(),
    frozenset({float}): pa.float64(),
    frozenset({int, float}): pa.float64(),
    frozenset({str}): pa.string(),
}


class JsonType:
    """The type of one place: a column, the items of a list, a field of an object."""

    __slots__ = ("_budget", "_depth", "_fields", "_items", "_seen")

    def __init__(self, depth: int = 0, budget: _Budget | None = None) -> None:
        self._seen: set[type] = set()
        self._items: JsonType | None = None
        self._fields: dict[str, JsonType] = {}
        self._depth = depth
        self._budget = budget or _Budget(_MAX_TYPES)

    def add(self, value: Any) -> None:
        """Widens the type so that `value` fits."""
        if value is None or _Untyped in self._seen:
            return
        kind = type(value)
        self._seen.add(_int_kind(value) if kind is int else kind)
        if kind is dict:
            self._add_fields(value)
        elif kind is list:
            self._add_items(value)

    def arrow_type(self) -> pa.DataType:
        """What the values added so far unify to."""
        if self._seen == {list} and self._items is not None:
            return pa.list_(self._items.arrow_type())
        if self._seen == {dict} and self._fields:
            return pa.struct([(name, field.arrow_type()) for name, field in self._fields.items()])
        return _SCALARS.get(frozenset(self._seen), pa.string())

    @property
    def is_mixed(self) -> bool:
        """Whether values of different kinds, or too many kinds of objects, became JSON text, here or further in."""
        if self._seen == {list} and self._items is not None:
            return self._items.is_mixed
        if self._seen == {dict} and self._fields:
            return any(field.is_mixed for field in self._fields.values())
        return self.converter() is _to_json_text

    def converter(self) -> Converter | None:
        """Makes a value ready for `pyarrow.array`; None where every value is so already."""
        if self._seen == {list} and self._items is not None:
            return _list_converter(self._items.converter())
        if self._seen == {dict} and self._fields:
            return _dict_converter({name: field.converter() for name, field in self._fields.items()})
        return None if frozenset(self._seen) in _SCALARS else _to_json_text

    def _add_items(self, values: list[object]) -> None:
        items = self._items or self._child()
        if items is None:
            self._give_up()
            return
        self._items = items
        for value in values:
            items.add(value)

    def _add_fields(self, values: dict[str, object]) -> None:
        for name, value in values.items():
            field = self._fields.get(name)
            if field is None:
                field = self._child() if len(self._fields) < _MAX_FIELDS else None
                if field is None:
                    self._give_up()
                    return
                self._fields[name] = field
            field.add(value)

    def _child(self) -> JsonType | None:
        """A type inside this one; None where it would be one too many."""
        if self._depth == _MAX_DEPTH or not self._budget.num_left:
            return None
        self._budget.num_left -= 1
        return JsonType(self._depth + 1, self._budget)

    def _give_up(self) -> None:
        self._seen = {_Untyped}
        self._items = None
        self._fields = {}


class _Budget:
    """How many more types one column may have inside."""

    __slots__ = ("num_left",)

    def __init__(self, num_left: int) -> None:
        self.num_left = num_left


def _int_kind(value: int) -> type:
    if -_MAX_EXACT_IN_FLOAT <= value <= _MAX_EXACT_IN_FLOAT:
        return int
    return _LongInt if -(2**63) <= value < 2**63 else _HugeInt


def _to_json_text(value: object) -> object:
    return None if value is None else dump(value).decode()


def _list_converter(convert: Converter | None) -> Converter | None:
    if convert is None:
        return None

    def convert_items(value: object) -> object:
        return [convert(item) for item in value] if isinstance(value, list) else None

    return convert_items


def _dict_converter(converters: dict[str, Converter | None]) -> Converter | None:
    changing = {name: convert for name, convert in converters.items() if convert is not None}
    if not changing:
        return None

    def convert_fields(value: object) -> object:
        if not isinstance(value, dict):
            return None
        return value | {name: convert(value[name]) for name, convert in changing.items() if name in value}

    return convert_fields
