"""What may be on a disk after the power was cut, given what was asked of it before.

    a file        its synced bytes, and any prefix of what was written since; or that, and zeros up to its size
    a directory   its synced names, and any subset of what happened to names since

Nothing but a sync of the file itself makes its bytes last, nothing but a sync of the directory makes a name last. That
is less than most file systems promise.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from random import Random

    from storage_trace import Operation

Tree = dict[str, bytes | None]
"""By relative path: what a file holds; None is a directory."""


@dataclass(eq=False)
class _File:
    synced: bytes = b""
    live: bytes = b""
    pending: list[bytes] = field(default_factory=list)
    """What it held after each change since the last sync."""

    def change(self, live: bytes) -> None:
        self.live = live
        self.pending.append(live)

    def sync(self) -> None:
        self.synced, self.pending = self.live, []


@dataclass(eq=False)
class _Directory:
    synced: dict[str, _Node] = field(default_factory=dict)
    live: dict[str, _Node] = field(default_factory=dict)
    pending: list[tuple[str | None, str | None, _Node | None]] = field(default_factory=list)
    """Since the last sync: a name that went, a name that came, and what it stands for."""

    def change(self, gone: str | None = None, come: str | None = None, node: _Node | None = None) -> None:
        self.pending.append((gone, come, node))
        _apply(self.live, (gone, come, node))

    def sync(self) -> None:
        self.synced, self.pending = dict(self.live), []


_Node = _File | _Directory


def _apply(names: dict[str, _Node], change: tuple[str | None, str | None, _Node | None]) -> None:
    gone, come, node = change
    if gone is not None:
        names.pop(gone, None)
    if come is not None:
        assert node is not None
        names[come] = node


class Disk:
    """Begins with what lies in `before`, all of it synced, and is told of operations on the same in `root`."""

    def __init__(self, before: Path, root: Path) -> None:
        self._root = root.resolve()
        self._top = _load(before)
        self._open: dict[int, _Node] = {}
        self._positions: dict[int, int | None] = {}
        """None is at the end."""

    def begin_process(self) -> None:
        """What was open is so no more."""
        self._open.clear()
        self._positions.clear()

    def do(self, operation: Operation) -> None:
        args, result = operation.args, operation.result
        match operation.name:
            case "open":
                self._open_file(args[0], args[1], result)
            case "close":
                self._open.pop(args[0], None)
            case "lseek":
                self._positions[args[0]] = result
            case "write":
                self._write(args[0], args[1], self._positions[args[0]])
            case "pwrite":
                position = self._positions[args[0]]
                self._write(args[0], args[1], args[2])
                self._positions[args[0]] = position
            case "ftruncate":
                file = self._file(args[0])
                file.change(file.live[: args[1]].ljust(args[1], b"\0"))
            case "fsync" | "fdatasync":
                self._open[args[0]].sync()
            case "rename" | "link":
                source, name = self._at(args[0])
                target, new_name = self._at(args[1])
                assert source is target, "names move within a directory only"
                target.change(name if operation.name == "rename" else None, new_name, source.live[name])
            case "mkdir":
                parent, name = self._at(args[0])
                parent.change(come=name, node=_Directory())
            case "unlink" | "rmdir":
                parent, name = self._at(args[0])
                parent.change(gone=name)

    def cuts(self, random: Random, num_random: int) -> Iterator[tuple[str, Tree]]:
        """What the power cut may leave now, with a word for each: the corners, and some in between."""
        for names in (0.0, 1.0):
            for data in ("none", "all", "zeros"):
                yield f"names {names:.0%}, data {data}", self._tree(random, names, data)
        for _ in range(num_random):
            yield "at random", self._tree(random, random.choice([0.3, 0.7, 1.0]), "random")

    def live(self) -> Tree:
        """What everybody sees while the power is on."""
        return dict(_walk(self._top, lambda directory: directory.live, lambda file: file.live))

    def _tree(self, random: Random, share: float, data: str) -> Tree:
        # A file under two names holds the same under both.
        contents: dict[int, bytes] = {}

        def names(directory: _Directory) -> dict[str, _Node]:
            found = dict(directory.synced)
            for change in directory.pending:
                if random.random() < share:
                    _apply(found, change)
            return found

        def content(file: _File) -> bytes:
            return contents.setdefault(id(file), _content(file, data, random))

        return dict(_walk(self._top, names, content))

    def _open_file(self, path: str, flags: int, descriptor: int) -> None:
        if Path(path) == self._root:
            self._open[descriptor] = self._top
            return
        parent, name = self._at(path)
        if name not in parent.live:
            assert flags & os.O_CREAT, path
            parent.change(come=name, node=_File())
        self._open[descriptor] = parent.live[name]
        self._positions[descriptor] = None if flags & os.O_APPEND else 0

    def _write(self, descriptor: int, data: bytes, position: int | None) -> None:
        file = self._file(descriptor)
        start = len(file.live) if position is None else position
        file.change(file.live[:start].ljust(start, b"\0") + data + file.live[start + len(data) :])
        if position is not None:
            self._positions[descriptor] = start + len(data)

    def _file(self, descriptor: int) -> _File:
        file = self._open[descriptor]
        assert isinstance(file, _File)
        return file

    def _at(self, path: str) -> tuple[_Directory, str]:
        *parents, name = Path(path).relative_to(self._root).parts
        directory: _Node = self._top
        for parent in parents:
            assert isinstance(directory, _Directory)
            directory = directory.live[parent]
        assert isinstance(directory, _Directory)
        return directory, name


def write_tree(tree: Tree, root: Path) -> None:
    """Make it in an empty directory."""
    for name, content in sorted(tree.items()):
        path = root / name
        if content is None:
            path.mkdir()
        else:
            path.write_bytes(content)


def _content(file: _File, data: str, random: Random) -> bytes:
    if data == "none" or not file.pending:
        return file.synced
    if data == "all":
        return file.live
    states = [file.synced, *file.pending]
    if data == "zeros":
        return _with_zeros(file.synced, len(file.live))
    number = random.randrange(len(file.pending))
    before, after = states[number], states[number + 1]
    # Of the last change that arrived, a part.
    first = next((at for at, (old, new) in enumerate(zip(before, after, strict=False)) if old != new), len(before))
    cut = random.randint(min(first, len(after)), len(after))
    part = after[:cut] + before[cut:]
    return _with_zeros(part, len(file.live)) if random.random() < 0.3 else part


def _with_zeros(content: bytes, num_bytes: int) -> bytes:
    return content + bytes(max(0, num_bytes - len(content)))


def _load(path: Path) -> _Directory:
    names: dict[str, _Node] = {}
    for each in path.iterdir():
        content = b"" if each.is_dir() else each.read_bytes()
        names[each.name] = _load(each) if each.is_dir() else _File(content, content)
    return _Directory(names, dict(names))


def _walk(
    directory: _Directory, names: object, content: object, prefix: str = ""
) -> Iterable[tuple[str, bytes | None]]:
    for name, node in names(directory).items():  # type: ignore[operator]
        if isinstance(node, _File):
            yield prefix + name, content(node)  # type: ignore[operator]
        else:
            yield prefix + name, None
            yield from _walk(node, names, content, f"{prefix}{name}/")
