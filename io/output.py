"""Where the rows of a run go: the name that it publishes under."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from infer.io.aside import resolved
from infer.io.errors import OutputNameError
from infer.io.output_directory import OutputDirectory
from infer.io.output_file import OutputFile
from infer.io.paths import STATE_SUFFIX
from infer.io.refusals import refusals

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa

    from infer.io.journal import FileRecord
    from infer.io.row import Row
    from infer.io.schema import OutputSchema


class Output(Protocol):
    """A file or a directory, which is written aside and takes its name when it is complete."""

    path: Path

    def check_inputs(self, inputs: Iterable[str | Path]) -> None:
        """Returns if the output is none of the inputs.

        Raises:
            OutputExistsError: it is one of them, by whatever path.
        """

    def check(self, *, overwrite: bool) -> None:
        """Returns if the name may be written, as far as can be told without writing.

        Raises:
            OutputExistsError: it is taken and `overwrite` is not set, or by what no run has written.
        """

    def aside(self, run_id: str) -> Path:
        """Where it grows, until it is complete."""

    def write(
        self,
        aside: Path,
        batches: Iterator[tuple[Sequence[Row], pa.RecordBatch]],
        schema: OutputSchema,
        metadata: Mapping[str, str],
    ) -> list[FileRecord]:
        """Write all of it. Returns what it consists of when every byte has reached the disk.

        Raises:
            StorageError: the file system refused.
        """

    def publish(self, aside: Path, *, overwrite: bool) -> None:
        """Give what is complete its name.

        Raises:
            OutputExistsError: the name was taken meanwhile.
            StorageError: the file system refused.
        """

    def discard(self, run_id: str) -> None:
        """Remove what was left aside; what was moved there and has no successor is put back."""

    def files(self) -> list[Path]:
        """What is there under the name; nothing where it is free."""


def open_output(path: str | Path) -> Output:
    """A file, Parquet or JSONL by its name; a directory of parts where the name ends in a slash or is one.

    Raises:
        OutputNameError: the name stands for no output format.
        StorageError: a name that cannot be.
    """
    target = resolved(path)
    if target.name.endswith(STATE_SUFFIX):
        raise OutputNameError(
            f"a name in {STATE_SUFFIX} is that of what is saved of a run: {target.name}", "choose another name"
        )
    with refusals("write", path):
        is_directory = str(path).endswith("/") or target.is_dir()
    return OutputDirectory(target) if is_directory else OutputFile(target)
