from __future__ import annotations

import pytest
from tiny_models import VOCAB_SIZE, make_config

from infer.engine.model_flops import AttentionShape, count_model_flops

HEADS = 2 * 32 * (4 + 2 + 2) * 32 + 2 * 4 * 32 * 32
"""Operations of a token in the attention's products: 4 query, 2 key and 2 value heads of 32, and back."""
EXPERT = 2 * 3 * 32


@pytest.mark.parametrize(
    ("architecture", "per_layer"),
    [
        ("llama", HEADS + EXPERT * 64),
        # Two of four experts, and who chooses them.
        ("mixtral", HEADS + 2 * EXPERT * 64 + 2 * 32 * 4),
        ("qwen3_moe", HEADS + 2 * EXPERT * 32 + 2 * 32 * 4),
    ],
)
def test_products_are_those_of_the_weights_that_a_token_meets(architecture, per_layer):
    counted = count_model_flops(make_config(architecture))
    assert (counted.per_token, counted.per_logit) == (3 * per_layer, 2 * 32 * VOCAB_SIZE)


def test_layers_have_their_own_attention():
    counted = count_model_flops(make_config("gemma2"))
    assert counted.layers == (
        AttentionShape(4, 32, 32, 24),
        AttentionShape(4, 32, 32, 0),
        AttentionShape(4, 32, 32, 24),
    )
    assert counted.layers[0].flops_per_key == 4 * 2 * (32 + 32)
