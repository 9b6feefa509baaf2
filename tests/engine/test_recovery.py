"""Whom a step that raised costs its answer, and how large the next ones are."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from faults import inject
from recovering import GREEDY, HARMLESS, SAMPLED, SHORT, answers, at_random, make_engine, run
from tiny_models import save_model

from infer.engine.errors import ModelError
from infer.engine.request import Request

pytestmark = pytest.mark.reliability


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {"llama": save_model(tmp_path_factory.mktemp("llama"), "llama")}


@pytest.fixture(scope="module")
def undisturbed(folders):
    """Answers of an engine in which nothing fails."""
    engine = make_engine(folders["llama"], enable_prefix_caching=False)
    return lambda prompts, params: answers(engine.generate(prompts, params))


def failing_for(engine, token_id, error):
    """Steps fail that have `token_id` among what they compute, as they would of a row that brings it with it."""
    engine.fit_cache()
    real = engine._executor.runner.execute

    def execute(batch):
        if (batch.input_ids == token_id).any():
            raise error
        return real(batch)

    engine._executor.runner.execute = execute


def with_hostile(prompts, places, token_id=300):
    assert all(token_id not in prompt for prompt in prompts)
    return [[*prompt, token_id] if number in places else prompt for number, prompt in enumerate(prompts)]


def test_row_of_which_steps_fail_ends_alone(folders, undisturbed):
    expected = undisturbed(HARMLESS, SHORT)
    engine = make_engine(folders["llama"])
    failing_for(engine, 300, ValueError("no such thing"))
    completions = run(engine, with_hostile(HARMLESS, {3, 4}), SHORT)
    for number, completion in enumerate(completions):
        if number in (3, 4):
            assert (completion.error_code, completion.error) == ("internal", "ValueError: no such thing")
            assert (completion.finish_reason, completion.token_ids) == ("error", ())
            assert completion.num_prompt_tokens == len(HARMLESS[number]) + 1
        else:
            assert [choice.token_ids for choice in completion.choices] == expected[number]
    assert engine.stats().num_requests_finished == len(HARMLESS)


def test_row_that_never_has_memory_enough_ends_alone(folders):
    engine = make_engine(folders["llama"])
    failing_for(engine, 300, MemoryError("unable to allocate 1 GiB"))
    completions = run(engine, with_hostile(HARMLESS[:4], {1}), SHORT)
    assert [completion.error_code for completion in completions] == [None, "oom", None, None]
    assert completions[1].error == "MemoryError: unable to allocate 1 GiB"


def test_step_that_wants_memory_is_cut_into_smaller_ones_before_anybody_fails(folders, undisturbed):
    engine = make_engine(folders["llama"])
    engine.fit_cache()
    real, sizes = engine._executor.runner.execute, []

    def execute(batch):
        sizes.append(batch.input_ids.numel())
        if sizes[-1] > 20:
            raise MemoryError
        return real(batch)

    engine._executor.runner.execute = execute
    expected = undisturbed(HARMLESS, SHORT)
    assert answers(run(engine, HARMLESS, SHORT)) == expected
    assert answers(run(engine, [HARMLESS[5]], SHORT)) == [expected[5]]
    assert len(HARMLESS[5]) > 20


def test_limits_shrink_with_each_failure_and_grow_back_with_good_steps(folders):
    engine = make_engine(folders["llama"], max_num_seqs=16, max_num_batched_tokens=256)
    for number in range(16):
        engine.add_request(Request(number, (5, 6, number + 7), replace(GREEDY, max_tokens=200)))
    limits = engine.scheduler.limits
    seen = []
    errors = [RuntimeError("a"), RuntimeError("b")]
    inject(engine, "execute", lambda: errors.pop() if errors else None)
    for _ in range(150):
        try:
            engine.step()
        except RuntimeError as error:
            engine.recover(error)
        if (limits.max_num_seqs, limits.max_num_batched_tokens) not in seen:
            seen.append((limits.max_num_seqs, limits.max_num_batched_tokens))
        assert len(engine.scheduler.running) <= limits.max_num_seqs
    assert seen == [(8, 128), (4, 64), (16, 256)]
    assert len(engine.scheduler.running) == 16


def test_limit_of_tokens_stays_where_a_prompt_must_fit_into_a_step(folders, undisturbed):
    engine = make_engine(folders["llama"], enable_chunked_prefill=False, max_model_len=200, max_num_batched_tokens=200)
    rng = random.Random(0)
    fails, failed = at_random(engine, rng, 0.3)
    inject(engine, "execute", fails)
    assert answers(run(engine, HARMLESS, SHORT)) == undisturbed(HARMLESS, SHORT)
    assert failed
    assert engine.scheduler.limits.max_num_batched_tokens == 200


def test_answer_that_cannot_be_booked_costs_its_own_row_only(folders, undisturbed):
    """Whose it is is known: no smaller steps are needed to find out."""
    expected = undisturbed(HARMLESS, SAMPLED)
    engine = make_engine(folders["llama"])
    real = engine.tokenizer.decode

    def decode(token_ids, **settings):
        if list(token_ids) == list(expected[2][1]):
            raise OverflowError("what is this")
        return real(token_ids, **settings)

    engine.tokenizer.decode = decode
    completions = run(engine, HARMLESS, SAMPLED)
    assert [completion.error_code for completion in completions] == [None, None, "internal", *[None] * 4]
    assert completions[2].error == "OverflowError: what is this"
    assert completions[2].num_generated_tokens == 3 * 7 + 2
    del completions[2], expected[2]
    assert answers(completions) == expected
    assert engine.scheduler.limits.max_num_seqs == 256


def test_failure_of_many_rows_in_a_row_is_no_rows_fault(folders):
    engine = make_engine(folders["llama"])
    broken = ZeroDivisionError("ours")
    inject(engine, "sample", lambda: broken)
    for number in range(20):
        engine.add_request(Request(number, (5, 6, 7), GREEDY))
    failed = []

    def go_on():
        while True:
            try:
                failed.extend(engine.step())
            except ZeroDivisionError as error:
                failed.extend(engine.recover(error))

    with pytest.raises(ZeroDivisionError, match="ours"):
        go_on()
    assert [completion.error_code for completion in failed] == ["internal"] * 7


def test_rows_that_end_well_between_failures_keep_the_job_alive(folders):
    engine = make_engine(folders["llama"])
    failing_for(engine, 300, ValueError("no such thing"))
    prompts = with_hostile([[5, 6, number + 7] for number in range(18)], set(range(0, 18, 2)))
    completions = run(engine, prompts, SHORT)
    assert [completion.error_code for completion in completions] == ["internal", None] * 9


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("Triton Error [CUDA]: misaligned address"),
        ModelError("cannot be run"),
    ],
)
def test_error_that_would_come_again_ends_the_job(folders, error):
    engine = make_engine(folders["llama"])
    for number in range(4):
        engine.add_request(Request(number, (5, 6, 7), GREEDY))
    with pytest.raises(type(error)) as raised:
        engine.recover(error)
    assert raised.value is error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_interrupt_is_not_recovered_from(folders, error):
    engine = make_engine(folders["llama"])
    inject(engine, "execute", lambda: error)
    with pytest.raises(type(error)):
        engine.generate([[5, 6, 7]], GREEDY)


def test_answers_that_the_failed_step_had_finished_are_not_lost(folders):
    engine = make_engine(folders["llama"])
    errors = [RuntimeError("late")]
    inject(engine, "observe", lambda: errors.pop() if errors and len(engine._requests.finished) == 2 else None)
    params = [replace(GREEDY, max_tokens=3), replace(GREEDY, max_tokens=3), replace(GREEDY, max_tokens=9)]
    for number, each in enumerate(params):
        engine.add_request(Request(number, (5, 6, number + 7), each))
    completions = []
    while engine.has_unfinished_requests():
        try:
            completions += engine.step()
        except RuntimeError as error:
            completions += engine.recover(error)
            assert [completion.request_id for completion in completions] == [0, 1]
    assert [(each.request_id, len(each.token_ids)) for each in completions] == [(0, 3), (1, 3), (2, 9)]


def test_message_of_a_failure_is_one_short_line(folders):
    engine = make_engine(folders["llama"])
    inject(engine, "execute", lambda: ValueError("a\nb" + "x" * 1000))
    (completion,) = engine.generate([[5, 6, 7]], GREEDY)
    assert completion.error.startswith("ValueError: a bxxx")
    assert len(completion.error) == 300


def test_memory_of_the_failed_step_is_given_back(folders):
    class Held:
        alive = 0

        def __init__(self):
            Held.alive += 1

        def __del__(self):
            Held.alive -= 1

    engine = make_engine(folders["llama"])
    for number in range(2):
        engine.add_request(Request(number, (5, 6, 7), GREEDY))

    def execute(batch):
        held = Held()
        raise MemoryError(f"{held is None}")

    engine._executor.runner.execute = execute
    with pytest.raises(MemoryError) as raised:
        engine.step()
    assert Held.alive == 1
    engine.recover(raised.value)
    assert Held.alive == 0


def test_what_cannot_be_foreseen_of_a_request_refuses_it_on_arrival(folders):
    engine = make_engine(folders["llama"])

    def encode(word, **settings):
        raise OverflowError(word)

    engine.tokenizer.encode = engine._sampler._encode = encode
    completions = engine.generate([[5, 6]], replace(GREEDY, bad_words=("x",)))
    assert [(each.error_code, each.error) for each in completions] == [("internal", "OverflowError: x")]
    assert not engine.has_unfinished_requests()
