"""An output of several files: a directory of Parquet parts that appears as a whole.

    out/                     nothing, or the old one            the complete new one
    .out-1f2e3d4c/           its parts grow, then `_SUCCESS` ---^ renamed
    .out-1f2e3d4c-old/                the old one, until then

Where an old directory is replaced, there is nothing under the name for the instant between two renames. If the run ends
just there, the next one puts the old one back first.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from infer.io import storage
from infer.io.aside import MAX_ASIDE_NAME
from infer.io.errors import OutputExistsError
from infer.io.output_file import appeared, write_file
from infer.io.parquet_writer import ParquetWriter
from infer.io.paths import STANDARD_INPUT, input_files
from infer.io.refusals import refusals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from infer.io.journal import FileRecord
    from infer.io.jsonl_writer import JsonlWriter
    from infer.io.row import Row
    from infer.io.schema import OutputSchema

SUCCESS = "_SUCCESS"
"""Its last file, empty, as other tools have it."""

MAX_PART_ROWS = 1 << 20
MAX_PART_BYTES = 1 << 30
PART = re.compile(r"part-\d{5,}\.parquet")
"""The names of the others."""


class OutputDirectory:
    """Parts of bounded size, `part-00000.parquet` and on."""

    def __init__(self, path: Path, max_part_rows: int = MAX_PART_ROWS) -> None:
        self.path = path
        self._max_part_rows = max_part_rows

    def check_inputs(self, inputs: Iterable[str | Path]) -> None:
        names = [str(name) for name in inputs if str(name) != STANDARD_INPUT]
        if any(file.path.resolve().is_relative_to(self.path) for file in input_files(names)):
            raise OutputExistsError(f"the output holds one of the inputs: {self.path}", "choose another directory")

    def check(self, *, overwrite: bool) -> None:
        with refusals("write", self.path):
            if not self.path.is_dir():
                if self.path.exists():
                    raise OutputExistsError(f"the output is there and no directory: {self.path}", "choose another name")
                return
            if self.path.is_mount():
                raise OutputExistsError(f"the output is a mount point: {self.path}", "choose a directory below it")
            names = storage.list_names(self.path)
        if names and not overwrite:
            raise OutputExistsError(f"the output exists: {self.path}", "replace it with --overwrite")
        strangers = [name for name in names if name != SUCCESS and not PART.fullmatch(name)]
        if strangers:
            raise OutputExistsError(
                f"the output holds what no run has written: {self.path / strangers[0]}",
                "only a directory of parts is replaced: choose another name",
            )

    def aside(self, run_id: str) -> Path:
        return self.path.with_name(f".{self.path.name[:MAX_ASIDE_NAME]}-{run_id}")

    def write(
        self,
        aside: Path,
        batches: Iterator[tuple[Sequence[Row], pa.RecordBatch]],
        schema: OutputSchema,
        metadata: Mapping[str, str],
    ) -> list[FileRecord]:
        storage.make_directory(aside)
        files: list[FileRecord] = []
        batch = next(batches, None)

        def fill(writer: ParquetWriter | JsonlWriter, file: storage.NewFile) -> None:
            nonlocal batch
            num_rows = 0
            while batch is not None and num_rows < self._max_part_rows and file.tell() < MAX_PART_BYTES:
                writer.write(*batch)
                num_rows += len(batch[0])
                batch = next(batches, None)

        while batch is not None or not files:
            part = aside / f"part-{len(files):05}.parquet"
            files.append(write_file(part, ParquetWriter, schema, metadata, fill))
        storage.NewFile(aside / SUCCESS).commit()
        storage.sync_directory(aside)
        return files

    def publish(self, aside: Path, *, overwrite: bool) -> None:
        old = _old(aside)
        if overwrite and self.path.exists():
            # Again: the old one goes with all that is in it, and the run may have taken days.
            self.check(overwrite=True)
            storage.rename_directory(self.path, old)
        try:
            storage.rename_directory(aside, self.path)
        except FileExistsError as error:
            raise OutputExistsError(*appeared(self.path)) from error
        storage.remove_directory(old)
        # Or a power cut brings it back when nobody looks for it any more.
        storage.sync_directory(self.path.parent)

    def discard(self, run_id: str) -> None:
        aside = self.aside(run_id)
        storage.remove_directory(aside)
        old = _old(aside)
        with refusals("remove", old):
            was_replaced, is_old_there = self.path.exists(), old.exists()
        if was_replaced:
            storage.remove_directory(old)
        elif is_old_there:
            # It ended between the two renames.
            storage.rename_directory(old, self.path)

    def files(self) -> list[Path]:
        with refusals("read", self.path):
            if not (self.path / SUCCESS).is_file():
                return []
        return [self.path / name for name in storage.list_names(self.path) if PART.fullmatch(name)]


def _old(aside: Path) -> Path:
    """Where the directory that is replaced waits for its successor."""
    return aside.with_name(f"{aside.name}-old")
