"""What followed when the last tokens were there before."""

from __future__ import annotations

import random

import pytest
from schedulers import make_sequence

from infer.engine.ngram_proposer import NgramProposer, SearchableTokens


def propose(token_ids, num_tokens=3, min_length=2, max_length=4):
    return SearchableTokens(token_ids).continuation(min_length, max_length, num_tokens)


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


def test_bytes_that_agree_between_two_tokens_are_no_occurrence():
    shifted = 1 << 8
    assert propose([shifted, shifted, 7, 1, 1]) == []
    assert propose([1, 1, 7, shifted, shifted, 9, 1, 1]) == [7, shifted, shifted]


@pytest.mark.parametrize("num_kinds", [2, 3, 300, 70_000])
def test_drafts_are_those_of_a_search_token_by_token(num_kinds):
    rng = random.Random(num_kinds)
    for _ in range(200):
        token_ids = [rng.randrange(num_kinds) * rng.choice([1, 256, 65_536]) % 2**31 for _ in range(rng.randrange(40))]
        expected: list[int] = []
        for length in (4, 3, 2):
            begins = [at for at in range(len(token_ids) - length) if token_ids[at : at + length] == token_ids[-length:]]
            if begins:
                endless = token_ids[begins[-1] + length :] * 5
                expected = endless[:5]
                break
        assert propose(token_ids, 5) == expected


def test_text_that_grew_with_the_sequence_continues_as_a_new_one_does():
    rng = random.Random(0)
    token_ids: list[int] = []
    grown = SearchableTokens(token_ids)
    num_proposed = 0
    for _ in range(400):
        token_ids += [rng.randrange(5) for _ in range(rng.randrange(4))]
        drafts = grown.continuation(2, 4, 5)
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
