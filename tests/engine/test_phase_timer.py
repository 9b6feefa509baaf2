from __future__ import annotations

from contextlib import contextmanager

import pytest

from infer.engine.phase_timer import PhaseTimer


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_phase_inside_another_is_counted_once(clock):
    timer = PhaseTimer(clock)
    with timer.phase("update"):
        clock.now += 1
        with timer.phase("detokenize"):
            clock.now += 2
        clock.now += 4
    clock.now += 8
    with timer.phase("update"):
        clock.now += 16
    assert timer.seconds == {"update": 21.0, "detokenize": 2.0}


def test_phase_that_fails_has_taken_its_time(clock):
    timer = PhaseTimer(clock)

    def fail():
        clock.now += 1
        raise KeyError

    with pytest.raises(KeyError), timer.phase("execute"):
        fail()
    clock.now += 2
    with timer.phase("execute"):
        clock.now += 4
    assert timer.seconds == {"execute": 5.0}


def test_watcher_is_entered_with_every_phase_until_its_block_ends(clock):
    timer, entered = PhaseTimer(clock), []

    @contextmanager
    def watch(name):
        entered.append(f"+{name}")
        yield
        entered.append(f"-{name}")

    with timer.watched(watch), timer.phase("update"), timer.phase("detokenize"):
        assert timer.is_watched
    assert not timer.is_watched
    with timer.phase("update"):
        pass
    assert entered == ["+update", "+detokenize", "-detokenize", "-update"]
