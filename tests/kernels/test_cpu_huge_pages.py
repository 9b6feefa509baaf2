"""Memory that is kept for long: tensors one behind the other, and zeros."""

from __future__ import annotations

import torch

from infer.kernels.cpu.huge_pages import Arena, map_zeros


def test_arena_keeps_its_tensors_apart():
    arena = Arena()
    given = [torch.randn(3, size).to(dtype) for size in (1, 7, 100) for dtype in (torch.float32, torch.bfloat16)]
    kept = [arena.copy(tensor) for tensor in given]
    for tensor, copy in zip(given, kept, strict=True):
        assert torch.equal(copy, tensor)
        assert copy.is_contiguous()
        assert copy.data_ptr() % 64 == 0
    kept[0].fill_(9.0)
    assert all(torch.equal(copy, tensor) for copy, tensor in zip(kept[1:], given[1:], strict=True))


def test_arena_makes_room_for_what_is_larger_than_a_chunk():
    arena = Arena()
    first = arena.copy(torch.ones(5))
    large = arena.copy(torch.full((17 * 2**20,), 2.0))
    assert first.sum() == 5
    assert large[-1] == 2.0


def test_memory_is_zero():
    assert not any(map_zeros(100_000)[:])
