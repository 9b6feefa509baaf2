"""What can be wrong with the lines of an output, whether or not its digest is known."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import orjson
import pytest
from outputs import found, write_input, write_output

from infer.io.finding import Check
from infer.io.journal import FileRecord
from infer.io.verify import ExpectedOutput, verify_output

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from infer.io.verify import VerifyReport

COLUMNS = (
    "text, n, tags, response, finish_reason, prompt_tokens, completion_tokens, cached_tokens, error_code, error, _row"
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


@pytest.fixture
def expected(path: Path) -> ExpectedOutput:
    """Of an output that has been written to `path`, of ten rows."""
    return write_output(path, write_input(path.with_name("in.jsonl"), 10))


def change_line(path: Path, number: int, change: Callable[[bytes], bytes]) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    assert change(lines[number]) != lines[number]
    lines[number] = change(lines[number])
    path.write_bytes(b"".join(lines))


def verify_resealed(path: Path, expected: ExpectedOutput) -> VerifyReport:
    """As if the run itself had written what is there now."""
    data = path.read_bytes()
    digest = FileRecord(len(data), hashlib.sha256(data).hexdigest())
    return verify_output(path, expected=ExpectedOutput(expected.record, (digest,)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda line: b"[1]\n", "expected an object, found a list"),
        (lambda line: b"\n", "invalid JSON at column 1: "),
        (lambda line: b"\xef\xbb\xbf" + line, "invalid JSON at column 1: "),
        (lambda line: line.replace(b"answer", b"\xffnswer"), "not valid UTF-8 at byte "),
        (lambda line: b'{"n":' + b"[" * 1000 + b"]" * 1000 + b"}\n", ""),
        (lambda line: b'{"n":1' + b"0" * 5000 + b"}\n", ""),
    ],
)
def test_line_that_is_no_object_is_found_and_stands_for_a_row(
    path: Path, expected: ExpectedOutput, change: Callable[[bytes], bytes], message: str
) -> None:
    change_line(path, 4, change)
    for report in (verify_resealed(path, expected), verify_output(path)):
        finding = report.findings[0]
        assert (finding.check, finding.row, report.num_rows) == (Check.PAGES, 4, 10)
        assert finding.message.startswith(message)
        assert len(report.findings) == 1


def test_many_such_lines_are_one_finding(path: Path, expected: ExpectedOutput) -> None:
    change_line(path, 4, lambda line: b"{\n")
    change_line(path, 6, lambda line: b"x\n")
    (finding,) = verify_resealed(path, expected).findings
    assert (finding.row, finding.num_rows) == (4, 2)
    assert str(finding).endswith(" (and 1 more)")


def test_file_that_was_cut_off_is_found(path: Path, expected: ExpectedOutput) -> None:
    path.write_bytes(path.read_bytes()[:-1])
    for report in (verify_resealed(path, expected), verify_output(path)):
        assert found(report) == [(Check.PAGES, 9, None, "the line has no end: the file was cut off", 1)]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"cached_tokens"', b'"cached"'),
        (b'"error":null,', b""),
        (b'"error":null,', b'"error":null,"more":1,'),
        (b'"error_code":null,"error":null', b'"error":null,"error_code":null'),
    ],
)
def test_line_with_other_columns_is_found(path: Path, expected: ExpectedOutput, old: bytes, new: bytes) -> None:
    change_line(path, 4, lambda line: line.replace(old, new))
    names = ", ".join(orjson.loads(path.read_bytes().splitlines()[4]))
    message = f"the columns are {names}, expected {COLUMNS}"
    for report in (verify_resealed(path, expected), verify_output(path)):
        assert found(report) == [(Check.COLUMNS, 4, None, message, 1)]


@pytest.mark.parametrize(
    ("old", "new", "column", "type_"),
    [
        (b'"response":"answer 4"', b'"response":4', "response", "string"),
        (b'"finish_reason":"stop"', b'"finish_reason":["stop"]', "finish_reason", "string"),
        (b'"prompt_tokens":7', b'"prompt_tokens":7.5', "prompt_tokens", "int32"),
        (b'"prompt_tokens":7', b'"prompt_tokens":2147483648', "prompt_tokens", "int32"),
        (b'"prompt_tokens":7', b'"prompt_tokens":-2147483649', "prompt_tokens", "int32"),
        (b'"cached_tokens":0', b'"cached_tokens":false', "cached_tokens", "int32"),
        (b'"_row":4', b'"_row":"4"', "_row", "int64"),
        (b'"_row":4', b'"_row":9223372036854775808', "_row", "int64"),
        (b'"error":null', b'"error":{}', "error", "string"),
    ],
)
def test_value_of_another_type_is_found(
    path: Path, expected: ExpectedOutput, old: bytes, new: bytes, column: str, type_: str
) -> None:
    change_line(path, 4, lambda line: line.replace(old, new))
    for report in (verify_resealed(path, expected), verify_output(path)):
        assert (Check.COLUMNS, 4, column, f"the value is no {type_}", 1) in found(report)


def test_number_at_the_end_of_its_range_is_good(path: Path, expected: ExpectedOutput) -> None:
    change_line(path, 4, lambda line: line.replace(b'"prompt_tokens":7', b'"prompt_tokens":2147483647'))
    assert found(verify_resealed(path, expected)) == []


@pytest.mark.parametrize("several", [True, False])
def test_columns_are_known_by_their_names_where_nothing_says_them(path: Path, several: bool) -> None:
    source = write_input(path.with_name("in.jsonl"), 10)
    write_output(path, source, several=several, prefix="r_")
    assert found(verify_output(path)) == []
    name = "responses" if several else "response"
    change_line(path, 4, lambda line: line.replace(b'"r_error":null', b'"r_error":"x"'))
    change_line(path, 5, lambda line: orjson.dumps(orjson.loads(line) | {f"r_{name}": None}) + b"\n")
    assert found(verify_output(path)) == [
        (Check.OUTCOMES, 5, None, f"neither {name} nor error", 1),
        (Check.OUTCOMES, 4, None, "an error without error_code", 1),
    ]


def test_lines_of_something_else_are_found(path: Path) -> None:
    path.write_bytes(b'{"a":1,"_row":0,"error":null}\n')
    report = verify_output(path)
    assert found(report) == [(Check.COLUMNS, None, None, "no result columns among a, _row, error", 1)]
    assert Check.ROWS in report.unchecked


def test_digest_that_is_wrong_ends_it(path: Path, expected: ExpectedOutput) -> None:
    change_line(path, 4, lambda line: line.replace(b"answer 4", b"answer 5"))
    (finding,) = verify_output(path, expected=expected).findings
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert (finding.check, finding.message) == (
        Check.DIGEST,
        f"the bytes of the file have changed: their sha256 is {digest}, not {expected.files[0].sha256}",
    )
    path.write_bytes(path.read_bytes() + b"\n")
    size = expected.files[0].num_bytes
    (finding,) = verify_output(path, expected=expected).findings
    assert finding.message == f"{size} bytes were written, found {size + 1}"
