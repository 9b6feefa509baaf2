"""An output of one file.

    out.parquet            nothing, or the old one         the complete new one
    .out-1f2e3d4c.parquet  grows, is synced, read back  ---^ renamed

Whatever happens in between, SIGKILL and a power cut included, leaves the left column. Readers of data sets pass over
names that begin with a dot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.io import storage
from infer.io.aside import MAX_ASIDE_NAME, check_inputs, check_name
from infer.io.errors import OutputExistsError, OutputNameError
from infer.io.journal import FileRecord
from infer.io.jsonl_writer import JsonlWriter
from infer.io.parquet_writer import ParquetWriter
from infer.io.paths import FileFormat
from infer.io.refusals import refusals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from infer.io.row import Row
    from infer.io.schema import OutputSchema


class OutputFile:
    """Parquet or JSONL, by its name.

    Raises:
        OutputNameError: the name stands for neither.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer_class = _writer_class(path)

    def check_inputs(self, inputs: Iterable[str | Path]) -> None:
        check_inputs(self.path, inputs)

    def check(self, *, overwrite: bool) -> None:
        check_name(self.path, overwrite=overwrite)

    def aside(self, run_id: str) -> Path:
        return self.path.with_name(f".{self.path.stem[:MAX_ASIDE_NAME]}-{run_id}{self.path.suffix}")

    def write(
        self,
        aside: Path,
        batches: Iterator[tuple[Sequence[Row], pa.RecordBatch]],
        schema: OutputSchema,
        metadata: Mapping[str, str],
    ) -> list[FileRecord]:
        def fill(writer: ParquetWriter | JsonlWriter, _: storage.NewFile) -> None:
            for rows, results in batches:
                writer.write(rows, results)

        return [write_file(aside, self._writer_class, schema, metadata, fill)]

    def publish(self, aside: Path, *, overwrite: bool) -> None:
        try:
            storage.rename(aside, self.path, replace=overwrite)
        except FileExistsError as error:
            raise OutputExistsError(*appeared(self.path)) from error

    def discard(self, run_id: str) -> None:
        storage.remove(self.aside(run_id))

    def files(self) -> list[Path]:
        with refusals("read", self.path):
            return [self.path] if self.path.is_file() else []


def write_file(
    path: Path,
    writer_class: type[ParquetWriter] | type[JsonlWriter],
    schema: OutputSchema,
    metadata: Mapping[str, str],
    fill: Callable[[ParquetWriter | JsonlWriter, storage.NewFile], None],
) -> FileRecord:
    """A file of the rows that `fill` hands to its writer, when every byte has reached the disk; else nothing of it."""
    file = storage.NewFile(path)
    try:
        writer = writer_class(file, schema, metadata)
        fill(writer, file)
        writer.close()
        file.commit()
    except BaseException:
        file.discard()
        raise
    assert writer.sha256 is not None
    return FileRecord(file.tell(), writer.sha256)


def appeared(path: Path) -> tuple[str, str]:
    """What to say where the name was taken while the run went on, and what to do."""
    return (
        f"the output has appeared while the run went on: {path}",
        "all rows are saved: move it away, or add --overwrite, and run the same command again",
    )


def _writer_class(path: Path) -> type[ParquetWriter] | type[JsonlWriter]:
    if path.suffix.lower() in FileFormat.PARQUET.value:
        return ParquetWriter
    if path.suffix.lower() in FileFormat.JSONL.value:
        return JsonlWriter
    suffixes = " ".join(suffix for known in FileFormat for suffix in known.value)
    raise OutputNameError(
        f"unknown output format: {path.name}", f"formats: {suffixes}; or a directory, whose name ends in /"
    )
