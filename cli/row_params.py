"""--row-params: columns named like a sampling parameter override it for their row."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

from infer.cli.errors import UsageError
from infer.engine.errors import ConfigError, RequestError
from infer.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from infer.io.row import Row

_SEED = "seed"
PRIORITY = "priority"


class RowParams:
    """Reads a row's own sampling parameters and seed. `columns` are those of the input that count as such.

    Raises:
        UsageError: the input has no such column.
    """

    def __init__(self, column_names: Iterable[str]) -> None:
        names = [*(each.name for each in fields(SamplingParams)), _SEED]
        self.columns = tuple(name for name in column_names if name in names)
        if not self.columns:
            raise UsageError(
                "--row-params finds no column named like a sampling parameter", f"the names are {', '.join(names)}"
            )

    def sampling_params(self, row: Row, defaults: SamplingParams) -> SamplingParams:
        """`defaults` with what `row` says instead; null leaves the default.

        Raises:
            RequestError: `invalid_input`, a value of the wrong kind or out of range.
        """
        values = {name: row.get(name) for name in self.columns if name != _SEED}
        overrides = {name: _READERS.get(name, _same)(value) for name, value in values.items() if value is not None}
        try:
            return replace(defaults, **overrides) if overrides else defaults  # type: ignore[arg-type]
        except ConfigError as error:
            # It ends with the value.
            raise RequestError("invalid_input", str(error), public=str(error).partition(": ")[0]) from error

    def seed(self, row: Row, default: int) -> int:
        """`default`, or what `row` says instead.

        Raises:
            RequestError: `invalid_input`, it is no whole number.
        """
        return _whole_number(_SEED, row, default) if _SEED in self.columns else default


def read_priority(row: Row) -> int:
    """From the column `priority`; null is 0.

    Raises:
        RequestError: `invalid_input`, it is no whole number.
    """
    return _whole_number(PRIORITY, row, 0)


def _whole_number(name: str, row: Row, default: int) -> int:
    value = _whole(row.get(name))
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool):
        found = f"{name} must be a whole number"
        raise RequestError("invalid_input", f"{found}: {value!r:.80}", public=found)
    return value


def _same(value: object) -> object:
    return value


def _whole(value: object) -> object:
    # Integers with nulls among them are written as floats by many tools.
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _texts(value: object) -> object:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _token_ids(value: object) -> object:
    return tuple(map(_whole, value)) if isinstance(value, list) else value


def _logit_bias(value: object) -> object:
    # A map column gives pairs; a struct has the keys of all rows, null where this row has none.
    pairs = value.items() if isinstance(value, dict) else value
    try:
        return {_token_id(token_id): bias for token_id, bias in pairs if bias is not None}  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return value


def _token_id(value: object) -> object:
    # The keys of a struct are texts.
    return int(value) if isinstance(value, str) else _whole(value)


_READERS: dict[str, Callable[[object], object]] = {
    "n": _whole,
    "best_of": _whole,
    "beam_width": _whole,
    "top_k": _whole,
    "max_tokens": _whole,
    "min_tokens": _whole,
    "logprobs": _whole,
    "stop": _texts,
    "bad_words": _texts,
    "stop_token_ids": _token_ids,
    "allowed_token_ids": _token_ids,
    "logit_bias": _logit_bias,
}
"""From what a column can hold to what SamplingParams takes; it is SamplingParams that refuses."""
