"""What the cgroup files say is what is believed."""

from __future__ import annotations

import pytest
import torch

from infer.engine.memory import available_bytes, cgroup_room


def write(folder, **files):
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)
    return folder


def test_cgroup_v2_limit_less_usage_and_reclaimable_cache(tmp_path):
    folder = write(tmp_path, memory__max="1000\n", memory__current="700\n", memory__stat="anon 600\ninactive_file 50\n")
    assert cgroup_room(folder) == 350


def test_cgroup_v2_without_a_limit(tmp_path):
    assert cgroup_room(write(tmp_path, memory__max="max\n", memory__current="700\n", memory__stat="anon 1\n")) is None


@pytest.mark.parametrize(("limit", "room"), [("1000", 350), ("9223372036854771712", None)])
def test_cgroup_v1(tmp_path, limit, room):
    folder = write(
        tmp_path,
        memory__limit_in_bytes=limit,
        memory__usage_in_bytes="700",
        memory__stat="cache 9\ntotal_inactive_file 50\n",
    )
    assert cgroup_room(folder) == room


def test_usage_over_the_limit_leaves_nothing(tmp_path):
    folder = write(tmp_path, memory__max="100", memory__current="700", memory__stat="inactive_file 0\n")
    assert cgroup_room(folder) == 0


def test_folder_that_is_no_cgroup_sets_no_limit(tmp_path):
    assert cgroup_room(tmp_path) is None


def test_this_process_has_some_memory():
    assert available_bytes(torch.device("cpu")) > 1 << 20
