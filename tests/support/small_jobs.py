"""Jobs for the stand-in: their input, and whether what lies under the output's name is what it has to be."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from forked_runs import RunSpec

from infer.io.journal import read_journal
from infer.io.saved_run import SavedRun

if TYPE_CHECKING:
    from pathlib import Path

    from forked_runs import ForkedRuns

OUTPUTS = ("out.parquet", "out.jsonl", "out/")


@dataclass(frozen=True, slots=True)
class SmallJob:
    """Row 3 fails, the others answer with their text. Answers differ in length, so that they overtake each other."""

    output: str
    num_rows: int = 10
    has_old: bool = False
    """Whether something stands under the name before, to be replaced."""
    flags: tuple[str, ...] = ("--save-interval", "0")

    @property
    def argv(self) -> tuple[str, ...]:
        fixed = ("--seed", "0", "--max-tokens", "64", "--allow-errors", *["--overwrite"] * self.has_old)
        return ("run", "in.jsonl", "-o", self.output, *fixed, *self.flags)

    def text(self, row: int) -> str:
        return "" if row == 3 else f"row {row}" + " on" * (row * 7 % 5)

    def make(self, directory: Path) -> Path:
        """The input, and the old output, in a directory that is made."""
        directory.mkdir()
        lines = [json.dumps({"id": row, "text": self.text(row)}) + "\n" for row in range(self.num_rows)]
        (directory / "in.jsonl").write_text("".join(lines))
        if self.has_old:
            for name, content in self._old().items():
                path = directory / name
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(content)
        return directory

    def holds(self, directory: Path) -> str:
        """What is under the output's name: nothing, old, new; all else is something that must not be."""
        found = self.files(directory)
        if not found and not (directory / self.output).exists():
            return "nothing"
        if self.has_old and found == self._old():
            return "old"
        try:
            rows = self.rows(directory)
        except (pa.ArrowException, ValueError, OSError) as error:
            return f"no output: {error!r:.200} in {sorted(found)}"
        return "new" if rows == self.expected() else f"other rows: {rows!r:.300}"

    def files(self, directory: Path) -> dict[str, bytes]:
        """What is under the output's name, by path."""
        path = directory / self.output
        paths = [each for each in path.iterdir() if each.is_file()] if path.is_dir() else [path]
        return {str(each.relative_to(directory)): each.read_bytes() for each in paths if each.exists()}

    def left_over(self, directory: Path) -> list[str]:
        """What should not be there any more after the end."""
        name = self.output.rstrip("/")
        expected = {"in.jsonl", name, f"{name}.infer"}
        found = sorted(each.name for each in directory.iterdir() if each.name not in expected)
        state = directory / f"{name}.infer"
        return found + sorted({each.name for each in state.iterdir()} - {"lock", "run.json", "journal"})

    def expected(self) -> list[dict[str, Any]]:
        rows = []
        for row in range(self.num_rows):
            text = self.text(row)
            answer = (text, None, "stop") if text else (None, "empty_prompt", "error")
            rows.append({"id": row, "text": text, "_row": row} | dict(zip(_COMPARED, answer, strict=True)))
        return rows

    def may_hold(self) -> set[str]:
        """What may be under the output's name at any instant. A directory is replaced by two renames."""
        return (
            {"new", "old"} | ({"nothing"} if self.output.endswith("/") else set())
            if self.has_old
            else {"new", "nothing"}
        )

    def rows(self, directory: Path) -> list[dict[str, Any]]:
        """Of the output, as far as they are compared.

        Raises:
            ArrowException, ValueError, OSError: it is none.
        """
        path = directory / self.output
        if path.suffix == ".jsonl":
            records = [json.loads(line) for line in path.read_text().splitlines()]
        elif path.is_dir():
            parts = sorted(each for each in path.iterdir() if each.name != "_SUCCESS")
            names = [each.name for each in parts]
            if (
                names != [f"part-{number:05}.parquet" for number in range(len(parts))]
                or not (path / "_SUCCESS").exists()
            ):
                raise ValueError(f"other names: {names}")
            records = [row for part in parts for row in _read_parquet(part)]
        else:
            records = _read_parquet(path)
        names = ["id", "text", "_row", *_COMPARED]
        return [{name: record[name] for name in names} for record in records]

    def _old(self) -> dict[str, bytes]:
        if self.output.endswith("/"):
            return {f"{self.output}{name}": b"old " + name.encode() for name in ("part-00000.parquet", "_SUCCESS")}
        return {self.output: b"old"}


_COMPARED = ("response", "error_code", "finish_reason")


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        return pq.read_table(file, page_checksum_verification=True).to_pylist()


def saved_rows(directory: Path) -> set[int]:
    """Rows that a run in `directory` has saved and not published."""
    saved: set[int] = set()
    for state in directory.glob("*.infer"):
        if (state / "run.json").exists():
            names = SavedRun.of(read_journal(state / "journal")).segments
            saved.update(row for name in names for row in pq.read_table(state / name)["_row"].to_pylist())
    return saved


def verify(runs: ForkedRuns, job: SmallJob, directory: Path) -> str:
    """What `infer verify` finds: nothing where all is well."""
    result = runs.run(RunSpec(("verify", job.output, "--input", "in.jsonl"), directory))
    return "" if result.code == 0 else result.out + result.err
