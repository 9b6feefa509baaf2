"""A good output passes; of a bad one it is said what is wrong and where."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from outputs import changed, found, result, rows_at, write_input, write_output

from infer.io import verify_jsonl, verify_parquet
from infer.io.errors import InputError, VerificationError
from infer.io.finding import HINTS, Check, Finding, raise_findings
from infer.io.journal import FileRecord
from infer.io.paths import FileFormat
from infer.io.reader import open_source
from infer.io.verification import Verification
from infer.io.verify import ExpectedOutput, verify_file, verify_output

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from outputs import Records


BOTH = pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_input(tmp_path / "in.jsonl", 100)


def verify_changed(
    source: Path, suffix: str, change: Callable[[Records], Records], **options: Any
) -> list[tuple[Check, int | None, str | None, str, int]]:
    """What is found in an output that was written with other records, and so with a right digest."""
    path = source.with_name("out" + suffix)
    expected = write_output(path, source, change=change, **options)
    report = verify_output(path, source=open_source([str(source)]), expected=expected)
    assert {finding.file for finding in report.findings} <= {path}
    return found(report)


@BOTH
@pytest.mark.parametrize("options", [{}, {"several": True, "prefix": "r_"}, {"keep": []}, {"keep": ["tags", "n"]}])
def test_output_of_a_run_is_good(source: Path, suffix: str, options: dict[str, Any]) -> None:
    path = source.with_name("out" + suffix)
    expected = write_output(path, source, **options)
    report = verify_output(path, source=open_source([str(source)]), expected=expected)
    assert (found(report), report.unchecked, report.num_rows, report.num_files) == ([], {}, 100, 1)
    assert report.checks == tuple(check for check in Check if check is not Check.FILES)
    report.check()
    # Parquet says all of it by itself but the input; JSONL has no place for it.
    alone = verify_output(path)
    assert (found(alone), alone.num_rows) == ([], 100)
    assert set(alone.unchecked) == {Check.INPUT} | ({Check.DIGEST, Check.RECORD} if suffix == ".jsonl" else set())


@BOTH
def test_output_of_no_rows_is_good(tmp_path: Path, suffix: str) -> None:
    source = write_input(tmp_path / "in.jsonl", 3)
    path = tmp_path / f"out{suffix}"
    expected = write_output(path, source, change=lambda records: [], promised=0)
    assert found(verify_output(path, expected=expected)) == []


@BOTH
@pytest.mark.parametrize(
    ("indices", "rows", "message"),
    [
        ([*range(50), *range(51, 100)], 49, "_row is 51, expected 50"),
        ([*range(51), *range(50, 100)], 50, "_row is 50, expected 51"),
        ([*range(20), 21, 20, *range(22, 100)], 2, "_row is 21, expected 20"),
    ],
    ids=["dropped", "doubled", "swapped"],
)
def test_row_that_is_dropped_doubled_or_swapped_is_found(
    source: Path, suffix: str, indices: list[int], rows: int, message: str
) -> None:
    findings = verify_changed(source, suffix, lambda records: rows_at(records, indices), keep=[])
    first = next(position for position, index in enumerate(indices) if position != index)
    assert findings[0] == (Check.ROWS, first, None, message, rows)
    count = [(check, text) for check, row, _, text, _ in findings[1:]]
    assert count == (
        []
        if len(indices) == 100
        else [
            (Check.ROWS, f"100 rows were promised, found {len(indices)}"),
            (Check.INPUT, f"the input has 100 rows, the output {len(indices)}"),
        ]
    )


@BOTH
def test_rows_that_are_missing_at_the_end_are_found_without_the_input(source: Path, suffix: str) -> None:
    path = source.with_name("out" + suffix)
    expected = write_output(path, source, change=lambda records: records[:90])
    assert found(verify_output(path, expected=expected)) == [
        (Check.ROWS, None, None, "100 rows were promised, found 90", 1)
    ]


@BOTH
def test_row_without_a_number_is_found(source: Path, suffix: str) -> None:
    findings = verify_changed(source, suffix, lambda records: changed(records, 9, _row=None))
    assert findings == [(Check.ROWS, 9, None, "_row is None, expected 9", 1)]


OUTCOMES: list[tuple[int, dict[str, object], list[str]]] = [
    (4, {"error_code": "oom", "error": "x", "finish_reason": "error"}, ["both response and error: oom"]),
    (4, {"error_code": "oom"}, ["both response and error: oom", "finish_reason is stop where error_code is oom"]),
    (4, {"error": "x"}, ["an error without error_code"]),
    (4, {"response": None}, ["neither response nor error"]),
    (4, {"finish_reason": "error"}, ["finish_reason is error where error_code is None"]),
    (4, {"finish_reason": None}, ["finish_reason is None"]),
    (4, {"finish_reason": "stopp"}, ["finish_reason is stopp"]),
    (3, {"error_code": None, "error": None}, [
        "neither response nor error", "finish_reason is error where error_code is None"]),
    (3, {"finish_reason": "stop"}, ["finish_reason is stop where error_code is oom"]),
    (3, {"response": ""}, ["both response and error: oom"]),
]  # fmt: skip


@BOTH
@pytest.mark.parametrize(("index", "values", "messages"), OUTCOMES)
def test_row_with_a_wrong_outcome_is_found(
    source: Path, suffix: str, index: int, values: dict[str, object], messages: list[str]
) -> None:
    findings = verify_changed(source, suffix, lambda records: changed(records, index, **values))
    assert findings == [(Check.OUTCOMES, index, None, message, 1) for message in messages]


@BOTH
@pytest.mark.parametrize(
    ("index", "responses", "message"),
    [
        (4, None, "neither responses nor error"),
        (4, [], "neither responses nor error"),
        (4, ["a", None], "neither responses nor error"),
        (3, ["a", "b"], "both responses and error: oom"),
        (3, [], "both responses and error: oom"),
    ],
)
def test_row_of_several_answers_with_a_wrong_outcome_is_found(
    source: Path, suffix: str, index: int, responses: object, message: str
) -> None:
    findings = verify_changed(
        source, suffix, lambda records: changed(records, index, responses=responses), several=True
    )
    assert findings == [(Check.OUTCOMES, index, None, message, 1)]


@BOTH
def test_many_rows_with_one_fault_are_one_finding(source: Path, suffix: str) -> None:
    def change(records: Records) -> Records:
        return [(row, result | {"response": None}) if row.index >= 60 else (row, result) for row, result in records]

    failed = sum(
        result(row)["error_code"] is not None for row in open_source([str(source)]).rows([]) if row.index >= 60
    )
    assert verify_changed(source, suffix, change) == [
        (Check.OUTCOMES, 60, None, "neither response nor error", 40 - failed)
    ]


@BOTH
def test_batches_are_small_where_rows_are_large(source: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_parquet, "_BATCH_BYTES", 1000)
    monkeypatch.setattr(verify_jsonl, "_BATCH_BYTES", 1000)
    findings = verify_changed(source, suffix, lambda records: changed(records, 77, _row=8, response=None))
    assert findings == [
        (Check.ROWS, 77, None, "_row is 8, expected 77", 1),
        (Check.OUTCOMES, 77, None, "neither response nor error", 1),
    ]


def test_parquet_that_another_run_wrote_is_found(source: Path) -> None:
    path = source.with_name("out.parquet")
    write_output(path, source, run_id="abc")
    digest = FileRecord(path.stat().st_size, pq.read_metadata(path).metadata[b"infer.sha256"].decode())
    expected = write_output(source.with_name("mine.parquet"), source)
    report = verify_output(path, expected=ExpectedOutput(expected.record, (digest,)))
    assert found(report) == [
        (Check.RECORD, None, None,
         "written by run abc with fingerprint ffffffffffffffff, expected run with fingerprint ffffffffffffffff", 1)
    ]  # fmt: skip
    (finding,) = verify_output(path, expected=expected).findings
    assert (finding.check, finding.message[:47]) == (Check.DIGEST, "the file carries another digest than the run ha")


def test_directory_of_parts_is_good(source: Path) -> None:
    path = source.with_name("out")
    expected = write_output(path, source, num_parts=4)
    (path / "_infer").mkdir()
    report = verify_output(path, source=open_source([str(source)]), expected=expected)
    assert (found(report), report.num_files, report.num_rows) == ([], 4, 100)
    assert report.checks == tuple(Check)
    assert found(verify_output(path)) == []


def test_directory_with_something_missing_or_added_is_found(source: Path) -> None:
    path = source.with_name("out")
    expected = write_output(path, source, num_parts=4)

    def first_after(change: Callable[[Path], object]) -> Finding:
        copy = path.with_name("copy")
        shutil.copytree(path, copy)
        change(copy)
        without_state, with_state = verify_output(copy).findings, verify_output(copy, expected=expected).findings
        shutil.rmtree(copy)
        assert with_state
        return without_state[0]

    def message_after(change: Callable[[Path], object]) -> str:
        return str(first_after(change)).removeprefix(str(path.with_name("copy")))

    def part(number: int) -> str:
        return f"part-{number:05}.parquet"

    assert message_after(lambda copy: (copy / "_SUCCESS").unlink()) == ": there is no _SUCCESS: the run has not ended"
    assert (
        message_after(lambda copy: (copy / part(1)).unlink())
        == "/part-00002.parquet: found instead of part-00001.parquet"
    )
    assert message_after(lambda copy: (copy / part(3)).unlink()) == ": 100 rows were promised, found 75"
    assert message_after(lambda copy: (copy / "x.parquet").touch()) == "/x.parquet: this is no part of the output"
    assert message_after(lambda copy: (copy / "part-0004").mkdir()) == "/part-0004: this is no part of the output"
    doubled = first_after(lambda copy: shutil.copy(copy / part(3), copy / part(4)))
    assert (doubled.check, doubled.row, doubled.message) == (Check.ROWS, 100, "_row is 75, expected 100")
    swapped = first_after(lambda copy: shutil.copy(copy / part(3), copy / part(2)))
    assert (swapped.check, swapped.row, swapped.message) == (Check.ROWS, 50, "_row is 75, expected 50")


def test_part_of_another_run_is_found(source: Path) -> None:
    write_output(source.with_name("out"), source, num_parts=2)
    write_output(source.with_name("other"), source, num_parts=2, run_id="other")
    shutil.copy(source.with_name("other") / "part-00001.parquet", source.with_name("out"))
    (finding,) = verify_output(source.with_name("out")).findings
    assert (finding.check, finding.file.name) == (Check.RECORD, "part-00001.parquet")


def test_damaged_part_is_the_only_finding(source: Path) -> None:
    path = source.with_name("out")
    write_output(path, source, num_parts=3)
    damaged = bytearray((path / "part-00001.parquet").read_bytes())
    damaged[100] ^= 1
    (path / "part-00001.parquet").write_bytes(damaged)
    report = verify_output(path, source=open_source([str(source)]))
    (finding,) = report.findings
    assert (finding.check, finding.file.name) == (Check.DIGEST, "part-00001.parquet")
    # Whose numbers the last part should have cannot be told.
    assert set(report.unchecked) == {Check.RECORD, Check.PAGES, Check.COLUMNS, Check.ROWS, Check.OUTCOMES, Check.INPUT}


def test_file_that_is_not_there_or_no_output_by_its_name_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    (tmp_path / "empty").mkdir()
    for name, message in [
        ("none.parquet", "no such output: "),
        ("a.csv", "no output of infer has such a name: "),
        ("empty", "no output of infer in directory: "),
    ]:
        with pytest.raises(InputError) as caught:
            verify_output(tmp_path / name)
        assert str(caught.value) == f"{message}{tmp_path / name}"


def test_report_raises_the_first_finding(source: Path) -> None:
    path = source.with_name("out.parquet")
    write_output(path, source, change=lambda records: changed(records, 4, response=None, _row=3))
    with pytest.raises(VerificationError) as caught:
        verify_output(path).check()
    assert str(caught.value) == (
        f"the output is not as it was written: {path}: row 4: _row is 3, expected 4 (findings beside this one: 1)"
    )
    assert caught.value.hint == HINTS[Check.ROWS]


def test_every_check_has_a_hint() -> None:
    assert list(HINTS) == list(Check)
    assert np.unique(list(HINTS.values())).size == len(Check)


@BOTH
def test_file_can_be_read_back_before_it_has_its_name(source: Path, suffix: str) -> None:
    path = source.with_name("out" + suffix)
    expected = write_output(path, source, change=lambda records: changed(records, 4, response=None))
    temporary = path.rename(path.with_name(".out-1234.tmp"))
    verification = Verification(expected.record)
    file_format = FileFormat.PARQUET if suffix == ".parquet" else FileFormat.JSONL
    verify_file(temporary, expected.files[0], verification, file_format)
    verification.end_rows(path)
    (finding,) = verification.findings.all()
    assert (finding.check, finding.row, verification.num_rows) == (Check.OUTCOMES, 4, 100)
    with pytest.raises(VerificationError, match=r"row 4: neither response nor error$"):
        raise_findings(verification.findings.all())
