"""DiskCache: full blocks of prompts as files, so that a later run over the same prompts finds them.

    DIR/<identity>/<digest>.safetensors     bytes of one block, its tokens, the digest of the block before, a checksum

`identity` names everything that changes what a block holds; `digest` stands for the tokens up to the block's end.
Whatever is not exactly what was asked for is not used. The files hold prompts: only their owner may read them.

Several runs may share the directory: a file appears whole, by a rename, and one that another removed is not there.
Nothing is synced: after a crash of the machine a torn file fails its checksum.
"""

from __future__ import annotations

import os
import stat
import time
import zlib
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from infer.engine.block_hash import BlockHash
    from infer.engine.host_cache import HostCache
    from infer.engine.kv_connector import HashedBlock

_SUFFIX = ".safetensors"
_PARTIAL = ".partial"
_PARTIAL_SECONDS = 3600
"""After which a file that was not renamed belongs to nobody any more."""
_MOST_LABEL_BYTES = 1 << 20
_SHARE_LEFT = 0.9
"""Of the limit, after files were removed: it takes a walk through the directory."""


class DiskCache:
    """A KVConnector below host memory: reads and writes the rows of `host`.

    It knows the files that were there when it was made, and its own. The oldest use goes first when there are too many.
    """

    outlasts_run = True

    def __init__(
        self, directory: Path, identity: str, max_bytes: int, host: HostCache, warn: Callable[[str], None]
    ) -> None:
        """`warn` is told at most one line about files that cannot be used, and one about a disk that cannot be written.

        Raises:
            OSError: the directory can be neither made nor read.
        """
        self._root = directory
        self._folder = directory / identity
        self._max_bytes = max_bytes
        self._host = host
        self._warn = warn
        self._has_warned = False
        self._is_writable = True
        for folder in (self._root, self._folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = self._files()
        self._known = {path.stem for path, _ in files if path.parent == self._folder}
        self._num_bytes = sum(status.st_size for _, status in files)

    def lookup(self, block_hashes: Sequence[BlockHash]) -> list[str]:
        tiers = []
        for block_hash in block_hashes:
            if block_hash.digest.hex() not in self._known:
                break
            tiers.append("disk")
        return tiers

    def load(self, blocks: Iterable[HashedBlock]) -> bool:
        return all(self._read(block_id, block_hash) for block_id, block_hash in blocks)

    def save(self, blocks: Iterable[HashedBlock]) -> None:
        for block_id, block_hash in blocks:
            if self._is_writable and block_hash.digest.hex() not in self._known:
                self._write(block_id, block_hash)

    def evict(self, blocks: Iterable[HashedBlock]) -> None:
        """The same: of what leaves host memory, the prompts are here already."""
        self.save(blocks)

    def reset(self) -> None:
        """Files hold what was copied by steps that ended well."""

    def _read(self, block_id: int, block_hash: BlockHash) -> bool:
        path = self._path(block_hash)
        row = self._host.row(block_id)
        try:
            payload = _payload(_read_bounded(path, row.nbytes + _MOST_LABEL_BYTES), block_hash, row.nbytes)
        except FileNotFoundError:
            # Another run has removed it.
            self._known.discard(path.stem)
            return False
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            self._known.discard(path.stem)
            if not self._has_warned:
                self._has_warned = True
                self._warn(f"kv cache directory: {path} is not used, nor are others like it: {error}")
            return False
        # The time of the last use, for whoever has to remove some. Files of others can be used, too.
        with suppress(OSError):
            os.utime(path)
        row.copy_(payload)
        return True

    def _write(self, block_id: int, block_hash: BlockHash) -> None:
        content = _content(self._host.row(block_id), block_hash)
        path = self._path(block_hash)
        partial = None
        try:
            # Of a name that nobody can have foreseen, for its owner only.
            with NamedTemporaryFile(dir=self._folder, suffix=_PARTIAL, delete=False) as file:
                partial = Path(file.name)
                file.write(content)
            partial.replace(path)
            self._known.add(path.stem)
            self._num_bytes += len(content)
            if self._num_bytes > self._max_bytes:
                self._remove_oldest()
        except OSError as error:
            self._is_writable = False
            if partial is not None:
                with suppress(OSError):
                    partial.unlink(missing_ok=True)
            self._warn(f"kv cache directory: nothing more is written to {self._root}: {error}")

    def _remove_oldest(self) -> None:
        """Look again, for other runs write here too, and make room for more than the next file."""
        files = sorted(self._files(), key=lambda file: file[1].st_mtime_ns)
        self._num_bytes = sum(status.st_size for _, status in files)
        for path, status in files:
            if self._num_bytes <= _SHARE_LEFT * self._max_bytes:
                return
            try:
                path.unlink(missing_ok=True)
            except OSError:
                # Another owner's.
                continue
            self._num_bytes -= status.st_size
            if path.parent == self._folder:
                self._known.discard(path.stem)

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        """All blocks in the directory, of every identity. Removes what killed runs left unfinished."""
        files = []
        for path in self._root.glob("*/*"):
            # Another run may remove it at any time.
            with suppress(FileNotFoundError):
                status = path.lstat()
                if not stat.S_ISREG(status.st_mode):
                    continue
                if path.suffix == _SUFFIX:
                    files.append((path, status))
                elif path.suffix == _PARTIAL and status.st_mtime < time.time() - _PARTIAL_SECONDS:
                    path.unlink()
        return files

    def _path(self, block_hash: BlockHash) -> Path:
        return self._folder / f"{block_hash.digest.hex()}{_SUFFIX}"


def _content(row: torch.Tensor, block_hash: BlockHash) -> bytes:
    return save({"block": row, **_labels(row, block_hash)})


def _payload(content: bytes, block_hash: BlockHash, num_bytes: int) -> torch.Tensor:
    """The block's bytes, if they are what `block_hash` stands for.

    The tokens before it need no look: a prefix is loaded from its first block on, and each is compared in its turn.

    Raises:
        ValueError, KeyError, SafetensorError: they are not.
    """
    tensors = load(content)
    block = tensors["block"]
    if block.dtype != torch.uint8 or block.shape != (num_bytes,):
        raise ValueError(f"it holds {list(block.shape)} of {block.dtype}, not {num_bytes} bytes")
    for name, label in _labels(block, block_hash).items():
        found = tensors[name]
        # Looked at first: some types cannot even be compared.
        if found.dtype != label.dtype or found.shape != label.shape or not torch.equal(found, label):
            raise ValueError(f"its {name} does not match")
    return block


def _labels(block: torch.Tensor, block_hash: BlockHash) -> dict[str, torch.Tensor]:
    """What a file says of its block."""
    parent = block_hash.parent.digest if block_hash.parent is not None else b""
    return {
        "tokens": torch.tensor(block_hash.token_ids),
        "parent": torch.tensor(list(parent), dtype=torch.uint8),
        "checksum": torch.tensor(zlib.crc32(block.numpy().data)),
    }


def _read_bounded(path: Path, max_bytes: int) -> bytes:
    # A pipe that somebody has put there would be waited for.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags), "rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"it is larger than {max_bytes} bytes")
    return content
