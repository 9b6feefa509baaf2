"""What must be true of every row of an output, whatever its format: its number, and one outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from infer.io.finding import Check
from infer.io.segment import ROW

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FINISH_REASON = "finish_reason"
ERROR_CODE = "error_code"
ERROR = "error"
NOT_ANSWERS = (FINISH_REASON, "prompt_tokens", "completion_tokens", "cached_tokens", ERROR_CODE, ERROR, ROW)
"""Result columns that every run has; the others are answers, and the first of those is there wherever one is."""
NEEDED = (FINISH_REASON, ERROR_CODE, ERROR, ROW)
FINISH_REASONS = ("stop", "length", "error")


@dataclass(frozen=True, slots=True)
class Violations:
    """Rows of a batch that break one rule."""

    rule: str
    check: Check
    offsets: list[int]
    message: str
    """Of the first of them."""


def broken_rules(results: Mapping[str, pa.Array], first_row: int) -> Iterator[Violations]:
    """The rules that a batch breaks. `results`: its result columns, by their names without the prefix.

    `first_row` is the number that its first row must have.
    """
    numbers = results[ROW]
    expected = pa.array(range(first_row, first_row + len(numbers)), pa.int64())
    offsets = _offsets(pc.not_equal(numbers, expected))
    if offsets:
        message = f"{ROW} is {numbers[offsets[0]].as_py()}, expected {first_row + offsets[0]}"
        yield Violations("number", Check.ROWS, offsets, message)

    code, reason = results[ERROR_CODE], results[FINISH_REASON]
    failed = pc.is_valid(code)
    answers = {name: column for name, column in results.items() if name not in NOT_ANSWERS}
    for name, column in answers.items():
        offsets = _offsets(pc.and_(failed, pc.is_valid(column)))
        if offsets:
            yield Violations(
                f"both {name}", Check.OUTCOMES, offsets, f"both {name} and error: {code[offsets[0]].as_py()}"
            )
    main = next(iter(answers), None)
    if main is not None:
        offsets = _offsets(pc.and_(pc.invert(failed), pc.invert(_is_whole(answers[main]))))
        if offsets:
            yield Violations("neither", Check.OUTCOMES, offsets, f"neither {main} nor error")

    offsets = _offsets(pc.invert(pc.is_in(reason, pa.array(FINISH_REASONS, reason.type))))
    if offsets:
        yield Violations("reason", Check.OUTCOMES, offsets, f"{FINISH_REASON} is {reason[offsets[0]].as_py()}")
    offsets = _offsets(pc.xor(failed, pc.fill_null(pc.equal(reason, "error"), False)))
    if offsets:
        pair = f"{FINISH_REASON} is {reason[offsets[0]].as_py()} where {ERROR_CODE} is {code[offsets[0]].as_py()}"
        yield Violations("reason and code", Check.OUTCOMES, offsets, pair)
    offsets = _offsets(pc.and_(pc.is_valid(results[ERROR]), pc.invert(failed)))
    if offsets:
        yield Violations("message", Check.OUTCOMES, offsets, f"an {ERROR} without {ERROR_CODE}")


def _is_whole(answers: pa.Array) -> pa.Array:
    """Which rows have an answer, and where it is a list, at least one and none of them null."""
    whole = pc.is_valid(answers)
    if not types.is_list(answers.type):
        return whole
    filled = pc.greater(pc.fill_null(pc.list_value_length(answers), 0), 0)
    parents = pc.list_parent_indices(answers).filter(pc.is_null(pc.list_flatten(answers)))
    positions = pa.array(range(len(answers)), parents.type)
    return pc.and_(pc.and_(whole, filled), pc.invert(pc.is_in(positions, parents)))


def _offsets(broken: pa.Array) -> list[int]:
    # What cannot be compared, because it is null, is not as it should be.
    return pc.indices_nonzero(pc.fill_null(broken, True)).to_pylist()  # type: ignore[no-any-return]
