"""Jobs without a model, asked for by flags: as `infer run` asks, and so that `infer retry` can ask again."""

from __future__ import annotations

import json
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

from echo_engine import EchoEngine, identify_echo

from infer.cli.config import job_config
from infer.cli.job import run_job
from infer.cli.run import run_command

if TYPE_CHECKING:
    from pathlib import Path

    from infer.cli.report import RunSummary


class Crash(BaseException):
    """The end of a process, as far as one process can tell: no handler of an error sees it."""


class CrashingEngine(EchoEngine):
    """Dies in its first step in which exactly the rows `when` are in it; None: in its first."""

    def __init__(self, when: frozenset[int] | None = None) -> None:
        super().__init__()
        self._when = when

    def step(self) -> Any:
        inside = {*self._running, *(request.request_id for request in self._waiting)}
        if self._when is None or inside == self._when:
            raise Crash
        return super().step()


def run_flags(inputs: str, output: str, engine: EchoEngine | None = None, **flags: Any) -> RunSummary:
    """`infer run INPUTS -o OUTPUT` with `flags` by parameter name, others as they are by default."""
    parameters = signature(run_command).parameters.values()
    defaults = {each.name: None if each.default is Parameter.empty else each.default for each in parameters}
    defaults |= {"inputs": [inputs], "output": output, "prompt_column": "text", "seed": 5}
    return run_job(job_config({**defaults, **flags}), lambda *_: engine or EchoEngine(), identify_echo)


def leave_lock(directory: Path) -> None:
    """Make it look as if the process that last held the lock, this one, had ended since."""
    path = directory / "lock"
    path.write_text(json.dumps({**json.loads(path.read_text()), "start": 0.0}))
