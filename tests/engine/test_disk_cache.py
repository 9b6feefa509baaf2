"""Files of blocks: found again by another run, used only where they are what was asked for, never in the way."""

from __future__ import annotations

import os
import stat

import pytest
import torch
from safetensors.torch import load, save

from infer.engine.block_hash import hash_block
from infer.engine.disk_cache import DiskCache
from infer.engine.host_cache import HostCache
from infer.engine.kv_cache import KVCache
from infer.kernels.backend import select_backend
from infer.kernels.kv_pages import KVPages

FIRST = hash_block(None, [1, 2, 3])
SECOND = hash_block(FIRST, [4, 5, 6])
NUM_BYTES = 2 * 2 * 3 * 8 * 4
GIB = 1 << 30


class Run:
    """A process' view of the directory, and the host memory it reads into and writes from."""

    def __init__(self, directory, *, identity="model", max_bytes=GIB):
        backend = select_backend(torch.device("cpu"), torch.float32, head_dim=8, block_size=3, preferred="reference")
        layers = tuple(KVPages(torch.zeros(2, 3, 1, 8), torch.zeros(2, 3, 1, 8)) for _ in range(2))
        self.host = HostCache(KVCache(layers, backend), 8)
        self.warnings = []
        self.disk = DiskCache(directory, identity, max_bytes, self.host, self.warnings.append)

    def save(self, block_hash, content):
        self.host.row(1).fill_(content)
        self.disk.save([(1, block_hash)])

    def load(self, block_hash):
        """The content, if it was one that `save` wrote; None where nothing is to be had."""
        self.host.row(2).fill_(0)
        if not self.disk.lookup([block_hash]) or not self.disk.load([(2, block_hash)]):
            assert not self.host.row(2).any(), "something was written all the same"
            return None
        (content,) = set(self.host.row(2).tolist())
        return content


def files(directory):
    return sorted(path for path in directory.rglob("*") if path.is_file())


def test_later_run_finds_what_an_earlier_one_saved(tmp_path):
    run = Run(tmp_path)
    run.save(FIRST, 7)
    run.save(SECOND, 9)
    later = Run(tmp_path)
    assert later.disk.lookup([FIRST, SECOND, hash_block(SECOND, [0])]) == ["disk", "disk"]
    assert (later.load(FIRST), later.load(SECOND), later.warnings) == (7, 9, [])


def test_block_is_written_once(tmp_path):
    run = Run(tmp_path)
    run.save(FIRST, 7)
    run.save(FIRST, 8)
    run.disk.evict([(1, FIRST)])
    assert Run(tmp_path).load(FIRST) == 7


def test_blocks_of_another_identity_are_not_found(tmp_path):
    Run(tmp_path, identity="model").save(FIRST, 7)
    assert Run(tmp_path, identity="other").load(FIRST) is None


def test_files_and_directories_are_their_owners_alone(tmp_path):
    directory = tmp_path / "a" / "kv"
    Run(directory).save(FIRST, 7)
    (path,) = files(directory)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (directory, path.parent)] == [0o700, 0o700]


@pytest.mark.parametrize("place", [0, 3, 8, 20, 80, 200, 500, -1])
@pytest.mark.parametrize("damage", ["cut", "flipped", "zeroed from there"])
def test_damaged_file_is_not_used_and_told_of_once(tmp_path, damage, place):
    run = Run(tmp_path)
    run.save(FIRST, 7)
    run.save(SECOND, 9)
    for path in files(tmp_path):
        content = bytearray(path.read_bytes())
        place %= len(content)
        if damage == "cut":
            del content[place:]
        elif damage == "flipped":
            content[place] ^= 0x15
        else:
            content[place:] = bytes(len(content) - place)
        path.write_bytes(content)
    later = Run(tmp_path)
    found = [later.load(FIRST), later.load(SECOND)]
    if damage == "flipped" and found == [7, 9]:
        # What was hit says nothing about the block: a name or padding of the header.
        assert not later.warnings
    else:
        assert found in ([None, None], [7, None], [None, 9])
        assert len(later.warnings) == 1
        assert "is not used" in later.warnings[0]
    assert later.load(FIRST) == found[0]


def test_every_single_flipped_byte_is_noticed_or_harmless(tmp_path):
    Run(tmp_path).save(FIRST, 7)
    (path,) = files(tmp_path)
    content = path.read_bytes()
    for place in range(0, len(content), 3):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        assert Run(tmp_path).load(FIRST) in (None, 7), place


@pytest.mark.parametrize(
    "content", [b"", b"not safetensors", b"\xff" * 64, bytes(3 << 20)], ids=["0", "text", "ff", "3M"]
)
def test_foreign_file_is_not_used(tmp_path, content):
    run = Run(tmp_path)
    run.save(FIRST, 7)
    (path,) = files(tmp_path)
    path.write_bytes(content)
    later = Run(tmp_path)
    assert (later.load(FIRST), len(later.warnings)) == (None, 1)


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": torch.tensor([1, 2, 3], dtype=torch.uint8)},
        {"tokens": torch.tensor([1.0, 2.0, 3.0])},
        {"tokens": torch.zeros(3).to(torch.float8_e4m3fn)},
        {"tokens": torch.zeros(0, dtype=torch.int64)},
        {"checksum": torch.zeros(1).to(torch.float8_e5m2)},
        {"parent": torch.zeros(1)},
        {"block": torch.zeros(NUM_BYTES)},
        {"block": torch.zeros(NUM_BYTES, 1, dtype=torch.uint8)},
    ],
    ids=str,
)
def test_crafted_file_is_not_used(tmp_path, change):
    run = Run(tmp_path)
    run.save(FIRST, 7)
    (path,) = files(tmp_path)
    path.write_bytes(save(load(path.read_bytes()) | change))
    later = Run(tmp_path)
    assert (later.load(FIRST), len(later.warnings)) == (None, 1)


def test_pipe_in_place_of_a_file_is_not_waited_for(tmp_path):
    run = Run(tmp_path)
    run.save(FIRST, 7)
    (path,) = files(tmp_path)
    path.unlink()
    os.mkfifo(path)
    assert run.load(FIRST) is None


def test_file_under_the_name_of_another_is_not_used(tmp_path):
    run = Run(tmp_path)
    run.save(FIRST, 7)
    (path,) = files(tmp_path)
    for other in (SECOND, hash_block(SECOND, [1, 2, 3])):
        path.rename(path.with_name(f"{other.digest.hex()}.safetensors"))
        path = files(tmp_path)[0]
        later = Run(tmp_path)
        assert later.load(other) is None
        assert "does not match" in later.warnings[0]


def test_link_is_not_followed_and_a_folder_is_no_file(tmp_path):
    run = Run(tmp_path / "kv")
    run.save(FIRST, 7)
    (path,) = files(tmp_path)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    (path.parent / f"{SECOND.digest.hex()}.safetensors").mkdir()
    later = Run(tmp_path / "kv")
    assert (later.load(FIRST), later.load(SECOND)) == (None, None)
    assert run.load(FIRST) is None, "the link was made while it ran"


def test_file_that_another_run_removed_is_computed_again_without_a_word(tmp_path):
    run = Run(tmp_path)
    run.save(FIRST, 7)
    for path in files(tmp_path):
        path.unlink()
    assert (run.load(FIRST), run.warnings) == (None, [])
    run.save(FIRST, 8)
    assert run.load(FIRST) == 8


def test_full_disk_is_a_warning_and_leaves_nothing_half_written(tmp_path, monkeypatch):
    run = Run(tmp_path)
    run.save(FIRST, 7)

    def full(path, target):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr("pathlib.Path.replace", full)
    run.save(SECOND, 8)
    run.save(hash_block(SECOND, [9]), 8)
    assert run.warnings == [f"kv cache directory: nothing more is written to {tmp_path}: [Errno 28] {os.strerror(28)}"]
    assert len(files(tmp_path)) == 1
    assert run.load(FIRST) == 7


def test_least_recently_used_files_are_removed_where_there_are_too_many(tmp_path):
    Run(tmp_path, identity="older model").save(FIRST, 1)
    size = files(tmp_path)[0].stat().st_size
    hashes = [hash_block(None, [number] * 3) for number in range(8)]
    run = Run(tmp_path, max_bytes=5 * size)
    for age, path in enumerate(files(tmp_path)):
        os.utime(path, (age, age))
    for number, block_hash in enumerate(hashes[:4]):
        run.save(block_hash, number)
        path = run.disk._path(block_hash)
        os.utime(path, (100 + number, 100 + number))
    assert run.load(hashes[0]) == 0
    run.save(hashes[4], 4)
    # Four are left, to nine tenths: the other model's and the one not used since went.
    assert [Run(tmp_path).load(each) for each in hashes[:5]] == [0, None, 2, 3, 4]
    assert Run(tmp_path, identity="older model").load(FIRST) is None
    assert run.load(hashes[1]) is None
    assert run.warnings == []


def test_limit_counts_what_lay_there_before(tmp_path):
    Run(tmp_path).save(FIRST, 7)
    size = files(tmp_path)[0].stat().st_size
    run = Run(tmp_path, max_bytes=int(1.5 * size))
    run.save(SECOND, 8)
    assert len(files(tmp_path)) == 1


def test_what_a_killed_run_left_unfinished_is_removed_when_it_is_old(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    old, new = folder / "a.1.partial", folder / "b.2.partial"
    for path in (old, new):
        path.write_bytes(b"x")
    os.utime(old, (0, 0))
    Run(tmp_path)
    assert files(tmp_path) == [new]
