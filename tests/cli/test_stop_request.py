"""Stopping from outside, with real signals to a stand-in process: what is said, with which code, and how fast."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
from processes import read_all, stopping_run, terminal, wait_for

from infer.cli.errors import InterruptError, StoppedEarlyError
from infer.cli.stop_request import STOP_SIGNALS, StopCause, Stopped, StopRequest, stop_error

CODES = {signal.SIGINT: 130, signal.SIGTERM: 75, signal.SIGHUP: 75, signal.SIGUSR1: 75}
HIDE_CURSOR, SHOW_CURSOR = "\x1b[?25l", "\x1b[?25h"
HINT = "hint: run the same command again to continue\n"


def by(number):
    return "interrupted" if number is signal.SIGINT else f"stopped by {number.name}"


def ending(process):
    """Exit code, the rest of standard output, all of standard error."""
    output, errors = process.communicate(timeout=30)
    return process.returncode, output.decode(), errors.decode()


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_first_signal_ends_loading_at_once(number):
    with stopping_run("load") as process:
        wait_for(process, "load")
        process.send_signal(number)
        assert ending(process) == (CODES[number], "", f"{by(number)}, rows saved: 0\n{HINT}")


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_first_signal_lets_the_step_end_and_saves_what_is_done(number):
    # A grace of a minute: what ends here has looked.
    with stopping_run("steps", "--grace", 60, "--most", 60) as process:
        wait_for(process, "steps")
        process.send_signal(number)
        code, output, errors = ending(process)
    assert (code, output) == (CODES[number], "")
    assert errors.splitlines()[-2].startswith(f"{by(number)}, rows saved: ")


def test_step_that_takes_long_is_left_after_the_grace():
    with stopping_run("slow_step", "--grace", 0.1, "--most", 60) as process:
        wait_for(process, "step")
        process.send_signal(signal.SIGTERM)
        code, output, errors = ending(process)
    assert (code, output) == (75, "")
    assert errors.endswith(f"stopped by SIGTERM, rows saved: 0\n{HINT}")


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_process_ends_in_the_middle_of_a_call_that_no_signal_interrupts(number):
    with stopping_run("stuck_step", "--grace", 0.1, "--most", 0.2) as process:
        wait_for(process, "step")
        process.send_signal(number)
        code, output, errors = ending(process)
    assert (code, output) == (CODES[number], "note\n")
    assert errors == f"stopped in the middle of a step that took too long by {number.name}\n{HINT}"


def test_time_that_is_up_counts_as_a_signal():
    with stopping_run("steps", "--max-runtime", 0.2) as process:
        code, _, errors = ending(process)
    assert code == 75
    assert errors.splitlines()[-2].startswith("stopped by max-runtime, rows saved: ")
    with stopping_run("stuck_step", "--max-runtime", 0.2, "--most", 0.1) as process:
        assert ending(process)[0] == 75


def test_saving_is_finished_however_long_it_takes():
    with stopping_run("commit", "--most", 0.1) as process:
        wait_for(process, "commit")
        process.send_signal(signal.SIGTERM)
        with pytest.raises(TimeoutError):
            # Ten times what other blocks get.
            wait_at_most(process, 1.0)
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert ending(process) == (75, "committed\n", f"stopped by SIGTERM, rows saved: 0\n{HINT}")


def wait_at_most(process, seconds):
    ended = threading.Thread(target=process.wait, daemon=True)
    ended.start()
    ended.join(seconds)
    if ended.is_alive():
        raise TimeoutError


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_second_signal_ends_the_process_wherever_it_is(number):
    with stopping_run("heard", "--same-request", 0) as process:
        wait_for(process, "undisturbed")
        process.send_signal(signal.SIGUSR1)
        wait_for(process, "heard")
        process.send_signal(number)
        assert ending(process) == (CODES[number], "note\n", f"stopped at once by {number.name}\n{HINT}")


def test_one_request_that_comes_as_two_signals_is_one():
    with stopping_run("heard", "--same-request", 60, "--most", 60) as process:
        wait_for(process, "undisturbed")
        process.send_signal(signal.SIGTERM)
        wait_for(process, "heard")
        process.send_signal(signal.SIGHUP)
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert ending(process) == (75, "", f"stopped by SIGTERM, rows saved: 0\n{HINT}")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT])
def test_signal_that_the_process_was_started_to_ignore_stays_ignored(number):
    with stopping_run("load", ignored=[number]) as process:
        wait_for(process, "load")
        process.send_signal(number)
        process.send_signal(signal.SIGTERM)
        assert ending(process)[2] == f"stopped by SIGTERM, rows saved: 0\n{HINT}"


@pytest.mark.parametrize(("what", "line"), [("steps", "steps"), ("slow_step", "step"), ("stuck_step", "step")])
def test_terminal_is_left_with_its_cursor(what, line):
    with terminal() as (controller, side), stopping_run(what, "--grace", 0.1, "--most", 0.3, stderr=side) as process:
        wait_for(process, line)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 75
        output = read_all(controller)
    assert output.count(HIDE_CURSOR) == 1
    assert output.rindex(SHOW_CURSOR) > output.index(HIDE_CURSOR)
    assert output.endswith(HINT.replace("\n", "\r\n"))


def test_second_signal_is_not_kept_by_a_reader_that_takes_nothing_more():
    with stopping_run("flood", "--same-request", 0, "--most", 60) as process:
        wait_for(process, "flood")
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGHUP)
        assert process.wait(timeout=10) == 75


def handlers():
    return [signal.getsignal(number) for number in (*STOP_SIGNALS, signal.SIGALRM)]


def test_old_handlers_are_back_at_the_end():
    before, threads = handlers(), threading.active_count()
    with StopRequest(max_runtime=60) as stop:
        assert not set(map(id, handlers())) & set(map(id, before))
        with pytest.raises(Stopped) as caught:
            signal.raise_signal(signal.SIGTERM)
    assert caught.value.cause == stop.requested == StopCause("SIGTERM")
    assert handlers() == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.set_wakeup_fd(-1) == -1
    assert threading.active_count() == threads


def test_inner_block_hears_and_the_outer_one_does_not():
    with StopRequest() as outer:
        with pytest.raises(Stopped), StopRequest():
            signal.raise_signal(signal.SIGHUP)
        assert outer.requested is None
        with pytest.raises(Stopped):
            signal.raise_signal(signal.SIGHUP)


def test_signal_at_the_very_end_of_a_block_is_heard_by_the_one_around_it(monkeypatch):
    """The end of the inner block disarms the timer first: that is when the signal comes."""
    before = handlers()

    def setitimer(which, seconds):
        monkeypatch.undo()
        signal.raise_signal(signal.SIGTERM)
        return signal.setitimer(which, seconds)

    inner = StopRequest()

    def listen_in_vain():
        with inner:
            monkeypatch.setattr("signal.setitimer", setitimer)
        pytest.fail("nobody heard it")

    with StopRequest() as outer, pytest.raises(Stopped):
        listen_in_vain()
    assert (inner.requested, outer.requested) == (StopCause("SIGTERM"), StopCause("SIGTERM"))
    assert handlers() == before


def test_undisturbed_block_is_left_when_it_is_whole():
    whole = []

    def work(stop):
        with stop.undisturbed():
            with stop.undisturbed():
                signal.raise_signal(signal.SIGTERM)
                whole.append("inner")
            whole.append("outer")

    with StopRequest() as stop, pytest.raises(Stopped):
        work(stop)
    assert whole == ["inner", "outer"]


def test_what_stopped_unwinds_is_not_stopped_by_the_end_of_the_grace():
    with StopRequest() as stop, stop.graceful():
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Stopped):
            stop.raise_if_requested()
        signal.raise_signal(signal.SIGALRM)


def test_what_stopped_unwinds_is_not_stopped_by_the_next_signal():
    with StopRequest() as stop:
        with pytest.raises(Stopped):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGUSR1)
    assert stop.requested == StopCause("SIGTERM")


def test_other_threads_are_left_alone():
    before, seen = handlers(), []

    def work():
        with StopRequest(max_runtime=60) as stop, stop.graceful(), stop.committing():
            seen.extend(handlers())
            stop.raise_if_requested()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == before == handlers()


def descriptors():
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def test_no_descriptor_is_left_open():
    before = descriptors()
    for _ in range(3):
        with StopRequest():
            pass
    assert descriptors() == before


@pytest.mark.parametrize(
    ("cause", "num_rows_saved", "error_class", "message"),
    [
        ("SIGINT", 1_024, InterruptError, "interrupted, rows saved: 1,024"),
        ("SIGTERM", 0, StoppedEarlyError, "stopped by SIGTERM, rows saved: 0"),
        ("max-runtime", None, StoppedEarlyError, "stopped by max-runtime"),
    ],
)
def test_message_says_who_stopped_it_and_what_is_saved(cause, num_rows_saved, error_class, message):
    error = stop_error(StopCause(cause), num_rows_saved)
    assert type(error) is error_class
    assert (str(error), error.hint) == (message, "run the same command again to continue")
