"""Greedy output with drafts equals transformers' own, token for token, in float32: whatever is guessed, for every kind
of attention, however it is scheduled."""

from __future__ import annotations

import random

import pytest
from greedy import GREEDY, make_prompts, run_checked
from tiny_models import VOCAB_SIZE

from infer.engine.config import EngineConfig
from infer.engine.draft_policy import AllDrafts
from infer.engine.engine import Engine
from infer.engine.speculative import Drafting

PROMPTS = make_prompts()
ARCHITECTURES = ["llama", "qwen3", "mistral", "gemma2", "gemma3_text", "gpt_neox", "gpt2", "qwen3_moe"]
"""One of each: sliding windows in all layers and in some, soft-capping, learned positions, experts."""


class Guesser:
    """Knows the answers, and says what it does not know as well: each token is right with probability `share_right`."""

    def __init__(self, answers, share_right):
        self._answers = answers
        self._share_right = share_right
        self._rng = random.Random(0)

    def propose(self, sequences, num_tokens):
        return [[self._guess(sequence, index) for index in range(num_tokens)] for sequence in sequences]

    def _guess(self, sequence, index):
        answer, position = self._answers[sequence.request_id], len(sequence.output_token_ids) + index
        if position < len(answer) and self._rng.random() < self._share_right:
            return answer[position]
        return self._rng.randrange(VOCAB_SIZE)


def generate(folder, expected, share_right, **config):
    """With the invariants checked after every step."""
    engine = Engine(EngineConfig(model=str(folder), dtype="float32", speculative="always", **config))
    engine.fit_cache()
    if share_right is not None:
        engine._speculation = Drafting(
            Guesser(expected, share_right), AllDrafts(config.get("num_speculative_tokens", 4))
        )
    completions = run_checked(engine, PROMPTS, GREEDY)
    return [list(completion.token_ids) for completion in completions], engine.stats()


@pytest.mark.parametrize("share_right", [1.0, 0.7, 0.0, None], ids=["right", "mixed", "wrong", "looked up"])
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_output_with_drafts_equals_transformers(oracle, model_type, share_right):
    folder, expected = oracle(model_type)
    outputs, stats = generate(folder, expected, share_right, prompt_lookup_min=1)
    assert outputs == expected
    assert stats.draft_tokens_total > 0
    if share_right == 1.0:
        assert stats.num_steps < 10


@pytest.mark.parametrize("model_type", ["llama", "gemma2"])
@pytest.mark.parametrize(
    "config",
    [
        {"enable_prefix_caching": False},
        {"max_num_batched_tokens": 1},
        {"max_num_batched_tokens": 7},
        {"max_num_draft_tokens": 1},
        {"num_speculative_tokens": 12},
        {"block_size": 1},
        {"block_size": 7},
        {"block_size": 32},
        {"max_num_seqs": 1},
        {"max_num_seqs": 3},
        {"num_blocks": 6, "enable_admission_control": False},
        {"num_blocks": 6, "enable_admission_control": False, "enable_prefix_caching": False},
        {"num_blocks": 44, "block_size": 2, "max_num_batched_tokens": 16, "enable_admission_control": False},
        {"num_blocks": 6, "enable_admission_control": False, "preemption_mode": "swap"},
        {"long_prefill_token_threshold": 3},
        {"attention_backend": "reference"},
    ],
    ids=str,
)
def test_output_with_drafts_does_not_depend_on_how_it_is_scheduled(oracle, model_type, config):
    folder, expected = oracle(model_type)
    outputs, stats = generate(folder, expected, 0.7, **config)
    assert outputs == expected
    # A budget of one token leaves a draft nothing.
    assert (stats.accepted_tokens_total > 0) == (config.get("max_num_batched_tokens") != 1)
    assert (stats.num_preemptions_total > 0) == ("enable_admission_control" in config)
