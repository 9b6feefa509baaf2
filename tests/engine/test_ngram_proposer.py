"""What followed when the last tokens were there before."""

from __future__ import annotations

import random

import pytest
from schedulers import make_sequence

from infer.engine.ngram_proposer import NgramIndex, NgramProposer


def propose(token_ids, num_tokens=3, min_length=2, max_length=4):
    return NgramIndex(token_ids, min_length).propose(max_length, num_tokens)


@pytest.mark.parametrize(
    ("token_ids", "drafts"),
    [
        ([], []),
        ([1], []),
        ([1, 2], []),
        ([1, 2, 3, 4], []),
        ([1, 2, 3, 4, 5, 1, 2], [3, 4, 5]),
        ([1, 2, 3, 9, 1, 2, 4, 9, 1, 2], [4, 9, 1]),
        ([8, 1, 2, 3, 9, 1, 2, 4, 8, 1, 2], [3, 9, 1]),
        ([1, 2, 3, 1, 2], [3, 1, 2]),
        ([5, 5, 5], [5, 5, 5]),
        ([4, 6, 7, 6, 7], [6, 7, 6]),
    ],
    ids=[
        "empty",
        "too short",
        "only itself",
        "nothing recurs",
        "once before",
        "the later of two",
        "the one that agrees further back",
        "up to the end",
        "one token over and over",
        "two tokens over and over",
    ],
)
def test_drafts_are_what_followed_the_last_tokens_before(token_ids, drafts):
    assert propose(token_ids) == drafts


def test_no_more_than_the_greatest_length_is_compared():
    token_ids = [8, 1, 2, 3, 9, 1, 2, 4, 8, 1, 2]
    assert propose(token_ids, max_length=3) == [3, 9, 1]
    assert propose(token_ids, max_length=2) == [4, 8, 1]


def test_single_tokens_recur_too_where_that_is_asked_for():
    assert propose([1, 2, 3, 1], min_length=1) == [2, 3, 1]


def test_index_that_grew_with_the_sequence_proposes_what_a_new_one_does():
    rng = random.Random(0)
    token_ids: list[int] = []
    grown = NgramIndex(token_ids, 2)
    num_proposed = 0
    for _ in range(400):
        token_ids += [rng.randrange(5) for _ in range(rng.randrange(4))]
        drafts = grown.propose(4, 5)
        assert drafts == propose(list(token_ids), 5)
        num_proposed += bool(drafts)
    assert num_proposed > 300


def test_proposer_keeps_sequences_apart_and_follows_them():
    proposer = NgramProposer(2, 4)
    first, second = make_sequence([1, 2, 3, 1, 2]), make_sequence([4, 5, 6, 7])
    assert proposer.propose([first, second], 2) == [[3, 1], []]
    second.append(4)
    second.append(5)
    assert proposer.propose([second, first], 2) == [[6, 7], [3, 1]]
    assert proposer.propose([], 2) == []
