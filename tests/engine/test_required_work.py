from __future__ import annotations

from infer.engine.model_flops import AttentionShape, ModelFlops
from infer.engine.required_work import RowLengths, required_work, row_lengths

MODEL = ModelFlops(per_token=100, per_logit=10, layers=(AttentionShape(1, 1, 1, 0), AttentionShape(1, 1, 1, 3)))


def test_rows_share_what_the_one_before_them_has_in_sorted_order():
    prompts = [[5, 6, 7], [1, 300], [5, 6], [5, 6, 8, 9], [1, 2]]
    assert row_lengths(prompts, [10, 11, 12, 13, 14]) == [
        RowLengths(0, 2, 14),
        RowLengths(1, 2, 11),
        RowLengths(0, 2, 12),
        RowLengths(2, 3, 10),
        RowLengths(2, 4, 13),
    ]


def test_last_token_of_a_prompt_is_always_computed():
    assert row_lengths([[1, 2], [1, 2], [1]], [1, 1, 1])[1:] == [RowLengths(1, 2, 1), RowLengths(1, 2, 1)]
    assert row_lengths([], []) == []


def test_every_token_but_the_last_that_is_generated_enters_the_network():
    work = required_work([RowLengths(2, 5, 4)], MODEL, kv_bytes_per_token=2)
    assert (work.num_tokens, work.num_logits) == (3 + 3, 4)
    assert work.gemm_flops == 100 * 6 + 10 * 4
    # Queries at positions 2 to 7, in one layer over all keys up to their own, in the other over three at most.
    assert work.attention_flops == 4 * (sum(range(3, 9)) + 6 * 3)
    # The prompt once, then the keys before each of three steps; a layer has one of the two bytes.
    assert work.kv_bytes == (5 + 6 + 7 + 8) + (5 + 3 * 3)
    assert work.flops == work.gemm_flops + work.attention_flops


def test_row_without_an_answer_needs_its_prompt_only():
    assert required_work([RowLengths(0, 3, 1)], MODEL, 2).num_tokens == 3
