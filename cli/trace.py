"""--trace: one row a step of what the scheduler decided, for plots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable

    from infer.engine.step_record import StepRecord

_IDS = pa.list_(pa.int32())
_VICTIMS = pa.list_(pa.struct([("row", pa.int64()), ("beneficiary", pa.int64())]))
TRACE_SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("seconds", pa.float64()),
        ("num_running", pa.int32()),
        ("num_waiting", pa.int32()),
        ("num_free_blocks", pa.int32()),
        ("prefill_tokens", pa.int32()),
        ("decode_tokens", pa.int32()),
        ("draft_tokens", pa.int32()),
        ("accepted_tokens", pa.int32()),
        ("recomputed_tokens", pa.int32()),
        ("hit_tokens", pa.int32()),
        ("scheduled", pa.list_(pa.struct([("row", pa.int64()), ("num_tokens", pa.int32())]))),
        ("preempted", _VICTIMS),
        ("blocks_to_host", pa.int32()),
        ("blocks_from_host", pa.int32()),
        ("swapped_out", _VICTIMS),
        ("swapped_in", pa.list_(pa.int64())),
        ("given_blocks", _IDS),
        ("freed_blocks", _IDS),
        ("evicted_blocks", _IDS),
    ]
)
"""`seconds` is when the step ended, counted from the model's being ready; a request's id is its row's."""


def trace_record(step: StepRecord, seconds: float) -> dict[str, object]:
    """The row of `step`."""
    return {name: getattr(step, name) for name in TRACE_SCHEMA.names if hasattr(step, name)} | {
        "seconds": seconds,
        "scheduled": [{"row": row, "num_tokens": num_tokens} for row, num_tokens in step.scheduled],
        "preempted": _victims(step.preempted),
        "swapped_out": _victims(step.swapped_out),
    }


def _victims(pairs: Iterable[tuple[int, int]]) -> list[dict[str, int]]:
    return [{"row": row, "beneficiary": beneficiary} for row, beneficiary in pairs]
