"""A run without a model: what is asked for on the command line, stopped as the real one is.

It says on standard output, unbuffered, what it is about to do, and `note` where it is told that it ends at once.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import sys
import time
from contextlib import suppress

from infer.cli import stop_request, stop_watchdog
from infer.cli.display import open_view
from infer.cli.errors import CommandError, error_message, exit_code
from infer.cli.run_snapshot import RunSnapshot
from infer.cli.stop_request import Stopped, StopRequest, stop_error
from infer.cli.terminal import open_console
from infer.engine.stats import EngineStats


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


class StoppingRun:
    def __init__(self, stop: StopRequest, seed: int) -> None:
        self.stop = stop
        self.seed = seed
        self.num_done = 0
        self.num_saved = 0

    def load(self) -> None:
        say("load")
        time.sleep(60)

    def steps(self) -> None:
        def step() -> None:
            if self.num_done == 0:
                say("steps")
            time.sleep(0.001)

        self._loop(step)

    def slow_step(self) -> None:
        """Between two instructions of Python there is a minute, but the wait can be interrupted."""

        def step() -> None:
            say("step")
            time.sleep(60)

        self._loop(step)

    def stuck_step(self) -> None:
        """One call of a library that no signal interrupts."""

        def step() -> None:
            say("step")
            hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)

        self._loop(step)

    def random_steps(self) -> None:
        draw = random.Random(self.seed)

        def step() -> None:
            # Most are short; some are long in Python, some in a library.
            kind = draw.random()
            if kind < 0.01:
                time.sleep(draw.uniform(0, 20))
            elif kind < 0.02:
                hashlib.pbkdf2_hmac("sha256", b"", b"", int(draw.uniform(0, 10**7)))
            else:
                time.sleep(draw.expovariate(1 / 0.01))

        say("load")
        time.sleep(draw.uniform(0, 0.1))
        self._loop(step)

    def commit(self) -> None:
        """Lasts until a line comes in."""
        with self.stop.committing():
            say("commit")
            sys.stdin.readline()
            say("committed")

    def heard(self) -> None:
        """Cannot be left, and says when the first signal has arrived."""
        with self.stop.undisturbed():
            say("undisturbed")
            while self.stop.requested is None:
                time.sleep(0.001)
            say("heard")
            sys.stdin.readline()

    def flood(self) -> None:
        """Writes to a pipe that takes nothing more."""
        os.set_blocking(2, False)
        with suppress(BlockingIOError):
            while True:
                os.write(2, b"x" * 4096)
        os.set_blocking(2, True)
        with self.stop.undisturbed():
            say("flood")
            os.write(2, b"x")

    def _loop(self, step) -> None:
        stats = EngineStats(num_blocks=40, block_states=bytes(40))
        console = open_console(sys.stderr)

        def snapshot() -> RunSnapshot:
            return RunSnapshot(self.num_done, 0, 10**6, 1.0, stats, "model", "in.parquet", "out.parquet")

        try:
            with open_view(console, snapshot, self.stop.undisturbed) as view, self.stop.graceful():
                while self.stop.requested is None:
                    step()
                    self.num_done += 1
                    view.update()
        finally:
            with self.stop.committing():
                self.num_saved = self.num_done
        self.stop.raise_if_requested()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("what")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-runtime", type=float)
    parser.add_argument("--grace", type=float, default=stop_request.GRACE_SECONDS)
    parser.add_argument("--most", type=float, default=stop_watchdog.MAX_STOP_SECONDS)
    parser.add_argument("--same-request", type=float, default=stop_watchdog.SAME_REQUEST_SECONDS)
    given = parser.parse_args()
    stop_request.GRACE_SECONDS = given.grace
    stop_watchdog.MAX_STOP_SECONDS = given.most
    stop_watchdog.SAME_REQUEST_SECONDS = given.same_request
    run = None
    try:
        with StopRequest(given.max_runtime, before_exit=lambda: say("note")) as stop:
            run = StoppingRun(stop, given.seed)
            getattr(run, given.what)()
    except Stopped as stopped:
        error: CommandError = stop_error(stopped.cause, None if run is None else run.num_saved)
        print(error_message(error), file=sys.stderr)
        return exit_code(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
