"""The engine as a caller sees it: refusals, limits, seeds, failures of one among many, and its figures."""

from __future__ import annotations

import pytest
import torch
from tiny_models import VOCAB_SIZE, save_model

from infer.engine.config import EngineConfig
from infer.engine.engine import Engine
from infer.engine.errors import ConfigError, RequestError
from infer.engine.request import Request
from infer.engine.sampling_params import SamplingParams


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("llama"), "llama")


def make_engine(folder, **config):
    return Engine(EngineConfig(model=str(folder), dtype="float32", attention_backend="reference", **config))


def greedy(max_tokens=6, **settings):
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **settings)


@pytest.mark.parametrize(
    ("token_ids", "code", "message"),
    [
        ((), "empty_prompt", "the prompt has no tokens"),
        ((1,) * 512, "prompt_too_long", "the prompt has 512 tokens, and at most 511 leave room for an answer"),
        ((1,) * 513, "prompt_too_long", "the prompt has 513 tokens, and at most 511 leave room for an answer"),
        ((5, VOCAB_SIZE), "invalid_input", f"token ids must be from 0 to {VOCAB_SIZE - 1}"),
        ((5, -1), "invalid_input", f"token ids must be from 0 to {VOCAB_SIZE - 1}"),
    ],
)
def test_request_that_cannot_run_is_refused_on_arrival(folder, token_ids, code, message):
    engine = make_engine(folder)
    with pytest.raises(RequestError) as refused:
        engine.add_request(Request(0, token_ids, greedy()))
    assert (refused.value.code, str(refused.value)) == (code, message)
    assert not engine.has_unfinished_requests()


def test_prompt_one_short_of_the_limit_gets_one_token(folder):
    (completion,) = make_engine(folder).generate([[5] * 511], greedy())
    assert (completion.finish_reason, len(completion.token_ids)) == ("length", 1)


def test_output_is_clipped_at_max_model_len(folder):
    (completion,) = make_engine(folder, max_model_len=20).generate([[5] * 16], greedy(max_tokens=50))
    assert (completion.finish_reason, len(completion.token_ids)) == ("length", 4)


def test_prompt_longer_than_the_whole_cache_is_refused_and_the_others_run(folder):
    completions = make_engine(folder, num_blocks=4).generate([[5] * 10, [6] * 70, [7] * 10], greedy())
    assert [completion.error_code for completion in completions] == [None, "prompt_too_long", None]
    assert [len(completion.token_ids) for completion in completions] == [6, 0, 6]


def test_output_that_would_outgrow_the_whole_cache_is_clipped(folder):
    (completion,) = make_engine(folder, num_blocks=2).generate([[5] * 10], greedy(max_tokens=100))
    assert (completion.finish_reason, len(completion.token_ids)) == ("length", 22)


def test_refused_request_leaves_the_others_aligned(folder):
    engine = make_engine(folder)
    alone = engine.generate([[5, 6]], greedy())[0].token_ids
    completions = engine.generate([[5, 6], [], [5, 6]], greedy())
    assert [completion.token_ids for completion in completions] == [alone, (), alone]


def test_sampled_output_does_not_depend_on_neighbours(folder):
    params = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)

    def run(engine, requests):
        for request in requests:
            engine.add_request(request)
        outputs = {}
        while engine.has_unfinished_requests():
            outputs |= {completion.request_id: completion.token_ids for completion in engine.step()}
        return outputs

    requests = [Request(number, (5, 6, 7), params, seed=number) for number in range(8)]
    together = run(make_engine(folder), requests)
    alone = [run(make_engine(folder, num_blocks=4), [request])[request.request_id] for request in requests[:3]]
    backwards = run(make_engine(folder, num_blocks=7, max_num_batched_tokens=4), requests[::-1])
    assert [together[number] for number in range(3)] == alone
    assert together == backwards
    assert len(set(together.values())) == len(requests), "rows share their noise"


def test_eos_ids_of_model_and_tokenizer_both_stop(folder):
    engine = make_engine(folder)
    tokenizer = engine.tokenizer
    assert engine.tokenizer.eos_token_ids == {1}
    biased = SamplingParams(temperature=0.0, max_tokens=9, logit_bias={1: 100.0})
    (completion,) = engine.generate([[5, 6, 7]], biased)
    assert (completion.finish_reason, completion.token_ids, completion.text) == ("stop", (1,), "")
    assert tokenizer.decode([1], skip_special_tokens=False) == "<|im_end|>"


def test_stop_string_ends_the_text_before_it(folder):
    engine = make_engine(folder)
    (free,) = engine.generate([[5, 6, 7]], greedy(max_tokens=20))
    stop = free.text[3:6]
    (stopped,) = engine.generate([[5, 6, 7]], greedy(max_tokens=20, stop=(stop,)))
    assert (stopped.finish_reason, stopped.choices[0].stop_reason) == ("stop", stop)
    assert stopped.text == free.text[: free.text.index(stop)]


def test_logprobs_come_with_every_token_and_with_the_alternatives(folder):
    (completion,) = make_engine(folder).generate([[5, 6, 7]], greedy(logprobs=3))
    (choice,) = completion.choices
    assert choice.logprobs is not None
    assert [each.token_id for each in choice.logprobs] == list(choice.token_ids)
    for each in choice.logprobs:
        assert each.top[0] == (each.token_id, each.logprob)
        assert [value for _, value in each.top] == sorted((value for _, value in each.top), reverse=True)


def test_nan_logits_of_one_row_fail_that_row_alone(folder):
    engine = make_engine(folder, enable_prefix_caching=False)
    expected = engine.generate([[5, 6], [8, 9]], greedy())
    embedding = engine.network.model.get_input_embeddings()
    with torch.no_grad():
        embedding.weight[300] = torch.nan
    completions = engine.generate([[5, 6], [300, 7], [8, 9]], greedy())
    assert [completion.token_ids for completion in completions] == [expected[0].token_ids, (), expected[1].token_ids]
    assert completions[1].error_code == "nan_logits"
    assert completions[1].error == "the model's logits are not finite, at output token 0"


@pytest.mark.parametrize("attention_backend", ["reference", "cpu"])
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_blocks_that_held_nan_harm_nobody_who_gets_them_next(folder, attention_backend, kv_cache_dtype):
    """What is masked counts with the weight 0, and 0 times NaN is NaN."""
    config = {"num_blocks": 3, "max_num_seqs": 1, "kv_cache_dtype": kv_cache_dtype}
    engine = Engine(EngineConfig(model=str(folder), dtype="float32", attention_backend=attention_backend, **config))
    prompts = [[5 + number, 6] for number in range(3)]
    expected = [completion.token_ids for completion in engine.generate(prompts, greedy())]
    with torch.no_grad():
        engine.network.model.get_input_embeddings().weight[300] = torch.nan
    hostile = [300, *range(10, 45)]
    completions = engine.generate([hostile, prompts[0], hostile, prompts[1], prompts[2]], greedy())
    assert [completion.error_code for completion in completions] == ["nan_logits", None, "nan_logits", None, None]
    assert [completions[number].token_ids for number in (1, 3, 4)] == expected


def test_nan_logits_in_the_middle_of_an_answer_fail_that_row_alone(folder):
    engine = make_engine(folder, enable_prefix_caching=False)
    expected = engine.generate([[5, 6], [8, 9], [10, 11]], greedy(max_tokens=8))
    hostile = expected[1].token_ids[3]
    others = {*expected[0].token_ids, *expected[2].token_ids, 5, 6, 10, 11}
    assert hostile not in {*others, *expected[1].token_ids[:3], 8, 9}
    with torch.no_grad():
        engine.network.model.get_input_embeddings().weight[hostile] = torch.nan
    completions = engine.generate([[5, 6], [8, 9], [10, 11]], greedy(max_tokens=8))
    assert [completion.token_ids for completion in completions[::2]] == [each.token_ids for each in expected[::2]]
    assert (completions[1].error_code, completions[1].num_output_tokens) == ("nan_logits", 4)
    assert completions[1].token_ids == expected[1].token_ids[:4]


def test_abort_in_any_state_releases_everything(folder):
    engine = make_engine(folder, max_num_seqs=1)
    for number in range(3):
        engine.add_request(Request(number, (5, 6, 7), greedy(max_tokens=50)))
    engine.step()
    engine.abort_request(0)
    engine.abort_request(2)
    engine.scheduler.check()
    finished = []
    while engine.has_unfinished_requests():
        finished += engine.step()
    assert [completion.request_id for completion in finished] == [1]
    assert engine.scheduler.kv_cache_manager.pool.num_free_blocks == engine.stats().num_blocks


def test_stats_count_every_token_once(folder):
    engine = make_engine(folder, num_blocks=8, enable_admission_control=False)
    prompts = [[5] * 20, [6] * 20, [7] * 20, [8] * 20]
    completions = engine.generate(prompts, greedy(max_tokens=20))
    stats = engine.stats()
    assert stats.num_preemptions_total > 0
    assert stats.prompt_tokens_total == 80
    assert stats.completion_tokens_total == sum(len(completion.token_ids) for completion in completions) == 80
    assert stats.num_requests_finished == 4
    assert stats.prefix_cache_queries == 80
    assert set(stats.seconds) == {"draft", "schedule", "prepare", "execute", "sample", "update", "detokenize"}
    assert stats.kv_cache_usage == 0.0


def test_parameters_with_tokens_that_the_model_does_not_have_are_refused(folder):
    engine = make_engine(folder)
    engine.check_sampling_params(SamplingParams(stop_token_ids=(VOCAB_SIZE - 1,)))
    with pytest.raises(ConfigError, match="stop_token_ids must be below the vocabulary size"):
        engine.check_sampling_params(SamplingParams(stop_token_ids=(VOCAB_SIZE,)))


def test_paused_engine_loses_nothing(folder):
    engine = make_engine(folder)
    expected = [completion.token_ids for completion in engine.generate([[5, 6, 7], [8, 9]], greedy())]
    for number, prompt in enumerate(([5, 6, 7], [8, 9])):
        engine.add_request(Request(number, tuple(prompt), greedy()))
    completions = engine.step()
    engine.pause()
    assert [engine.step() for _ in range(3)] == [[], [], []]
    engine.resume()
    while engine.has_unfinished_requests():
        completions += engine.step()
    assert [completion.token_ids for completion in sorted(completions, key=lambda each: each.request_id)] == expected


def test_cache_line_says_how_many_blocks_of_how_many_tokens(folder):
    line = "kv cache: 40 blocks of 16 tokens, 640 tokens in 0.9 MiB of float32"
    assert make_engine(folder, num_blocks=40).fit_cache() == line


def test_cache_line_says_how_much_smaller_a_quantised_cache_is(folder):
    line = "kv cache: 40 blocks of 16 tokens, 640 tokens in 0.3 MiB of fp8"
    assert make_engine(folder, num_blocks=40, kv_cache_dtype="fp8").fit_cache() == line


def test_model_line_says_what_runs_where(folder):
    assert make_engine(folder, max_model_len=100).describe() == [
        f"model {folder}, float32 on cpu, reference attention, up to 100 tokens a row"
    ]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_model_len": 513}, "max_model_len must be at most 512: 513"),
        ({"device": "gpu"}, "device must be auto, cpu or cuda: gpu"),
    ],
)
def test_setting_that_cannot_work_with_the_model_is_refused(folder, config, message):
    with pytest.raises(ConfigError) as refused:
        make_engine(folder, **config)
    assert str(refused.value) == message
