"""Lengths are learned from answers that ended, and not only from the short ones that ended first."""

from __future__ import annotations

import numpy as np
import pytest

from infer.engine.output_lengths import OutputLengths


def predict(lengths, *answers, max_tokens=640):
    """Means and deviations for unfinished answers of so many tokens; all but the first run."""
    num_tokens, limits = np.array(answers, float), np.full(len(answers), float(max_tokens))
    mean, variance = lengths.forecast(num_tokens[1:], limits[1:]).lengths(num_tokens, limits)
    return mean, np.sqrt(variance)


def test_answers_are_taken_to_run_to_the_limit_until_some_have_ended():
    mean, deviation = predict(OutputLengths(), 0, 100, 639)
    assert mean.tolist() == [640, 640, 640]
    assert deviation.tolist() == [0, 0, 0]


def test_answers_of_one_length_are_expected_again():
    lengths = OutputLengths()
    for _ in range(1000):
        lengths.observe(64, 640)
    mean, _ = predict(lengths, 0)
    assert mean[0] == pytest.approx(67, abs=5)
    # Limits differ: it is the share that is learned.
    assert predict(lengths, 0, max_tokens=6400)[0][0] == pytest.approx(670, abs=50)


def test_an_answer_longer_than_usual_is_expected_to_go_on():
    lengths = OutputLengths()
    for _ in range(1000):
        lengths.observe(64, 640)
    mean, _ = predict(lengths, 300)
    assert mean[0] == 640


def test_answers_far_below_a_great_limit_are_told_apart():
    lengths = OutputLengths()
    for _ in range(5000):
        lengths.observe(40, 32_768)
    mean, _ = predict(lengths, 0, max_tokens=32_768)
    assert mean[0] < 100


def test_short_answers_that_end_first_do_not_hide_the_long_ones_that_run():
    lengths = OutputLengths()
    for _ in range(10):
        lengths.observe(10, 640)
    # 90 others have passed the length at which those ended.
    alone, _ = predict(lengths, 0)
    mean, _ = predict(lengths, 0, *[100] * 90)
    assert alone[0] < 200
    assert mean[0] > 550


def test_mean_and_deviation_are_those_of_what_was_seen():
    generator = np.random.default_rng(0)
    seen = np.clip(generator.lognormal(5, 0.5, 5000), 1, 640).astype(int)
    lengths = OutputLengths()
    for length in seen.tolist():
        lengths.observe(length, 640)
    mean, deviation = predict(lengths, 0)
    assert mean[0] == pytest.approx(seen.mean() + 5, rel=0.04)
    assert deviation[0] == pytest.approx(seen.std(), rel=0.05)


@pytest.mark.parametrize("num_tokens", [0, 1, 9, 10])
def test_an_unfinished_answer_has_at_least_a_token_to_come(num_tokens):
    lengths = OutputLengths()
    lengths.observe(1, 10)
    mean, _ = predict(lengths, num_tokens, max_tokens=10)
    assert mean[0] >= num_tokens + 1
