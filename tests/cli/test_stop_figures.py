"""The figure of the guarantee: a hundred of each signal at random end a run in five seconds, the terminal as it was."""

from __future__ import annotations

import os
import random
import signal
import termios
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import pytest
from processes import catches, read_all, stopping_run, terminal, wait_until

from infer.cli.stop_request import STOP_SIGNALS

pytestmark = pytest.mark.reliability

NUM_RUNS = 100
NUM_RUNS_AT_ONCE = 8
MOST_SECONDS = 5.0
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"


@dataclass(frozen=True)
class Ending:
    seconds: float
    """From the signal to the end of the process."""
    code: int
    output: str
    is_terminal_as_it_was: bool


def stopped_at_random(number: signal.Signals, seed: int) -> Ending:
    with terminal() as (controller, side):
        settings = termios.tcgetattr(side)
        with stopping_run("random_steps", "--seed", seed, stderr=side) as process:
            # The last one that gets its handler.
            wait_until(lambda: catches(process.pid, STOP_SIGNALS[-1]))
            time.sleep(random.Random(-seed).uniform(0, 1))
            output = read_all(controller)
            begin = time.monotonic()
            process.send_signal(number)
            code = process.wait(timeout=60)
            seconds = time.monotonic() - begin
        return Ending(seconds, code, output + read_all(controller), termios.tcgetattr(side) == settings)


@pytest.mark.slow
@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_hundred_signals_at_random_end_the_run_within_five_seconds(number, figure):
    seed = int(os.environ.get("INFER_TEST_SEED", random.SystemRandom().randrange(2**32)))
    draw = random.Random(seed)
    seeds = [draw.randrange(1, 2**32) for _ in range(NUM_RUNS)]
    with ThreadPoolExecutor(NUM_RUNS_AT_ONCE) as pool:
        endings = list(pool.map(partial(stopped_at_random, number), seeds))
    seconds = sorted(ending.seconds for ending in endings)
    median, p99 = seconds[NUM_RUNS // 2], seconds[round(0.99 * NUM_RUNS) - 1]
    num_late = sum("in the middle of a step" in ending.output for ending in endings)
    figure(
        number.name,
        f"{NUM_RUNS} runs, median {median:.2f} s, p99 {p99:.2f} s, most {seconds[-1]:.2f} s, "
        f"ended in a step {num_late} (seed {seed})",
    )
    assert p99 <= MOST_SECONDS
    assert {ending.code for ending in endings} == {130 if number is signal.SIGINT else 75}
    assert all(ending.is_terminal_as_it_was for ending in endings)
    for ending in endings:
        assert ending.output.rfind(SHOW_CURSOR) >= ending.output.rfind(HIDE_CURSOR), ending.output
        assert "Traceback" not in ending.output, ending.output
        assert ending.output.endswith("hint: run the same command again to continue\r\n"), ending.output
