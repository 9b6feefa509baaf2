"""A second model's guesses: right where it is the same model, harmless where it is another."""

from __future__ import annotations

import json

import pytest
from tiny_models import VOCAB_SIZE, save_model

from infer.engine.config import EngineConfig
from infer.engine.draft_model import spec_of_both
from infer.engine.engine import Engine
from infer.engine.errors import ConfigError
from infer.engine.request import Request
from infer.engine.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1.0, presence_penalty=0.5, top_p=0.95, max_tokens=16, ignore_eos=True)
PROMPTS = [[40 + row, 41, 42, *range(50, 50 + 5 * row)] for row in range(5)]
SHARED = [[*range(60, 100), row] for row in range(5)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """By name: `target`, `other` (smaller, other weights), `padded` (the target's weights would not fit it)."""
    folder = tmp_path_factory.mktemp("models")
    return {
        "target": save_model(folder / "target", "llama"),
        "other": save_model(folder / "other", "llama", seed=1, num_hidden_layers=1, num_key_value_heads=4),
        "narrow": save_model(folder / "narrow", "llama", seed=1, num_hidden_layers=1, vocab_size=VOCAB_SIZE - 20),
        "wide": save_model(folder / "wide", "llama", seed=1, num_hidden_layers=1, vocab_size=VOCAB_SIZE + 20),
        "short": save_model(folder / "short", "llama", seed=1, num_hidden_layers=1, max_position_embeddings=24),
    }


def make_engine(models, draft=None, **config):
    settings = {"dtype": "float32", "attention_backend": "reference", "speculative": "always" if draft else "off"}
    draft_model = str(models[draft]) if draft else None
    return Engine(EngineConfig(model=str(models["target"]), speculative_model=draft_model, **{**settings, **config}))


def answers(engine, params=GREEDY, prompts=PROMPTS):
    return [completion.token_ids for completion in engine.generate(prompts, params, seed=1)]


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_same_model_guesses_everything_right_with_the_same_noise(models, params):
    engine = make_engine(models, "target")
    assert answers(engine, params) == answers(make_engine(models), params)
    stats = engine.stats()
    assert stats.accepted_tokens_total == stats.draft_tokens_total > 0
    # The first token, then five a step.
    assert stats.num_steps == 1 + 3


@pytest.mark.parametrize("draft", ["other", "narrow", "wide", "short"])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_another_model_changes_no_answer(models, draft, params):
    engine = make_engine(models, draft)
    assert answers(engine, params) == answers(make_engine(models), params)
    assert engine.stats().draft_tokens_total > 0


@pytest.mark.parametrize(
    "config",
    [
        {"num_blocks": 6, "enable_admission_control": False},
        {"max_num_batched_tokens": 9},
        {"block_size": 1},
        {"block_size": 5},
        {"enable_prefix_caching": False},
        {"max_num_seqs": 2},
        {"speculative": "auto"},
    ],
    ids=str,
)
@pytest.mark.parametrize("prompts", [PROMPTS, SHARED], ids=["own prompts", "shared prefix"])
def test_guesses_are_right_however_it_is_scheduled(models, config, prompts):
    engine = make_engine(models, "target", **config)
    assert answers(engine, prompts=prompts) == answers(make_engine(models), prompts=prompts)
    stats = engine.stats()
    assert stats.accepted_tokens_total > 0
    assert stats.accepted_tokens_total == stats.draft_tokens_total


def test_sequences_that_end_give_their_blocks_back(models):
    engine = make_engine(models, "target", max_num_seqs=2)
    answers(engine)
    proposer = engine._speculation._proposer
    assert proposer.propose([], 4) == []
    pool = proposer._manager.pool
    assert pool.num_free_blocks == pool.num_blocks
    pool.check()


def test_guesses_for_one_that_did_not_get_its_turn_still_stand(models):
    # The second finds the first block of four of the first one in the prefix cache of the speculative model.
    prompt = [40, 41, 42, 43, 44, 45, 46]
    (first,) = answers(make_engine(models), prompts=[prompt])
    engine = make_engine(models, "narrow", block_size=4)
    params = SamplingParams(temperature=0.0, max_tokens=len(first), ignore_eos=True)
    for number, tokens in enumerate((prompt, [*prompt, first[0], 50, 51])):
        engine.add_request(Request(number, tuple(tokens), params))
    found = {}
    while engine.has_unfinished_requests():
        found |= {each.request_id: each.token_ids for each in engine.step()}
        engine.pause()
        assert engine.step() == []
        engine.resume()
    assert list(found[0]) == list(first)


def test_token_ids_that_only_the_target_has_do_no_harm(models):
    prompts = [[VOCAB_SIZE - 1, VOCAB_SIZE - 2, 40, 41]]
    engine = make_engine(models, "narrow")
    assert answers(engine, prompts=prompts) == answers(make_engine(models), prompts=prompts)


def test_memory_for_the_cache_is_shared_by_both_models(models):
    engines = [make_engine(models), make_engine(models, "target"), make_engine(models, "narrow")]
    sizes = [spec_of_both(each.network.cache_spec, each._draft_model).num_bytes_per_block for each in engines]
    # Three layers, as many again, and one beside three.
    assert [size / sizes[0] for size in sizes] == [1, 2, pytest.approx(4 / 3)]


def test_model_with_another_vocabulary_is_refused(models, tmp_path):
    folder = save_model(tmp_path / "foreign", "llama", num_hidden_layers=1)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = sorted(vocabulary)[:2]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ConfigError, match="speculative_model has other tokens than the model") as refused:
        make_engine({**models, "foreign": folder}, "foreign")
    assert refused.value.hint == "use a smaller model of the same family, or leave --speculative-model out"


def test_model_that_is_not_used_is_not_loaded(models):
    engine = make_engine({**models, "missing": "/nonexistent"}, "missing", speculative="off")
    assert answers(engine) == answers(make_engine(models))
