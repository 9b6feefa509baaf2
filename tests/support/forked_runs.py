"""Runs of the `infer` command in forked children of a process that has imported everything: a run takes as long as its
work, and can be killed at any instant.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import broken_protocols
import storage_trace
from stand_in_cli import StandIn, install, main, warm_up
from storage_calls import Fault, StorageCalls

if TYPE_CHECKING:
    from collections.abc import Sequence

SUPPORT = Path(__file__).parent
CHILD_FAILED = 99
"""A test's own fault; `infer` never exits with it."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """A command line, where it runs, and what happens to it."""

    argv: tuple[str, ...]
    cwd: Path
    stand_in: StandIn = field(default_factory=StandIn)
    fault: Fault | None = None
    is_traced: bool = False
    syncs: bool = True
    broken: str | None = None
    """The name of a broken protocol, to be found out."""
    starts_at: float | None = None
    """By the monotonic clock."""


@dataclass(frozen=True, slots=True)
class RunResult:
    code: int
    """What the process exited with; negative is the signal that ended it."""
    out: str
    err: str
    requests: list[int]
    """Rows that reached the engine, in order."""
    calls: list[str]
    """Of the storage, where the run was traced."""
    trace: list[storage_trace.Operation]


class Run:
    """One that goes on."""

    def __init__(self, runs: ForkedRuns, pid: int, log: Path) -> None:
        self.pid = pid
        self._runs = runs
        self._log = log

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Does nothing once it has ended: nobody else has its number before `wait`."""
        os.kill(self.pid, number)

    def wait(self) -> RunResult:
        descriptor = os.pidfd_open(self.pid)
        select.select([descriptor], [], [])
        os.close(descriptor)
        code = os.waitstatus_to_exitcode(self._runs.ask(("wait", self.pid)))
        # One that was killed at once has not come to open them.
        files = [self._log / name for name in ("out", "err", "requests")]
        out, err, requests = (path.read_text() if path.exists() else "" for path in files)
        assert code != CHILD_FAILED, err
        calls, trace = storage_trace.read(self._log / "trace")
        for path in self._log.iterdir():
            path.unlink()
        self._log.rmdir()
        return RunResult(code, out, err, [int(line) for line in requests.split()], calls, trace)


class ForkedRuns:
    """The process that forks. To be used from any thread, and to be closed."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self._logs = tempfile.TemporaryDirectory(prefix="forked-runs-")
        environment = os.environ | {"PYTHONPATH": str(SUPPORT), "TOKENIZERS_PARALLELISM": "false"}
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-c", f"import forked_runs; forked_runs.serve({theirs.fileno()})"],
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._socket = ours
        self._file = ours.makefile("rwb")
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()
        self._server.wait()
        self._logs.cleanup()

    def start(self, spec: RunSpec) -> Run:
        log = Path(tempfile.mkdtemp(dir=self._logs.name))
        return Run(self, self.ask(("start", spec, log)), log)

    def run(self, spec: RunSpec) -> RunResult:
        return self.start(spec).wait()

    def ask(self, question: tuple[Any, ...]) -> int:
        with self._lock:
            pickle.dump(question, self._file)
            self._file.flush()
            answer = pickle.load(self._file)
        assert isinstance(answer, int)
        return answer


def serve(descriptor: int) -> None:
    """Answer a ForkedRuns until it is closed."""
    # Until the command listens, a signal ends a child as it would end any process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    warm_up()
    _import_what_a_run_needs()
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=descriptor) as connection, connection.makefile("rwb") as file:
        while True:
            try:
                question = pickle.load(file)
            except EOFError:
                return
            match question:
                case ("start", RunSpec() as spec, Path() as log):
                    answer = os.fork()
                    if answer == 0:
                        _be_child(spec, log)
                case ("wait", int() as pid):
                    answer = os.waitpid(pid, 0)[1]
            pickle.dump(answer, file)
            file.flush()


def _import_what_a_run_needs() -> None:
    """As a child of its own finds out: a process that has run a job has threads, and cannot be forked safely."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        with tempfile.TemporaryDirectory() as directory:
            for name in ("out.parquet", "out.jsonl", "out/"):
                Path(directory, "in.jsonl").write_text('{"text": "a"}\n')
                _run_quietly(["run", "in.jsonl", "-o", name], directory)
                _run_quietly(["verify", name, "--input", "in.jsonl"], directory)
        os.write(writer, "\n".join(sys.modules).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        names = file.read().split("\n")
    os.wait()
    assert "infer.io.verify" in names, names
    for name in names:
        if name not in sys.modules and name.startswith(("infer.", "pyarrow.", "rich.", "psutil", "concurrent.")):
            __import__(name)


def _run_quietly(argv: Sequence[str], directory: str) -> None:
    os.chdir(directory)
    for descriptor in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    install(StandIn())
    main(argv)


def _be_child(spec: RunSpec, log: Path) -> None:
    code = CHILD_FAILED
    try:
        for descriptor, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(log / name, os.O_WRONLY | os.O_CREAT), descriptor)
        (log / "requests").touch()
        os.chdir(spec.cwd)
        install(replace(spec.stand_in, requests=str(log / "requests")))
        tracer = storage_trace.Tracer(log / "trace") if spec.is_traced else None
        if spec.broken is not None:
            broken_protocols.BROKEN[spec.broken]()
        if tracer is not None or spec.fault is not None or not spec.syncs:
            StorageCalls(spec.fault, tracer, syncs=spec.syncs).install()
        if spec.starts_at is not None:
            time.sleep(max(0.0, spec.starts_at - time.monotonic()))
        code = main(spec.argv)
        if tracer is not None and code == 0:
            tracer.end()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)
