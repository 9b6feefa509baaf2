"""What a journal comes to, record by record."""

from __future__ import annotations

from dataclasses import replace

from infer.io.journal import (
    AloneRecord,
    AttemptRecord,
    DropRecord,
    EnteredRecord,
    FileRecord,
    FinalRecord,
    PublishRecord,
    ReopenRecord,
    SegmentRecord,
    StopRecord,
)
from infer.io.saved_run import SavedRun

ONE = SegmentRecord("seg-000001.parquet", 3, 0, 7, 120, "ab", "2026-01-01T00:00:00+00:00", {"oom": 1})
TWO = replace(ONE, name="seg-000002.parquet", num_rows=4, failures={"oom": 1, "timeout": 2})
THREE = replace(ONE, name="seg-000003.parquet", num_rows=5, failures={})
PUBLISH = PublishRecord((FileRecord(1, "cd"),))


def test_nothing_is_saved_at_first() -> None:
    saved = SavedRun.of([AttemptRecord("", "", "", 1), EnteredRecord(5), AloneRecord(5), StopRecord("x")])
    assert saved == SavedRun()
    assert (saved.num_rows, saved.failures, saved.segments, saved.num_segments_ever) == (0, {}, {}, 0)


def test_segments_add_up() -> None:
    saved = SavedRun.of([ONE, TWO])
    assert saved.segments == {"seg-000001.parquet": ONE, "seg-000002.parquet": TWO}
    assert (saved.num_rows, saved.failures, saved.num_segments_ever) == (7, {"oom": 2, "timeout": 2}, 2)


def test_dropped_segment_is_gone_and_its_name_is_used_up() -> None:
    saved = SavedRun.of([ONE, TWO, DropRecord(ONE.name), DropRecord("unknown"), THREE])
    assert list(saved.segments.values()) == [TWO, THREE]
    assert (saved.num_rows, saved.failures, saved.num_segments_ever) == (9, {"oom": 1, "timeout": 2}, 3)


def test_end_stands_for_all_rows_and_needs_no_segment() -> None:
    saved = SavedRun.of([ONE, PUBLISH, FinalRecord(9, {"poison": 1})])
    assert saved.segments == {}
    assert (saved.num_rows, saved.failures, saved.num_segments_ever) == (9, {"poison": 1}, 1)
    assert (saved.publish, saved.final) == (PUBLISH, FinalRecord(9, {"poison": 1}))


def test_last_publish_counts() -> None:
    later = PublishRecord((FileRecord(2, "ef"),))
    assert SavedRun.of([PUBLISH, later]).publish == later


def test_reopened_run_has_not_ended_and_keeps_the_segments_of_its_reopening() -> None:
    saved = SavedRun.of([ONE, PUBLISH, FinalRecord(9), ReopenRecord((TWO, THREE))])
    assert (saved.publish, saved.final) == (None, None)
    assert list(saved.segments.values()) == [TWO, THREE]
    assert (saved.num_rows, saved.num_segments_ever) == (9, 3)
