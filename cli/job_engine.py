"""What a job needs of an engine, and the real one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from infer.cli.row_loop import EngineProtocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from infer.engine.config import EngineConfig
    from infer.engine.sampling_params import SamplingParams
    from infer.engine.stats import EngineStats
    from infer.engine.step_record import StepRecord
    from infer.engine.tokenizer import Tokenizer

    Say = Callable[[str], None]


class JobEngine(EngineProtocol, Protocol):
    """What a job needs of `infer.engine.engine.Engine`."""

    model_name: str
    tokenizer: Tokenizer
    default_sampling_params: SamplingParams

    @property
    def last_step(self) -> StepRecord | None: ...

    def describe(self) -> list[str]: ...

    def identity(self) -> dict[str, str]: ...

    def check_sampling_params(self, params: SamplingParams) -> None: ...

    def fit_cache(self, num_requests: int | None, max_request_tokens: int | None) -> str: ...

    def stats(self) -> EngineStats: ...


def load_engine(config: EngineConfig, say: Say) -> JobEngine:
    """The real one."""
    # Imported here: a job that cannot work says so before torch is loaded.
    from infer.engine.engine import Engine

    return Engine(config, say)


def identify_model(config: EngineConfig, say: Say) -> Mapping[str, object]:
    """The digests of the model that it would load."""
    from infer.engine import model_identity

    return model_identity.identify_model(config.model, config.revision, say)
