"""Verifies a JSONL file of an output: its digest where that is known, then every line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from infer.io.finding import Check, Finding
from infer.io.json_value import InvalidLineError, parse_object
from infer.io.output_record import OutputColumns
from infer.io.row_rules import ERROR, ERROR_CODE, FINISH_REASON, NEEDED, NOT_ANSWERS
from infer.io.seal import file_digest
from infer.io.segment import ROW

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from infer.io.verification import Verification

_BATCH_ROWS = 512
_BATCH_BYTES = 16 << 20
# A kept value may be as long as a line of the input, and the answer stands beside it.
_MAX_LINE_BYTES = 1 << 30
_INTEGER_LIMITS = {"int32": 2**31, "int64": 2**63}
_OTHER_TYPES = {"string": str, "float": float, "double": float, "list": list, "map": list, "struct": dict}
_COMPARED = {FINISH_REASON: pa.string(), ERROR_CODE: pa.string(), ERROR: pa.string(), ROW: pa.int64()}
# Types of the columns that every run has, for where nothing says which run it was.
_USUAL_TYPES = {
    "response": "string",
    "responses": "list<string>",
    **dict.fromkeys(NOT_ANSWERS, "int32"),
    **{name: str(type_) for name, type_ in _COMPARED.items()},
}


def verify_jsonl(path: Path, sha256: str | None, verification: Verification) -> None:
    """Look at one file. What is wrong goes to `verification`; a wrong digest ends it, before anything is parsed.

    Raises:
        OSError: the file cannot be read at all.
        InputError: the input cannot.
    """
    if sha256 is None:
        verification.unchecked[Check.DIGEST] = "JSONL carries none, and no state of the run is there"
    else:
        with path.open("rb", buffering=0) as file:
            found = file_digest(file)
        if found != sha256:
            message = f"the bytes of the file have changed: their sha256 is {found}, not {sha256}"
            verification.fail(Check.DIGEST, message, path)
    if verification.record is None:
        verification.unchecked[Check.RECORD] = "JSONL carries none, and no state of the run is there"
    if verification.is_broken:
        return
    with path.open("rb", buffering=1 << 20) as stream:
        _Lines(path, verification).verify(iter(lambda: stream.readline(_MAX_LINE_BYTES), b""))


class _Lines:
    """The lines of one file, looked at one by one, and in batches where that is much faster."""

    def __init__(self, path: Path, verification: Verification) -> None:
        self._path = path
        self._verification = verification
        self._names: list[str] = []
        self._has_type: dict[str, Callable[[object], bool]] = {}
        """By result column."""
        self._results: list[dict[str, object]] = []
        self._num_bytes = 0

    def verify(self, lines: Iterable[bytes]) -> None:
        verification = self._verification
        if verification.record is not None:
            self._begin_rows(verification.record.columns)
        for line in lines:
            try:
                values = _parsed(line)
            except ValueError as error:
                # It stands for a row. Those before it have their numbers from the batch.
                self._flush()
                self._add(Check.PAGES, str(error), kind="line")
                if verification.match is not None:
                    verification.match.skip()
                verification.num_rows += 1
                continue
            if verification.columns is None:
                columns = _guessed_columns(list(values))
                if columns is None:
                    verification.fail(Check.COLUMNS, f"no result columns among {', '.join(values)}", self._path)
                    return
                self._begin_rows(columns)
            assert verification.columns is not None
            self._look_at(values, verification.columns)
            self._num_bytes += len(line)
            if len(self._results) == _BATCH_ROWS or self._num_bytes >= _BATCH_BYTES:
                self._flush()
        self._flush()

    def _begin_rows(self, columns: OutputColumns) -> None:
        self._verification.begin_rows(columns, self._path)
        # Once: every row is held against them.
        self._names = columns.names
        self._has_type = {name: _type_check(type_) for name, type_ in columns.results.items()}

    def _look_at(self, values: dict[str, object], columns: OutputColumns) -> None:
        if list(values) != self._names:
            message = f"the columns are {', '.join(values)}, expected {', '.join(self._names)}"
            self._add(Check.COLUMNS, message, kind="names")
        results = {name: values.get(columns.prefix + name) for name in columns.results}
        for name, value in results.items():
            if value is not None and not self._has_type[name](value):
                message = f"the value is no {columns.results[name]}"
                self._add(Check.COLUMNS, message, column=columns.prefix + name, kind="type")
                results[name] = None
        match = self._verification.match
        for name in () if match is None else match.differing_line(values):
            self._verification.add_differences(name, [len(self._results)], self._path)
        self._results.append(results)

    def _flush(self) -> None:
        results, self._results, self._num_bytes = self._results, [], 0
        if results:
            columns = {name: _column(name, [each[name] for each in results]) for name in results[0]}
            self._verification.add_rows(columns, self._path)

    def _add(self, check: Check, message: str, *, column: str | None = None, kind: str = "") -> None:
        row = self._verification.num_rows + len(self._results)
        self._verification.findings.add(Finding(check, message, self._path, row, column), kind)


def _parsed(line: bytes) -> dict[str, object]:
    if not line.endswith(b"\n"):
        raise InvalidLineError("the line has no end: the file was cut off")
    return parse_object(line)


def _guessed_columns(names: list[str]) -> OutputColumns | None:
    """The columns of an output whose first line has `names`, by what every run writes; None where it is not there."""
    for name in names:
        prefix = name.removesuffix(ROW)
        if prefix + ROW == name and all(prefix + needed in names for needed in NEEDED):
            break
    else:
        return None
    main = next((position for position, name in enumerate(names) if name.startswith(prefix + "response")), len(names))
    first = min(main, names.index(prefix + FINISH_REASON))
    results = [name.removeprefix(prefix) for name in names[first:]]
    return OutputColumns(tuple(names[:first]), {name: _USUAL_TYPES.get(name, "") for name in results}, prefix)


def _type_check(type_: str) -> Callable[[object], bool]:
    """Whether a value of JSON can have been written for a column of that type; of lists, whether it is one."""
    if type_ in _INTEGER_LIMITS:
        limit = _INTEGER_LIMITS[type_]
        return lambda value: type(value) is int and -limit <= value < limit
    expected = _OTHER_TYPES.get(type_.partition("<")[0], object)
    return lambda value: isinstance(value, expected)


def _column(name: str, values: Sequence[object]) -> pa.Array:
    """As an Arrow column, with no more of the values than the rules look at."""
    if name in _COMPARED:
        return pa.array(values, _COMPARED[name])
    if any(isinstance(value, list) for value in values):
        return pa.array([_filled(value) for value in values], pa.list_(pa.bool_()))
    return pa.array([None if value is None else True for value in values], pa.bool_())


def _filled(value: object) -> list[bool | None] | None:
    return [None if item is None else True for item in value] if isinstance(value, list) else None
