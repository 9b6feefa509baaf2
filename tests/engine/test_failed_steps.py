"""Every answer as if nothing had been, wherever steps failed."""

from __future__ import annotations

import random

import pytest
from faults import PLACES, inject
from recovering import BEAMS, GREEDY, PROMPTS, SAMPLED, SCARCE, SHORT, SWAP, answers, at_random, make_engine, run
from tiny_models import save_model

pytestmark = pytest.mark.reliability


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {
        kind: save_model(tmp_path_factory.mktemp(kind), kind, **settings)
        for kind, settings in (("llama", {}), ("gemma3_text", {"sliding_window": 8}))
    }


@pytest.fixture(scope="module")
def undisturbed(folders):
    """Answers of an engine in which nothing fails."""
    engine = make_engine(folders["llama"], enable_prefix_caching=False)
    return lambda prompts, params: answers(engine.generate(prompts, params))


CASES = {
    "greedy": ("llama", GREEDY, {"max_num_batched_tokens": 64}),
    "drafts": ("llama", GREEDY, {"speculative": "always", "block_size": 4}),
    "swapped": ("llama", GREEDY, SWAP),
    "windowed": ("gemma3_text", GREEDY, {"block_size": 4, "speculative": "always"}),
    "sampled": ("llama", SAMPLED, SCARCE),
    "beams": ("llama", BEAMS, SWAP),
}


@pytest.fixture(scope="module")
def expected(folders):
    """Without any failure, each with the same settings: they change no answer, as the equivalence tests tell."""
    known = {}

    def of(case):
        if case not in known:
            kind, params, config = CASES[case]
            known[case] = answers(run(make_engine(folders[kind], **config), PROMPTS, params))
        return known[case]

    return of


@pytest.fixture
def impatient(monkeypatch):
    """Limits that grow back with the next good step, so that there is more than one request to fail."""
    monkeypatch.setattr("infer.engine.recovery._GOOD_STEPS", 1)
    monkeypatch.setattr("infer.engine.recovery._MOST_GOOD_STEPS", 1)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("case", CASES)
def test_answers_are_the_same_where_steps_failed_anywhere(folders, expected, case):
    check_case(folders, expected, case, seed=0)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize("case", CASES)
def test_answers_are_the_same_where_steps_failed_anywhere_at_length(folders, expected, case, seed):
    check_case(folders, expected, case, seed=seed)


def check_case(folders, expected, case, seed):
    kind, params, config = CASES[case]
    engine = make_engine(folders[kind], **config)
    rng, failed = random.Random(seed), []
    for place in PLACES:
        fails, failed_there = at_random(engine, rng, 0.1)
        inject(engine, place, fails, after=rng.random() < 0.5)
        failed.append(failed_there)
    assert answers(run(engine, PROMPTS, params)) == expected(case)
    assert sum(map(len, failed)) >= 3, f"seed {seed} injects next to nothing"


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("place", PLACES)
def test_no_block_of_a_failed_step_is_taken_for_a_computed_one(folders, undisturbed, place, after):
    """The first step fills the prefix that all of the others share, or fails to."""
    engine = make_engine(folders["llama"], block_size=4, max_num_seqs=4)
    prompts = [[*PROMPTS[-1][:20], 10 + number] for number in range(6)]
    expected = undisturbed(prompts, SHORT)
    errors = iter([RuntimeError("injected"), None, RuntimeError("injected")])
    engine.fit_cache()
    real = engine.recover

    def recover(error):
        # What a block held that somebody takes for computed.
        for tensor in engine._executor.runner._kv_cache.tensors():
            tensor.fill_(7.0)
        return real(error)

    engine.recover = recover
    inject(engine, place, lambda: next(errors, None), after=after)
    assert answers(run(engine, prompts, SHORT)) == expected
    assert next(errors, None) is None
