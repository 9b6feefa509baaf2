"""Sequences that share their first blocks are found, and stand together."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from schedulers import make_scheduler, make_sequence, run_step

from infer.engine import shared_prefixes
from infer.engine.batch import build_batch
from infer.engine.shared_prefixes import find_shared_prefixes


@pytest.fixture(autouse=True)
def _everything_is_worth_sharing(monkeypatch):
    monkeypatch.setattr(shared_prefixes, "MIN_SHARED_TOKENS", 4)
    monkeypatch.setattr(shared_prefixes, "MIN_SAVED_TOKENS", 4)


def find(tables, num_full_blocks=None, num_decodes=None, block_size=4):
    """Returns the order, and the groups in it."""
    width = max(map(len, tables))
    padded = np.array([[*table, *[0] * (width - len(table))] for table in tables], dtype=np.int32)
    full = np.array([len(table) - 1 for table in tables] if num_full_blocks is None else num_full_blocks)
    found = find_shared_prefixes(padded, full, len(tables) if num_decodes is None else num_decodes, block_size)
    return found.order.tolist(), found.groups.tolist()


def test_sequences_that_share_nothing_keep_their_order():
    assert find([[9, 1], [5, 2], [7, 3]]) == ([0, 1, 2], [])


def test_sharers_stand_together_however_far_apart_they_stood():
    order, groups = find([[9, 1, 2], [5, 6, 3], [9, 1, 4], [5, 6, 7], [8, 10]])
    assert [order[first:end] for first, end, *_ in groups] == [[1, 3], [0, 2]]
    assert [group[2:] for group in groups] == [[0, 2], [0, 2]]
    assert sorted(order) == [0, 1, 2, 3, 4]


def test_prefix_is_what_all_have_in_common_and_those_that_share_more_are_a_group_within():
    order, groups = find([[1, 2, 3, 10], [1, 2, 4, 11], [1, 2, 3, 12], [1, 2, 4, 13], [1, 2, 5, 14]])
    assert groups == [[0, 5, 0, 2], [0, 2, 2, 3], [2, 4, 2, 3]]
    assert order == [0, 2, 1, 3, 4]


def test_a_block_that_is_not_full_or_not_before_the_first_query_is_not_shared():
    tables = [[1, 2, 3, 10], [1, 2, 3, 11], [1, 2, 3, 12]]
    assert find(tables, num_full_blocks=[3, 2, 3])[1] == [[0, 3, 0, 2], [1, 3, 2, 3]]
    assert find(tables, num_full_blocks=[3, 0, 0])[1] == []


def test_sequences_that_begin_a_chunk_stay_behind_those_that_decode():
    tables = [[1, 2, 10], [1, 2, 11], [1, 2, 12], [1, 2, 13]]
    assert find(tables, num_decodes=2) == ([0, 1, 2, 3], [[0, 2, 0, 2], [2, 4, 0, 2]])


def test_blocks_that_were_given_back_are_not_shared():
    assert find([[0, 0, 3, 10], [0, 0, 4, 11]])[1] == []


def test_identical_tables_are_shared_whole():
    assert find([[1, 2, 3], [1, 2, 3]], num_full_blocks=[3, 3])[1] == [[0, 2, 0, 3]]


def test_small_savings_are_left_alone(monkeypatch):
    tables = [[1, 2, 10], [1, 2, 11], [1, 2, 12]]
    monkeypatch.setattr(shared_prefixes, "MIN_SAVED_TOKENS", 17)
    assert find(tables)[1] == []
    monkeypatch.setattr(shared_prefixes, "MIN_SAVED_TOKENS", 16)
    assert find(tables)[1] == [[0, 3, 0, 2]]
    monkeypatch.setattr(shared_prefixes, "MIN_SHARED_TOKENS", 9)
    assert find(tables)[1] == []


@pytest.mark.parametrize("seed", range(20))
def test_groups_hold_what_they_promise_for_random_trees(seed):
    rng = random.Random(seed)
    next_block = iter(range(1, 10000))
    tables = [[next(next_block)] for _ in range(3)]
    for _ in range(40):
        parent = rng.choice(tables)
        tables.append([*parent[: rng.randint(1, len(parent))], *(next(next_block) for _ in range(rng.randint(0, 3)))])
    full = [rng.randint(0, len(table)) for table in tables]
    num_decodes = rng.randint(0, len(tables))
    order, groups = find(tables, full, num_decodes)
    assert sorted(order) == list(range(len(tables)))
    assert all(place < num_decodes for place in order[:num_decodes])
    ends = dict.fromkeys(order, 0)
    for first, end, first_block, end_block in groups:
        assert 0 <= first_block < end_block
        assert end - first >= 2
        assert end <= num_decodes or first >= num_decodes
        members = order[first:end]
        assert len({tuple(tables[place][first_block:end_block]) for place in members}) == 1
        for place in members:
            assert full[place] >= end_block
            assert ends[place] == first_block
            ends[place] = end_block
    # Whoever shares its first block with another of its kind is in a group.
    for kind in (range(num_decodes), range(num_decodes, len(tables))):
        heads = [tables[place][0] for place in kind if full[place]]
        for place in kind:
            assert (ends[place] > 0) == (full[place] > 0 and heads.count(tables[place][0]) > 1)


def test_batch_says_what_its_sequences_share():
    scheduler = make_scheduler(32, 4)
    prompts = [[1, 2, 3, 4, 5], [9, 8, 7, 6, 5], [1, 2, 3, 4, 6], [1, 2, 3, 4, 7]]
    sequences = [make_sequence(prompt) for prompt in prompts]
    for sequence in sequences:
        scheduler.add(sequence)
        run_step(scheduler)
    output = scheduler.schedule()
    device = torch.device("cpu")
    assert build_batch(output, 4, device).metadata.shared_prefixes is None
    batch = build_batch(output, 4, device, shared_prefix_attention=True)
    assert batch.metadata.shared_prefixes is not None
    [[first, end, first_block, end_block]] = batch.metadata.shared_prefixes.tolist()
    assert (first_block, end_block) == (0, 1)
    assert batch.metadata.shared_prefixes.dtype == torch.int32
    assert batch.sampling[first:end] == (sequences[0], sequences[2], sequences[3])
    assert set(batch.sampling) == set(sequences)
