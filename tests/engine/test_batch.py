"""A plan as flat tensors, compared whole."""

from __future__ import annotations

import torch
from schedulers import make_scheduler, make_sequence, run_step

from infer.engine.batch import build_batch


def test_batch_puts_decodes_first_and_maps_every_token_to_its_slot():
    scheduler = make_scheduler(16, 4, max_num_batched_tokens=8)
    first, second = make_sequence([10, 11, 12, 13, 14]), make_sequence([20, 21, 22, 23, 24, 25])
    scheduler.add(second)
    run_step(scheduler)
    scheduler.add(first)
    batch = build_batch(scheduler.schedule(), 4, torch.device("cpu"))
    # second: blocks 1, 2 and one decode at position 6; first: blocks 3, 4
    assert batch.input_ids.tolist() == [[7, 10, 11, 12, 13, 14]]
    assert batch.position_ids.tolist() == [[6, 0, 1, 2, 3, 4]]
    assert batch.metadata.slot_mapping.tolist() == [10, 12, 13, 14, 15, 16]
    assert batch.metadata.block_table.tolist() == [[1, 2], [3, 4]]
    assert batch.metadata.query_start_loc.tolist() == [0, 1, 6]
    assert batch.metadata.seq_lens.tolist() == [7, 5]
    assert (batch.metadata.max_query_len, batch.metadata.max_seq_len, batch.metadata.num_decodes) == (5, 7, 1)
    assert batch.logits_indices.tolist() == [0, 5]
    assert batch.sampling == (second, first)


def test_chunk_that_does_not_end_its_prompt_asks_for_no_logits():
    scheduler = make_scheduler(16, 4, max_num_batched_tokens=3)
    sequence = make_sequence([1, 2, 3, 4, 5])
    scheduler.add(sequence)
    run_step(scheduler)
    batch = build_batch(scheduler.schedule(), 4, torch.device("cpu"))
    assert batch.input_ids.tolist() == [[4, 5]]
    assert batch.sampling == (sequence,)
    sequence = make_sequence(9)
    scheduler = make_scheduler(16, 4, max_num_batched_tokens=3)
    scheduler.add(sequence)
    batch = build_batch(scheduler.schedule(), 4, torch.device("cpu"))
    assert batch.sampling == ()
    assert batch.logits_indices.shape == (0,)


def test_drafts_stand_behind_the_last_token_and_all_of_them_ask_for_logits():
    scheduler = make_scheduler(16, 4)
    drafted, plain = make_sequence([10, 11, 12]), make_sequence([20, 21])
    scheduler.add(drafted)
    scheduler.add(plain)
    run_step(scheduler)
    drafted.draft_token_ids = [30, 31]
    batch = build_batch(scheduler.schedule(), 4, torch.device("cpu"))
    assert batch.input_ids.tolist() == [[7, 7, 30, 31]]
    assert batch.position_ids.tolist() == [[2, 3, 4, 5]]
    # plain: block 2; drafted: blocks 1 and 3
    assert batch.metadata.slot_mapping.tolist() == [10, 7, 12, 13]
    assert batch.metadata.query_start_loc.tolist() == [0, 1, 4]
    assert batch.metadata.seq_lens.tolist() == [3, 6]
    assert batch.metadata.num_decodes == 1
    assert batch.logits_indices.tolist() == [0, 1, 2, 3]
    assert batch.sampling == (plain, drafted)
