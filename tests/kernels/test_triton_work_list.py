"""The work list of a step's decodes: every key of every query once, in splits at fixed places, in slots by order."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from paged_cases import metadata_to

from infer.kernels.attention_metadata import AttentionMetadata

work_list = pytest.importorskip("infer.kernels.triton.work_list")

BLOCK_SIZE = 16
TOKENS_PER_TILE = 3


def make_metadata(seq_lens: list[int], groups: list[list[int]], num_decodes: int | None = None) -> AttentionMetadata:
    num_seqs = len(seq_lens)
    return AttentionMetadata(
        slot_mapping=torch.zeros(num_seqs, dtype=torch.int64),
        block_table=torch.zeros(num_seqs, -(-max(seq_lens) // BLOCK_SIZE), dtype=torch.int32),
        query_start_loc=torch.arange(num_seqs + 1, dtype=torch.int32),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        max_query_len=1,
        max_seq_len=max(seq_lens),
        num_decodes=num_seqs if num_decodes is None else num_decodes,
        shared_prefixes=torch.tensor(groups, dtype=torch.int32).view(-1, 4) if groups else None,
    )


def entries_of(device: str, metadata: AttentionMetadata, sliding_window: int = 0) -> tuple[list[list[int]], ...]:
    work = work_list.list_work(metadata_to(metadata, device), BLOCK_SIZE, sliding_window, TOKENS_PER_TILE)
    num_own, num_shared = work.num_entries[:, 0].tolist()
    assert num_own <= work.own.shape[0]
    assert num_shared <= work.shared.shape[0]
    assert work.num_slots.max() <= work.max_slots
    return work.own[:num_own].tolist(), work.shared[:num_shared].tolist()


def keys_by_query(entries: list[list[int]]) -> dict[int, list[tuple[int, int, int]]]:
    """Of each query its slots, and of each its keys."""
    keys: dict[int, list[tuple[int, int, int]]] = {}
    for token, num_tokens, _, first_key, end_key, slot in entries:
        for query in range(token, token + num_tokens):
            keys.setdefault(query, []).append((slot, first_key, end_key))
    return {query: sorted(slots) for query, slots in keys.items()}


def test_work_list_of_short_sequences_is_one_entry_each(triton_device: str) -> None:
    own, shared = entries_of(triton_device, make_metadata([1, 512, 30], []))
    assert own == [[0, 1, 0, 0, 1, -1], [1, 1, 1, 0, 512, -1], [2, 1, 2, 0, 30, -1]]
    assert shared == []


def test_work_list_puts_whole_splits_before_last_ones(triton_device: str) -> None:
    own, _ = entries_of(triton_device, make_metadata([1030, 7, 600], []))
    assert own == [
        [0, 1, 0, 0, 512, 0],
        [0, 1, 0, 512, 1024, 1],
        [2, 1, 2, 0, 512, 0],
        [0, 1, 0, 1024, 1030, 2],
        [1, 1, 1, 0, 7, -1],
        [2, 1, 2, 512, 600, 1],
    ]


def test_work_list_of_a_window_begins_at_its_first_key(triton_device: str) -> None:
    own, shared = entries_of(triton_device, make_metadata([1030, 7], [[0, 2, 0, 0]]), sliding_window=520)
    assert own == [[0, 1, 0, 510, 512, 0], [0, 1, 0, 512, 1024, 1], [0, 1, 0, 1024, 1030, 2], [1, 1, 1, 0, 7, -1]]
    assert shared == []


def test_work_list_has_nothing_of_a_sequence_that_pads_the_batch(triton_device: str) -> None:
    own, _ = entries_of(triton_device, make_metadata([0, 40, 0], []))
    assert own == [[1, 1, 1, 0, 40, -1]]


def test_work_list_reads_shared_blocks_once_a_tile_of_queries(triton_device: str) -> None:
    own, shared = entries_of(triton_device, make_metadata([700, 600, 650, 601, 9], [[0, 4, 0, 35]]))
    assert shared == [
        [0, 3, 0, 0, 512, 0],
        [3, 1, 0, 0, 512, 0],
        [0, 3, 0, 512, 560, 1],
        [3, 1, 0, 512, 560, 1],
    ]
    assert own == [
        [0, 1, 0, 560, 700, 2],
        [1, 1, 1, 560, 600, 2],
        [2, 1, 2, 560, 650, 2],
        [3, 1, 3, 560, 601, 2],
        [4, 1, 4, 0, 9, -1],
    ]


@pytest.mark.parametrize(
    "groups",
    [
        pytest.param([[0, 3, 0, 5]], id="one"),
        pytest.param([[0, 2, 0, 38], [3, 6, 0, 33]], id="two"),
        pytest.param([[0, 6, 0, 5], [0, 3, 5, 36], [3, 6, 5, 9], [1, 3, 36, 37]], id="nested"),
        pytest.param([[0, 6, n, n + 1] for n in range(work_list.MAX_LEVELS + 3)], id="too deep"),
        pytest.param([[0, 2, 0, 3], [0, 0, 0, 0], [6, 8, 0, 3]], id="padding, and no decodes"),
        pytest.param([[2 * n % 6, 2 * n % 6 + 2, n // 3, n // 3 + 1] for n in range(150)], id="many"),
    ],
)
def test_work_list_has_every_key_once(triton_device: str, groups: list[list[int]]) -> None:
    seq_lens = [700, 610, 1030, 601, 599, 1025, 50, 60]
    own, shared = entries_of(triton_device, make_metadata(seq_lens, groups, num_decodes=6))
    queries = keys_by_query(own + shared)
    assert sorted(queries) == list(range(6))
    for query, parts in queries.items():
        assert [slot for slot, _, _ in parts] == ([-1] if len(parts) == 1 else list(range(len(parts))))
        assert [first for _, first, _ in parts] == [0, *(end for _, _, end in parts[:-1])]
        assert parts[-1][2] == seq_lens[query]
        assert all(first // 512 == (end - 1) // 512 for _, first, end in parts)


def test_work_list_reads_no_shared_key_for_a_sequence_alone(triton_device: str) -> None:
    groups = [[0, 4, 0, 5], [0, 2, 5, 20], [2, 4, 5, 10]]
    own, shared = entries_of(triton_device, make_metadata([400] * 5, groups))
    assert Counter((first, end) for _, _, _, first, end, _ in own) == {(320, 400): 2, (160, 400): 2, (0, 400): 1}
    assert [(token, count, first, end) for token, count, _, first, end, _ in shared] == [
        (0, 3, 0, 80),
        (3, 1, 0, 80),
        (0, 2, 80, 320),
        (2, 2, 80, 160),
    ]
