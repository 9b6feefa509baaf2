"""Every prompt through an engine, to its completion: the loop behind `Engine.generate`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infer.engine.errors import RequestError
from infer.engine.request import Choice, Completion, Request
from infer.engine.seeding import derive_seed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from infer.engine.engine import Engine
    from infer.engine.sampling_params import SamplingParams


def complete_all(
    engine: Engine, prompts: Iterable[str | list[int]], params: SamplingParams, seed: int
) -> list[Completion]:
    """In the order of the prompts; those that are refused have their error."""
    completions: dict[int, Completion] = {}
    for number, prompt in enumerate(prompts):
        try:
            ids = engine.tokenizer.encode(prompt, add_special_tokens=True) if isinstance(prompt, str) else prompt
            engine.add_request(Request(number, tuple(ids), params, derive_seed(seed, number, 0)))
        except RequestError as error:
            nothing = Choice("", (), "error")
            completions[number] = Completion(number, (nothing,), 0, error_code=error.code, error=str(error))
    while engine.has_unfinished_requests():
        try:
            finished = engine.step()
        except Exception as error:
            finished = engine.recover(error)
        completions |= {completion.request_id: completion for completion in finished}
    return [completions[number] for number in sorted(completions)]
