"""Which rows are suspected when a process died, and which are found guilty."""

from __future__ import annotations

from infer.io.journal import (
    AloneRecord,
    AttemptRecord,
    EnteredRecord,
    FinalRecord,
    JournalRecord,
    ReopenRecord,
    SegmentRecord,
    StopRecord,
)
from infer.io.row_set import RowSet
from infer.io.suspects import Suspects, find_suspects

ATTEMPT = AttemptRecord("2026-01-01T00:00:00+00:00", "here", "this boot", 1)
REBOOTED = AttemptRecord("2026-01-01T00:00:00+00:00", "here", "an earlier boot", 1)
ELSEWHERE = AttemptRecord("2026-01-01T00:00:00+00:00", "there", "another boot", 1)
SEGMENT = SegmentRecord("seg-000001.parquet", 1, 0, 0, 1, "", "")


def find(*records: JournalRecord, saved: tuple[int, ...] = ()) -> Suspects:
    rows = RowSet(20)
    for row in saved:
        rows.add(row)
    return find_suspects(records, rows, "here", "this boot")


def suspects(num_deaths: int, alone: set[int], poison: set[int] | None = None) -> Suspects:
    return Suspects(num_deaths, frozenset(alone), frozenset(poison or ()))


def test_nobody_is_suspected_at_first_or_after_a_stop_or_the_end() -> None:
    assert find() == suspects(0, set())
    attempt = [ATTEMPT, EnteredRecord(5)]
    assert find(*attempt, StopRecord("x"), *attempt, FinalRecord(1)) == suspects(0, set())


def test_rows_that_saw_one_death_run_with_the_others() -> None:
    assert find(ATTEMPT, EnteredRecord(5)) == suspects(1, set())
    assert find(ATTEMPT, EnteredRecord(5), ATTEMPT, EnteredRecord(5), StopRecord("x")) == suspects(1, set())


def test_rows_that_saw_two_deaths_run_alone() -> None:
    dead = [ATTEMPT, EnteredRecord(2), EnteredRecord(3), ATTEMPT, EnteredRecord(5)]
    assert find(*dead) == suspects(2, {0, 1, 2, 3})
    assert find(*dead, saved=(0, 2)) == suspects(2, {1, 3})
    assert find(*dead, ATTEMPT, EnteredRecord(4)) == suspects(3, {0, 1, 2, 3, 4})
    assert find(ATTEMPT, EnteredRecord(5), EnteredRecord(3), ATTEMPT, EnteredRecord(9)) == suspects(
        2, {0, 1, 2, 3, 4, 5}
    )


def test_death_before_any_row_suspects_none() -> None:
    assert find(ATTEMPT, ATTEMPT) == suspects(2, set())
    assert find(ATTEMPT, EnteredRecord(0), ATTEMPT) == suspects(2, set())


def test_row_in_whose_company_nothing_else_was_is_poison_after_two_deaths() -> None:
    dead = [ATTEMPT, EnteredRecord(3), ATTEMPT, EnteredRecord(3)]
    alone = [ATTEMPT, EnteredRecord(5), AloneRecord(2)]
    # Only that row was there: the others of that attempt are not suspected for it.
    assert find(*dead, *alone) == suspects(3, {0, 1, 2, 3})
    assert find(*dead, *alone, *alone) == suspects(4, {0, 1, 3}, {2})
    assert find(*dead, *alone, ATTEMPT, AloneRecord(1)) == suspects(4, {0, 1, 2, 3})
    assert find(*dead, *alone, *alone, saved=(2,)) == suspects(4, {0, 1, 3})


def test_row_that_ended_alone_is_cleared_by_what_is_saved_of_it() -> None:
    dead = [ATTEMPT, EnteredRecord(3), ATTEMPT, EnteredRecord(3)]
    attempt = [ATTEMPT, AloneRecord(1), SEGMENT, AloneRecord(2)]
    assert find(*dead, *attempt, *attempt, saved=(1,)) == suspects(4, {0, 3}, {2})


def test_death_after_a_row_ended_alone_accuses_nobody() -> None:
    dead = [ATTEMPT, EnteredRecord(3), ATTEMPT, EnteredRecord(3)]
    attempt = [ATTEMPT, EnteredRecord(9), AloneRecord(1), SEGMENT]
    assert find(*dead, *attempt, *attempt, saved=(1,)) == suspects(4, {0, 2, 3})


def test_machine_that_went_down_is_no_rows_fault() -> None:
    attempt = [REBOOTED, EnteredRecord(3)]
    assert find(*attempt, *attempt, *attempt) == suspects(0, set())
    elsewhere = [ELSEWHERE, EnteredRecord(3)]
    assert find(*elsewhere, *elsewhere) == suspects(2, {0, 1, 2, 3})


def test_rows_that_are_run_again_have_no_past() -> None:
    dead = [ATTEMPT, EnteredRecord(3), ATTEMPT, EnteredRecord(3)]
    assert find(*dead, FinalRecord(1), ReopenRecord(())) == suspects(0, set())
    assert find(*dead, ReopenRecord(()), ATTEMPT, EnteredRecord(1)) == suspects(1, set())


def test_lines_outside_an_attempt_mean_nothing() -> None:
    assert find(EnteredRecord(3), AloneRecord(1), SEGMENT) == suspects(0, set())
