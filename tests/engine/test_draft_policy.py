"""How many drafts are computed: fed with made-up seconds, so that nothing here depends on the machine."""

from __future__ import annotations

import pytest
from schedulers import make_sequence

from infer.engine.draft_policy import AdaptiveDrafts, AllDrafts, StepCost


def trained(right_of_four=4, *, fixed=0.020, each=0.001, rounds=20, proposing=1e-6, max_in_step=10_000):
    """A policy that has seen steps of some sizes, what proposing takes, and drafts of which so many were right."""
    policy = AdaptiveDrafts(4, max_in_step)
    for _ in range(10):
        policy.observe_proposing(4, proposing)
    for num_tokens in (1, 8, 64, 500) * 5:
        policy.observe_step(num_tokens, fixed + each * num_tokens)
    other = make_sequence(3)
    for _ in range(rounds):
        policy.observe_drafts(other, right_of_four, min(4, right_of_four + 1))
    return policy


def chosen(policy, num_sequences, num_drafts=4):
    sequences = [make_sequence(3) for _ in range(num_sequences)]
    return policy.choose(sequences, [[5] * num_drafts for _ in sequences])


def test_all_drafts_takes_what_is_proposed():
    policy = AllDrafts(4)
    assert policy.num_to_propose([]) == 4
    assert chosen(policy, 2) == [4, 4]


def test_few_sequences_compute_all_drafts_and_a_full_batch_none():
    assert chosen(trained(), 1) == [4]
    assert chosen(trained(), 2) == [4, 4]
    assert set(chosen(trained(), 2000)) == {0}
    totals = [sum(chosen(trained(), number)) / number for number in (1, 4, 16, 64, 256, 1024)]
    assert totals == sorted(totals, reverse=True)


def test_drafts_that_are_never_right_are_not_computed():
    assert chosen(trained(right_of_four=0), 4) == [0] * 4


def test_the_likelier_drafts_are_computed_first():
    policy = trained(right_of_four=2)
    often, seldom = make_sequence(3), make_sequence(3)
    for _ in range(20):
        policy.observe_drafts(often, 4, 4)
        policy.observe_drafts(seldom, 0, 1)
    few = [make_sequence(3) for _ in range(14)]
    counts = policy.choose([seldom, often, *few], [[5] * 4] * 16)
    assert counts[1] > counts[2] >= counts[0]
    assert counts[0] == 0


def test_where_there_is_room_for_few_the_likelier_get_it():
    policy = trained(right_of_four=4, max_in_step=5)
    sure, unsure = make_sequence(3), make_sequence(3)
    for _ in range(20):
        policy.observe_drafts(sure, 4, 4)
        policy.observe_drafts(unsure, 3, 4)
    assert policy.choose([unsure, sure], [[5] * 4] * 2) == [1, 4]


def test_proposing_that_once_took_long_is_not_taken_to_cost_that_much():
    policy = trained(right_of_four=0)
    policy.observe_proposing(4, 5.0)
    assert policy.num_to_propose([make_sequence(3)]) == 4


def test_nothing_is_chosen_that_was_not_proposed():
    policy = trained()
    sequences = [make_sequence(3) for _ in range(3)]
    assert policy.choose(sequences, [[], [5], [5, 5]]) == [0, 1, 2]


def test_chosen_drafts_give_the_most_tokens_a_second():
    """Against every other number of drafts of the same chance, as computed from the definition."""
    fixed, each = 0.020, 0.001
    for right in (1, 2, 3, 4):
        for num_sequences in (1, 3, 10, 30, 100):
            policy = trained(right, fixed=fixed, each=each)
            chance = policy._chance(make_sequence(3))
            counts = chosen(policy, num_sequences)

            def rate(counts, chance=chance, num_sequences=num_sequences):
                tokens = num_sequences + sum(chance**k for count in counts for k in range(1, count + 1))
                return tokens / (fixed + each * (num_sequences + sum(counts)))

            assert rate(counts) >= max(rate([number] * num_sequences) for number in range(5)) - 1e-9


def test_text_that_ceases_to_repeat_itself_loses_its_drafts():
    policy = trained()
    sequence = make_sequence(3)
    assert policy.choose([sequence], [[5] * 4]) == [4]
    for _ in range(60):
        policy.observe_drafts(sequence, 0, 1)
    assert policy.choose([sequence], [[5] * 4]) == [0]
    for _ in range(20):
        policy.observe_drafts(sequence, 4, 4)
    assert policy.choose([sequence], [[5] * 4]) == [4]


def test_proposing_that_costs_nothing_goes_on_where_nothing_is_chosen():
    policy = trained(right_of_four=0)
    assert [policy.num_to_propose([make_sequence(3)]) for _ in range(3)] == [4, 4, 4]


def test_proposing_that_costs_is_left_where_it_does_not_pay_and_tried_again():
    policy = trained(right_of_four=0, proposing=0.040)
    asked = [policy.num_to_propose([make_sequence(3)]) for _ in range(100)]
    assert set(asked) == {0, 4}
    assert asked.count(4) == 3


def test_proposing_that_costs_is_done_where_it_pays():
    policy = trained(right_of_four=2, proposing=0.008)
    assert policy.num_to_propose([make_sequence(3)]) > 0
    assert policy.num_to_propose([make_sequence(3) for _ in range(100)]) == 0


@pytest.mark.parametrize("sizes", [(1, 2048), (1, 8, 64, 500), (3, 130)])
def test_step_cost_finds_the_line(sizes):
    cost = StepCost()
    for num_tokens in sizes * 3:
        cost.observe(num_tokens, 0.02 + 0.001 * num_tokens)
    assert cost.line() == (pytest.approx(0.02), pytest.approx(0.001))


def test_step_cost_is_not_misled_by_a_disturbed_step():
    cost = StepCost()
    for number in range(9):
        for num_tokens in (1, 100):
            cost.observe(num_tokens, (0.02 + 0.001 * num_tokens) * (50 if number % 4 == 0 else 1))
    assert cost.line() == (pytest.approx(0.02), pytest.approx(0.001))


def test_step_cost_without_a_slope_takes_tokens_for_free():
    cost = StepCost()
    assert cost.line() == (0.0, 0.0)
    cost.observe(7, 0.5)
    cost.observe(0, 9.0)
    assert cost.line() == (pytest.approx(0.5), 0.0)


def test_step_cost_is_never_negative():
    cost = StepCost()
    for num_tokens, seconds in ((1, 0.5), (100, 0.1)):
        cost.observe(num_tokens, seconds)
    fixed, each = cost.line()
    assert fixed > 0
    assert each == 0.0
    steep = StepCost()
    for num_tokens, seconds in ((10, 0.001), (20, 1.0)):
        steep.observe(num_tokens, seconds)
    fixed, each = steep.line()
    assert fixed >= 0
    assert each > 0
