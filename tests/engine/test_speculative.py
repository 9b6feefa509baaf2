"""Which of the drafts are part of the answer, and that the answer is what it is without them."""

from __future__ import annotations

import pytest
import torch
from schedulers import make_sequence
from tiny_models import save_model

from infer.engine.config import EngineConfig
from infer.engine.draft_policy import AllDrafts
from infer.engine.engine import Engine
from infer.engine.request import Request
from infer.engine.sampler import SampledToken, Sampler
from infer.engine.sampling_params import SamplingParams
from infer.engine.seeding import derive_seed
from infer.engine.speculative import Drafting, accept_drafts
from infer.engine.step_sampling import sample_runs

PROMPT = [40, 41, 42, 43, 40, 41, 42, 43, 40, 41]


class Oracle:
    """Proposes what an earlier run answered, with every `wrong_every`-th draft spoilt; 0 spoils none."""

    def __init__(self, answers, wrong_every):
        self._answers = answers
        self._wrong_every = wrong_every

    def propose(self, sequences, num_tokens):
        proposed = []
        for sequence in sequences:
            begin = len(sequence.output_token_ids)
            drafts = list(self._answers[sequence.request_id][begin : begin + num_tokens])
            for index in range(len(drafts)):
                if self._wrong_every and (begin + index) % self._wrong_every == 0:
                    drafts[index] = (drafts[index] + 1) % 300
            proposed.append(drafts)
        return proposed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("llama"), "llama")


def make_engine(folder, **config):
    return Engine(EngineConfig(model=str(folder), dtype="float32", attention_backend="reference", **config))


def generate(engine, params, num_rows=4):
    return engine.generate([[*PROMPT, 50 + row] for row in range(num_rows)], params, seed=5)


def tokens(*ids):
    return [SampledToken(token_id) for token_id in ids]


def test_run_ends_with_the_first_token_that_was_not_guessed():
    sequence = make_sequence(3)
    sequence.draft_token_ids = [1, 2]
    runs = [accept_drafts(sequence, tokens(*drawn)) for drawn in ((1, 2, 3), (1, 5, 2), (8, 2, 3))]
    assert [[token.token_id for token in run] for run in runs] == [[1, 2, 3], [1, 5], [8]]


def test_without_drafts_all_that_is_drawn_is_kept():
    assert accept_drafts(make_sequence(3), tokens(9, 9, 4)) == tokens(9, 9, 4)


def test_row_without_a_token_ends_its_run():
    sequence = make_sequence(3)
    sequence.draft_token_ids = [1, 2, 3]
    failed = SampledToken(-1, error_code="nan_logits")
    run = accept_drafts(sequence, [*tokens(1), failed, *tokens(3, 4)])
    assert run == [*tokens(1), failed]


PARAMS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True),
    "logprobs": SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=2),
    "temperature": SamplingParams(temperature=1.0, max_tokens=24, ignore_eos=True),
    "cut": SamplingParams(temperature=0.8, top_k=20, top_p=0.9, min_p=0.02, max_tokens=24, ignore_eos=True),
    "penalties": SamplingParams(
        temperature=0.7, presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=1.3, max_tokens=24
    ),
    "greedy penalties": SamplingParams(temperature=0.0, frequency_penalty=1.5, repetition_penalty=1.3, max_tokens=24),
    "rules": SamplingParams(
        temperature=0.9, logit_bias={1: 9.0, 60: 2.0}, min_tokens=9, bad_words=("the dog",), max_tokens=24
    ),
    "allowed": SamplingParams(temperature=1.0, allowed_token_ids=(50, 51, 52, 53), max_tokens=24),
    "stop ids": SamplingParams(temperature=1.0, stop_token_ids=tuple(range(60, 90)), max_tokens=24),
    "stop strings": SamplingParams(temperature=1.0, stop=("e", "a"), max_tokens=24, min_tokens=2),
}


@pytest.mark.parametrize("wrong_every", [0, 1, 3], ids=["right", "wrong", "mixed"])
@pytest.mark.parametrize("name", PARAMS)
def test_completions_are_the_same_with_drafts_whatever_they_are(folder, name, wrong_every):
    expected = generate(make_engine(folder, speculative="off"), PARAMS[name])
    engine = make_engine(folder, speculative="always")
    engine.fit_cache()
    engine._speculation = Drafting(Oracle([each.token_ids for each in expected], wrong_every), AllDrafts(4))
    completions = generate(engine, PARAMS[name])
    if name == "logprobs":
        for completion, other in zip(completions, expected, strict=True):
            ours, theirs = completion.choices[0].logprobs, other.choices[0].logprobs
            assert [each.token_id for each in ours] == [each.token_id for each in theirs]
            assert [each.logprob for each in ours] == pytest.approx([each.logprob for each in theirs], abs=1e-4)
    else:
        assert completions == expected
    stats = engine.stats()
    assert stats.completion_tokens_total == sum(len(completion.token_ids) for completion in expected)
    if wrong_every == 0 and stats.completion_tokens_total > 60:
        assert stats.accepted_tokens_total == stats.draft_tokens_total > stats.completion_tokens_total // 2
    if wrong_every == 1:
        assert stats.accepted_tokens_total == 0


def test_right_drafts_leave_a_fifth_of_the_steps(folder):
    params = SamplingParams(temperature=0.0, max_tokens=21, ignore_eos=True)
    expected = generate(make_engine(folder, speculative="off"), params)
    engine = make_engine(folder, speculative="always")
    engine.fit_cache()
    engine._speculation = Drafting(Oracle([each.token_ids for each in expected], 0), AllDrafts(4))
    assert generate(engine, params) == expected
    assert engine.stats().num_steps == 1 + 20 // 5


def test_nan_logits_fail_with_drafts_the_rows_that_they_fail_without(folder):
    engine = make_engine(folder, speculative="off", enable_prefix_caching=False)
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    answers = [completion.token_ids for completion in generate(engine, params)]
    poisoned = next(token for token in answers[0] if token not in answers[1])
    with torch.no_grad():
        engine.network.model.get_input_embeddings().weight[poisoned] = torch.nan
    expected = generate(engine, params)
    assert {completion.error_code for completion in expected} == {None, "nan_logits"}
    engine._speculation = Drafting(Oracle(answers, 0), AllDrafts(4))
    for completion, other in zip(generate(engine, params), expected, strict=True):
        assert completion.error_code == other.error_code
        if other.error_code is None:
            assert completion == other
    assert engine.stats().draft_tokens_total > 0


def test_tokens_with_drafts_have_the_distribution_of_the_logits():
    """Chi-square of what is drawn behind a draft that was right, and in place of one, against the plain softmax."""
    vocab_size, num_draws = 8, 20_000
    sampler = Sampler(vocab_size=vocab_size, eos_token_ids=(), encode=lambda text: [])
    logits = torch.randn(2, vocab_size, generator=torch.Generator().manual_seed(0))
    params = SamplingParams(temperature=0.7)
    draft = 3
    rows = {}
    for index in range(num_draws):
        sequence = make_sequence([1])
        sequence.draft_token_ids = [draft]
        row = sampler.row(params, prompt_token_ids=(1,), output_token_ids=[], seed=derive_seed(0, index, 0))
        rows[sequence] = row.ahead(sequence.draft_token_ids)
    runs = sample_runs(sampler, logits.repeat(num_draws, 1), rows).values()
    first = torch.bincount(torch.tensor([run[0].token_id for run in runs]), minlength=vocab_size)
    second = torch.bincount(torch.tensor([run[1].token_id for run in runs if len(run) == 2]), minlength=vocab_size)
    assert second.sum() == first[draft] > 500
    for counts, position in ((first, 0), (second, 1)):
        expected = (logits[position] / 0.7).softmax(-1) * counts.sum()
        # 7 degrees of freedom: above 24.3 once in a thousand.
        assert ((counts - expected) ** 2 / expected).sum() < 24.3


def test_only_sequences_that_wait_for_their_next_token_are_drafted_for():
    asked = []

    class Recorder:
        def propose(self, sequences, num_tokens):
            asked.append(list(sequences))
            return [[5] * num_tokens for _ in sequences]

    decoding, prefilling = make_sequence(4), make_sequence(4)
    decoding.num_computed_tokens, prefilling.num_computed_tokens = 3, 2
    Drafting(Recorder(), AllDrafts(2)).propose([decoding, prefilling])
    assert asked == [[decoding]]
    assert (decoding.draft_token_ids, prefilling.draft_token_ids) == ([5, 5], [])


def test_paused_engine_keeps_its_answers_with_drafts(folder):
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    expected = generate(make_engine(folder, speculative="off"), params, num_rows=1)
    engine = make_engine(folder, speculative="always", prompt_lookup_min=1)
    engine.add_request(Request(0, (*PROMPT, 50), params))
    completions = engine.step()
    engine.pause()
    assert [engine.step() for _ in range(3)] == [[], [], []]
    engine.resume()
    while engine.has_unfinished_requests():
        completions += engine.step()
    assert completions == expected
