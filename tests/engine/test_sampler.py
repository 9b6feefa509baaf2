import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from infer.engine import sampler as sampler_module
from infer.engine.request import TokenLogprob
from infer.engine.sampler import SampledToken, Sampler
from infer.engine.sampling_params import SamplingParams
from infer.engine.sampling_row import SamplingRow
from infer.engine.seeding import derive_seed
from infer.kernels.reference import sampling

GREEDY = SamplingParams(temperature=0.0)
VOCAB_SIZE = 64
SAMPLER = Sampler(vocab_size=VOCAB_SIZE, eos_token_ids={2}, encode=lambda text: {"five": [5]}.get(text.strip(), []))


def random_logits(num_rows: int, vocab_size: int = VOCAB_SIZE, *, seed: int = 0) -> Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 2


def make_row(
    params: SamplingParams, seed: int = 0, output: Sequence[int] = (), prompt: Sequence[int] = (1,)
) -> SamplingRow:
    return SAMPLER.row(
        params, prompt_token_ids=prompt, output_token_ids=output, seed=seed, num_logprobs=params.logprobs
    )


def sampled_ids(logits: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
    results = SAMPLER.sample(logits, rows)
    assert all(result.error_code is None for result in results)
    return [result.token_id for result in results]


def drawn_counts(logits: Tensor, params: SamplingParams, num_draws: int) -> Tensor:
    """How often each token of a vocabulary is drawn from the same logits with different seeds."""
    rows = [make_row(params, derive_seed(0, index, 0)) for index in range(num_draws)]
    token_ids = sampled_ids(logits.expand(num_draws, -1), rows)
    return torch.bincount(torch.tensor(token_ids), minlength=logits.shape[-1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vocab_size", [1, 2, 63, 511, 512, 1000, 1024, 3 * 128, 5003])
def test_greedy_takes_the_token_that_torch_argmax_takes(vocab_size: int, dtype: torch.dtype) -> None:
    logits = random_logits(7, vocab_size).to(dtype)
    logits[3] -= 100.0
    expected = logits.float().argmax(-1).tolist()
    assert sampled_ids(logits, [make_row(GREEDY)] * 7) == expected


@pytest.mark.parametrize("positions", [(0, 63), (5, 6, 7), (600, 1023), (511, 512), (0, 512, 1535), (1535,)])
def test_greedy_takes_the_first_of_equals(positions: tuple[int, ...]) -> None:
    logits = random_logits(2, 1536).bfloat16()
    logits[:, list(positions)] = 50.0
    assert sampled_ids(logits, [make_row(GREEDY)] * 2) == [positions[0]] * 2


def test_greedy_obeys_rules_and_penalties() -> None:
    logits = torch.zeros(4, VOCAB_SIZE)
    logits[:, 5] = 3.0
    logits[:, 9] = 2.0
    rows = [
        make_row(GREEDY),
        make_row(SamplingParams(temperature=0.0, bad_words=("five",))),
        make_row(SamplingParams(temperature=0.0, repetition_penalty=2.0), output=[5]),
        make_row(SamplingParams(temperature=0.0, logit_bias={7: 4.0})),
    ]
    assert sampled_ids(logits, rows) == [5, 9, 9, 7]


@pytest.mark.parametrize(
    ("params", "processors"),
    [
        ({"temperature": 1.0}, []),
        ({"temperature": 0.6}, [TemperatureLogitsWarper(0.6)]),
        ({"temperature": 1.7, "top_k": 5}, [TemperatureLogitsWarper(1.7), TopKLogitsWarper(5)]),
        ({"top_k": 1}, [TopKLogitsWarper(1)]),
        ({"top_k": 100}, []),
        ({"top_p": 0.8}, [TopPLogitsWarper(0.8)]),
        ({"top_p": 1e-6}, [TopPLogitsWarper(1e-6)]),
        ({"temperature": 1.5, "top_p": 0.5}, [TemperatureLogitsWarper(1.5), TopPLogitsWarper(0.5)]),
        ({"min_p": 0.2}, [MinPLogitsWarper(0.2)]),
        ({"top_k": 12, "top_p": 0.7}, [TopKLogitsWarper(12), TopPLogitsWarper(0.7)]),
        ({"min_p": 0.1, "top_p": 0.7}, [MinPLogitsWarper(0.1), TopPLogitsWarper(0.7)]),
        ({"min_p": 0.1, "top_k": 3}, [MinPLogitsWarper(0.1), TopKLogitsWarper(3)]),
    ],
)
def test_draws_follow_the_distribution_of_transformers(params: dict[str, Any], processors: list[Any]) -> None:
    num_draws = 5000
    logits = random_logits(1)
    probabilities = LogitsProcessorList(processors)(None, logits.clone()).softmax(-1)[0].double()
    counts = drawn_counts(logits, SamplingParams(**params), num_draws)
    assert counts[probabilities == 0].sum() == 0
    expected = probabilities * num_draws
    # Tokens too rare to be counted one by one are counted together.
    common = expected >= 5
    observed = torch.cat([counts[common], counts[~common].sum()[None]])
    expected = torch.cat([expected[common], expected[~common].sum()[None].clamp(min=1e-9)])
    freedom = int(common.sum())
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    assert chi_square < freedom + 4 * math.sqrt(2 * freedom) + 4


def test_draws_keep_every_token_that_the_filters_keep() -> None:
    # Nearly flat, so that each token of the nucleus shows up: exactly the set that transformers keeps.
    logits = random_logits(1) * 0.1
    kept = TopPLogitsWarper(0.6)(None, TopKLogitsWarper(30)(None, logits.clone()))[0].isfinite()
    counts = drawn_counts(logits, SamplingParams(top_k=30, top_p=0.6), 4000)
    assert torch.equal(counts > 0, kept)


def test_tokens_that_tie_with_the_last_one_are_kept() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, [3, 30]] = 2.0
    logits[0, [4, 40, 50]] = 1.0
    for params in (SamplingParams(top_k=3), SamplingParams(min_p=math.exp(-1.001))):
        assert drawn_counts(logits, params, 1000).nonzero().flatten().tolist() == [3, 4, 30, 40, 50]
    # Above p are the two at the top; one of them alone is not enough.
    top = SamplingParams(top_k=2, top_p=0.5)
    assert drawn_counts(logits, top, 1000).nonzero().flatten().tolist() == [3, 30]


@pytest.mark.parametrize("temperature", [1.0, 0.05, 1e-5])
def test_barred_tokens_are_never_drawn(temperature: float) -> None:
    logits = torch.full((1, VOCAB_SIZE), -20.0)
    logits[0, [10, 50]] = 0.0
    params = SamplingParams(temperature=temperature, allowed_token_ids=(10, 11, 50), logit_bias={11: 20.0})
    counts = drawn_counts(logits, params, 3000)
    assert counts.nonzero().flatten().tolist() == [10, 11, 50]


@pytest.mark.parametrize("vocab_size", [1000, 1536])
def test_smallest_and_greatest_draw_give_the_first_and_last_token(
    vocab_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Sums are rounded: nothing beyond the last token may be found, and none that is barred before the first.
    logits = random_logits(200, vocab_size)
    for params, first, last in (
        (SamplingParams(), 0, vocab_size - 1),
        (SamplingParams(allowed_token_ids=(600, 601, 700)), 600, 700),
        (SamplingParams(top_p=0.9999, allowed_token_ids=(600, 601, 700), temperature=50.0), 600, 700),
    ):
        sampler = Sampler(vocab_size=vocab_size, eos_token_ids=(), encode=lambda text: [])
        rows = [sampler.row(params, prompt_token_ids=[1], output_token_ids=[], seed=0)] * 200
        for draw, expected in ((0.0, first), (1 - 2.0**-53, last)):
            monkeypatch.setattr(sampler_module, "uniforms", lambda seeds, _, draw=draw: np.full(len(seeds), draw))
            assert {result.token_id for result in sampler.sample(logits, rows)} == {expected}


def test_draws_of_the_smallest_temperature_are_the_most_probable_tokens() -> None:
    logits = random_logits(9)
    rows = [make_row(SamplingParams(temperature=1e-5), seed) for seed in range(9)]
    assert sampled_ids(logits, rows) == logits.argmax(-1).tolist()


def mixed_rows() -> list[SamplingRow]:
    mixed = [
        SamplingParams(),
        SamplingParams(top_p=0.7),
        GREEDY,
        SamplingParams(top_k=4, repetition_penalty=1.3),
        SamplingParams(min_p=0.1, logprobs=2),
        SamplingParams(temperature=0.0, logit_bias={4: 3.0}),
        SamplingParams(top_k=9, top_p=0.6, bad_words=("five",)),
    ]
    return [make_row(mixed[i % 7], derive_seed(3, i, 0), [i % 5, 5] * (i % 3), [i]) for i in range(28)]


@pytest.mark.parametrize("vocab_size", [VOCAB_SIZE, 1000, 1536])
def test_rows_do_not_depend_on_their_neighbours(vocab_size: int) -> None:
    logits, rows = random_logits(28, vocab_size), mixed_rows()
    together = SAMPLER.sample(logits, rows)
    assert [SAMPLER.sample(logits[i : i + 1], rows[i : i + 1])[0] for i in range(28)] == together
    assert SAMPLER.sample(logits.flip(0), rows[::-1]) == together[::-1]


def test_rows_do_not_depend_on_how_many_are_worked_on_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, rows = random_logits(28), mixed_rows()
    together = SAMPLER.sample(logits, rows)
    monkeypatch.setattr(sampler_module, "_CHUNK_SIZE", 3 * VOCAB_SIZE)
    monkeypatch.setattr(sampling, "_CHUNK_SIZE", 3 * VOCAB_SIZE)
    assert SAMPLER.sample(logits, rows) == together


def test_rows_of_one_job_seed_draw_independently() -> None:
    # Equal logits: two rows agree as often as two draws from the distribution do, in 4 standard deviations.
    num_steps = 2000
    logits = random_logits(1).expand(num_steps, -1)
    agreement = float((logits[0].softmax(-1) ** 2).sum())
    rows = [
        [make_row(SamplingParams(), derive_seed(7, row, 0), range(step)) for step in range(num_steps)]
        for row in range(3)
    ]
    first, second, third = (np.array(sampled_ids(logits, of_one)) for of_one in rows)
    tolerance = 4 * math.sqrt(agreement * (1 - agreement) / num_steps)
    for one, other in ((first, second), (second, third), (first, third), (first[1:], second[:-1])):
        assert abs(float((one == other).mean()) - agreement) < tolerance


def test_rows_with_the_same_seed_and_position_draw_the_same() -> None:
    logits = random_logits(1).expand(2, -1)
    for seed in range(20):
        one, other = sampled_ids(logits, [make_row(SamplingParams(), seed), make_row(SamplingParams(), seed)])
        assert one == other


def test_row_sees_what_was_appended_since() -> None:
    output: list[int] = []
    row = make_row(SamplingParams(), 1, output)
    logits = random_logits(1) * 0.1
    drawn = []
    for _ in range(50):
        drawn += sampled_ids(logits, [row])
        output.append(drawn[-1])
    assert drawn == [sampled_ids(logits, [make_row(SamplingParams(), 1, output[:n])])[0] for n in range(50)]
    assert len(set(drawn)) > 20


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(), SamplingParams(top_p=0.5, logprobs=1)])
def test_logits_that_are_not_finite_fail_their_row_alone(params: SamplingParams, poison: float) -> None:
    logits = random_logits(3)
    rows = [make_row(params, seed) for seed in range(3)]
    expected = SAMPLER.sample(logits, rows)
    logits[1, 40] = poison
    expected[1] = SampledToken(-1, error_code="nan_logits")
    assert SAMPLER.sample(logits, rows) == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_row_without_any_allowed_token_fails_alone(temperature: float) -> None:
    stuck = SamplingParams(
        temperature=temperature, allowed_token_ids=(2, 5), bad_words=("five",), min_tokens=1, logprobs=1
    )
    logits = random_logits(3)
    rows = [make_row(GREEDY), make_row(stuck), make_row(GREEDY)]
    results = SAMPLER.sample(logits, rows)
    assert results[1] == SampledToken(-1, error_code="constraint_error")
    assert [results[0].token_id, results[2].token_id] == logits[[0, 2]].argmax(-1).tolist()


def test_logprobs_are_those_of_the_model() -> None:
    logits = random_logits(3)
    expected = logits.log_softmax(-1)
    shaped = SamplingParams(temperature=0.3, logprobs=2, top_k=2, logit_bias={9: 100.0})
    results = SAMPLER.sample(logits, [make_row(shaped), make_row(GREEDY), make_row(SamplingParams(0.0, logprobs=0))])
    best = expected[0].topk(2)
    assert results[0].logprob == TokenLogprob(
        9, float(expected[0, 9]), tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True))
    )
    assert results[1].logprob is None
    assert results[2].logprob == TokenLogprob(int(logits[2].argmax()), float(expected[2].max()), ())


def test_logprobs_are_at_most_as_many_as_there_are_tokens() -> None:
    (result,) = SAMPLER.sample(random_logits(1), [make_row(SamplingParams(logprobs=1000))])
    assert result.logprob is not None
    assert sorted(token_id for token_id, _ in result.logprob.top) == list(range(VOCAB_SIZE))


def test_sampling_leaves_the_logits_as_they_are() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        logits = random_logits(28).to(dtype)
        before = logits.clone()
        SAMPLER.sample(logits, mixed_rows())
        assert torch.equal(logits, before)


def test_sampling_no_rows_gives_no_tokens() -> None:
    assert SAMPLER.sample(random_logits(0), []) == []
