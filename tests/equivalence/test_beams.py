"""Beam search finds transformers' own beams, with their scores, whatever the blocks, the budget, preempted or not."""

from __future__ import annotations

import pytest
import torch
from greedy import complete_checked, make_prompts
from tiny_models import make_model, save_model

from infer.engine.sampling_params import SamplingParams

PROMPTS = make_prompts(lengths=(1, 15, 16, 33, 7))
NUM_TOKENS = 12
STOP_IDS = tuple(range(1, 384, 9))
"""So many that beams end at all lengths."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """By architecture: a saved model."""
    known = {}

    def get(model_type):
        if model_type not in known:
            known[model_type] = save_model(tmp_path_factory.mktemp(model_type), model_type)
        return known[model_type]

    return get


@torch.inference_mode()
def search_alone(model_type, *, num_beams, n, length_penalty, eos_token_ids):
    """Tokens and scores of transformers' `n` best beams for each prompt by itself."""
    model = make_model(model_type)
    model.generation_config.eos_token_id = list(eos_token_ids) or None
    beams = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_TOKENS, do_sample=False, num_beams=num_beams,
            num_return_sequences=n, length_penalty=length_penalty, pad_token_id=0, return_dict_in_generate=True,
            output_scores=True,
        )  # fmt: skip
        token_ids = [_until_end(each, eos_token_ids) for each in output.sequences[:, len(prompt) :].tolist()]
        beams.append((token_ids, output.sequences_scores.tolist()))
    return beams


def _until_end(token_ids, eos_token_ids):
    """Without the padding behind an answer that ended before others."""
    end = next((place for place, token_id in enumerate(token_ids) if token_id in eos_token_ids), NUM_TOKENS)
    return tuple(token_ids[: end + 1])


def search_ours(folder, *, num_beams, n, length_penalty, eos_token_ids, **config):
    params = SamplingParams(
        beam_width=num_beams, n=n, length_penalty=length_penalty, max_tokens=NUM_TOKENS, ignore_eos=True,
        stop_token_ids=eos_token_ids,
    )  # fmt: skip
    completions = complete_checked(folder, PROMPTS, params, **config)
    return [
        ([choice.token_ids for choice in each.choices], [choice.score for choice in each.choices])
        for each in completions
    ]


def assert_same(ours, expected):
    for (tokens, scores), (expected_tokens, expected_scores) in zip(ours, expected, strict=True):
        assert tokens == expected_tokens
        assert scores == pytest.approx(expected_scores, rel=1e-4)


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "gpt2", "qwen3_moe"])
@pytest.mark.parametrize(
    "search",
    [
        {"num_beams": 4, "n": 4, "length_penalty": 1.0, "eos_token_ids": STOP_IDS},
        {"num_beams": 3, "n": 2, "length_penalty": 0.0, "eos_token_ids": STOP_IDS},
        {"num_beams": 5, "n": 1, "length_penalty": 2.5, "eos_token_ids": STOP_IDS[:3]},
        {"num_beams": 2, "n": 2, "length_penalty": -1.0, "eos_token_ids": STOP_IDS[:1]},
        {"num_beams": 4, "n": 3, "length_penalty": 1.0, "eos_token_ids": ()},
    ],
    ids=["4 beams", "no penalty", "long ones", "short ones", "no end"],
)
def test_beams_equal_transformers(folders, model_type, search):
    assert_same(search_ours(folders(model_type), **search), search_alone(model_type, **search))


@pytest.mark.parametrize(
    "config",
    [
        {"enable_prefix_caching": False},
        {"max_num_batched_tokens": 3},
        {"block_size": 1},
        {"block_size": 7, "max_num_seqs": 5},
        {"max_num_seqs": 2},
        {"max_num_seqs": 1},
        {"num_blocks": 6},
        {"num_blocks": 5, "enable_admission_control": False},
        {"num_blocks": 5, "enable_admission_control": False, "enable_prefix_caching": False},
        {"num_blocks": 31, "block_size": 2, "enable_admission_control": False},
    ],
    ids=str,
)
def test_beams_do_not_depend_on_the_schedule(folders, config):
    search = {"num_beams": 4, "n": 4, "length_penalty": 1.0, "eos_token_ids": STOP_IDS[:4]}
    folder = folders("llama")
    assert_same(search_ours(folder, **search, **config), search_alone("llama", **search))


def test_all_that_beams_generate_is_counted(folders):
    params = SamplingParams(beam_width=3, max_tokens=5, ignore_eos=True)
    (completion,) = complete_checked(folders("llama"), PROMPTS[:1], params)
    # The prompt, and four times three beams.
    assert (completion.num_generated_tokens, completion.num_output_tokens) == (1 + 4 * 3, 5)
