"""Built-in names."""

from __future__ import annotations

import pytest

from infer.engine.config import EngineConfig
from infer.engine.model_catalog import BUILTIN_MODELS, nearest_builtin


def test_the_default_model_is_built_in():
    assert EngineConfig().model in BUILTIN_MODELS


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("smolm2-135m", "smollm2-135m"),
        ("SmolLM2-135M", "smollm2-135m"),
        ("smollm2", "smollm2-135m"),
        ("gpt2", None),
        ("distilgpt2", None),
    ],
)
def test_a_name_close_to_a_built_in_one_is_recognised(name, nearest):
    assert nearest_builtin(name) == nearest
