"""From what was asked for (files, directories, globs, `-`) to the files to read, in order."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from infer.io.errors import InputError
from infer.io.near_match import near_match_hint
from infer.io.readable import reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

STANDARD_INPUT = "-"
STATE_SUFFIX = ".infer"
"""Of the directory with what is saved of a run, which lies beside its output."""

_NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_MAX_SIBLINGS = 10_000


class FileFormat(Enum):
    """A format and the suffixes it is known by."""

    PARQUET = (".parquet",)
    JSONL = (".jsonl", ".ndjson", ".json-lines")

    @property
    def compressions(self) -> tuple[str, ...]:
        """Suffixes that may follow those of the format; Parquet compresses inside."""
        return ("", ".gz", ".zst") if self is FileFormat.JSONL else ("",)


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of a data set. `partition` holds what its directories say: `year=2024/` gives `{"year": "2024"}`."""

    path: Path
    format: FileFormat
    partition: Mapping[str, str | None] = field(default_factory=dict)


def file_format(path: Path) -> FileFormat | None:
    """The format that the name of `path` stands for."""
    name = path.name.lower()
    for known in FileFormat:
        suffixes = tuple(suffix + compression for suffix in known.value for compression in known.compressions)
        if name.endswith(suffixes):
            return known
    return None


def input_files(paths: Sequence[str]) -> list[InputFile]:
    """The files behind `paths`, in the order given; those of a directory or glob by name.

    Raises:
        InputError: a path that is not there, holds nothing to read or is of an unknown format.
    """
    files = []
    for path in paths:
        with reading(path):
            files += _expand(path)
    formats = {file.format: file for file in files}
    if len(formats) > 1:
        one, other = (str(file.path) for file in formats.values())
        raise InputError(f"the inputs are of more than one format: {one} and {other}", "convert one of them")
    if sum(file.path == Path(STANDARD_INPUT) for file in files) > 1:
        raise InputError(f"standard input can be read only once: {' '.join(paths)}")
    return files


def _expand(path: str) -> list[InputFile]:
    if path == STANDARD_INPUT:
        return [InputFile(Path(path), FileFormat.JSONL)]
    # A file whose own name looks like a pattern is taken literally.
    if Path(path).is_dir():
        return _directory_files(Path(path))
    if Path(path).exists() or not glob.has_magic(path):
        return [_input_file(Path(path))]
    # `d/**` goes around a link to a directory above as often as the system lets it.
    matches = _once(Path(match) for match in glob.glob(path, recursive=True))  # noqa: PTH207
    root = _root_of_pattern(path)
    files = [
        file
        for match in sorted(matches)
        if not _is_hidden(match.relative_to(root))
        for file in (_directory_files(match, root) if match.is_dir() else [_input_file(match, root)])
    ]
    if not files:
        raise InputError(f"no file matches: {path}")
    # It also finds a directory and then what is in it.
    by_path = {file.path: file for file in files}
    return [by_path[path] for path in sorted(_once(by_path))]


def _once(paths: Iterable[Path]) -> list[Path]:
    """Of the names that lead to one entry of a directory the shortest."""
    found: dict[tuple[Path, str], Path] = {}
    for path in sorted(paths, key=lambda path: (len(path.parts), path)):
        found.setdefault((path.parent.resolve(), path.name), path)
    return list(found.values())


def _directory_files(directory: Path, root: Path | None = None) -> list[InputFile]:
    root = root or directory
    found = [path for path in _walk(directory) if not _is_hidden(path.relative_to(root))]
    # One that cannot be read stops the run: without it, rows would be missing.
    files = [_input_file(path, root) for path in sorted(found) if file_format(path) is not None]
    if not files:
        raise InputError(f"no input files in directory: {directory}", _suffix_hint())
    return files


def _walk(directory: Path) -> Iterator[Path]:
    for parent, directories, names in os.walk(directory, onerror=_raise):
        directories[:] = [name for name in directories if not _is_hidden(Path(name))]
        yield from (Path(parent, name) for name in names)


def _raise(error: OSError) -> None:
    raise InputError(f"cannot read {error.filename}: {(error.strerror or str(error)).lower()}") from error


def _input_file(path: Path, root: Path | None = None) -> InputFile:
    found = file_format(path)
    if not path.exists():
        if path.is_symlink():
            raise InputError(f"a link to a file that is not there: {path}")
        raise InputError(f"no such file: {path}", _sibling_hint(path))
    if not path.is_file():
        raise InputError(f"no regular file: {path}", "JSONL from a pipe is read from standard input, named -")
    if found is None:
        raise InputError(f"unknown input format: {path}", _suffix_hint())
    return InputFile(path, found, dict(_partition_keys(path.relative_to(root).parent)) if root else {})


def _partition_keys(directory: Path) -> Iterator[tuple[str, str | None]]:
    for part in directory.parts:
        key, equals, value = part.partition("=")
        if equals:
            yield unquote(key), None if value == _NULL_PARTITION else unquote(value)


def _root_of_pattern(pattern: str) -> Path:
    parts = Path(pattern).parts
    first = next(position for position, part in enumerate(parts) if glob.has_magic(part))
    return Path(*parts[:first])


def _is_hidden(path: Path) -> bool:
    # What every reader of data sets leaves alone: `_SUCCESS`, `.crc`, unfinished files.
    # And the state of a run whose output is to lie among its inputs.
    return any(part.startswith(("_", ".")) or part.endswith(STATE_SUFFIX) for part in path.parts)


def _suffix_hint() -> str:
    parquet, jsonl = (" ".join(known.value) for known in FileFormat)
    return f"formats: {parquet}, and {jsonl} also with .gz or .zst"


def _sibling_hint(path: Path) -> str:
    if not path.parent.is_dir():
        return ""
    return near_match_hint(path.name, (sibling.name for sibling in islice(path.parent.iterdir(), _MAX_SIBLINGS)))
