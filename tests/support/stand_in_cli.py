"""The `infer` command with a stand-in for the model. All else is real: the command line, the files, what is saved.

As a program it takes the arguments of `infer`, and its stand-in from the variable STAND_IN.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import echo_engine
import typer.main
from echo_engine import EchoEngine

from infer.cli import app, job, job_fingerprint
from infer.engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from infer.engine.control_tokens import PromptText


@dataclass(frozen=True, slots=True)
class StandIn:
    """How the model that is none behaves."""

    max_num_seqs: int = 4
    step_seconds: float = 0.0
    hostile_rows: tuple[int, ...] = ()
    """The process dies whenever one of these is in a step."""
    hostile_prompts: tuple[str, ...] = ()
    """The process dies whenever one of these is tokenised."""
    requests: str | None = None
    """The file to which the index of every row that reaches the engine is appended."""


class StandInTokenizer(Tokenizer):
    hostile_prompts: tuple[str, ...] = ()

    def encode_batch(self, prompts: Sequence[PromptText], *, add_special_tokens: bool) -> list[list[int]]:
        if any(prompt.text in self.hostile_prompts for prompt in prompts):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().encode_batch(prompts, add_special_tokens=add_special_tokens)


class StandInEngine(EchoEngine):
    def __init__(self, stand_in: StandIn) -> None:
        super().__init__(max_num_seqs=stand_in.max_num_seqs)
        self.tokenizer = StandInTokenizer(echo_engine.chatml_tokenizer(chat_template=None))
        self.tokenizer.hostile_prompts = stand_in.hostile_prompts
        self._stand_in = stand_in
        self._log: int | None = None
        if stand_in.requests is not None:
            self._log = os.open(stand_in.requests, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC)

    def add_request(self, request: Any) -> None:
        if self._log is not None:
            os.write(self._log, b"%d\n" % request.request_id)
        super().add_request(request)

    def step(self) -> list[Any]:
        num_free = self._stand_in.max_num_seqs - len(self._running)
        joining = [request.request_id for request in list(self._waiting)[:num_free]]
        if not {*self._running, *joining}.isdisjoint(self._stand_in.hostile_rows):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self._stand_in.step_seconds)
        return super().step()


_real_run_job = job.run_job


def install(stand_in: StandIn) -> None:
    """From here on, jobs of this process run with `stand_in`."""
    job.run_job = partial(
        _real_run_job, load=lambda *_: StandInEngine(stand_in), identify=lambda *_: {"model": "stand-in"}
    )


def warm_up() -> None:
    """What takes long and is the same every time is done once in this process."""
    echo_engine.chatml_tokenizer = cache(echo_engine.chatml_tokenizer)
    echo_engine.chatml_tokenizer(chat_template=None)
    job_fingerprint.version = cache(job_fingerprint.version)
    typer.main.get_command = cache(typer.main.get_command)
    typer.main.get_command(app.app)


def main(arguments: Sequence[str] | None = None) -> int:
    """See `infer.cli.app.main`."""
    return app.main(arguments)


if __name__ == "__main__":
    install(StandIn(**json.loads(os.environ.get("STAND_IN", "{}"))))
    sys.exit(main(sys.argv[1:]))
