"""The oracle: what transformers itself generates."""

from __future__ import annotations

import pytest
from greedy import generate_alone, make_prompts
from tiny_models import make_model, save_model


@pytest.fixture(scope="session")
def oracle(tmp_path_factory):
    """By architecture: a saved model and what transformers generates from `make_prompts()`."""
    known = {}

    def get(model_type):
        if model_type not in known:
            folder = save_model(tmp_path_factory.mktemp(model_type), model_type)
            known[model_type] = folder, generate_alone(make_model(model_type), make_prompts())
        return known[model_type]

    return get
