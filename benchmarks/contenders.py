"""What can be measured: a command of ours, and peers in virtual environments of their own. Each run is a process."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, Self

_PEERS = {
    "vllm": ("vllm_peer.py",),
    "openvino": ("openvino_peer.py", "--weights", "bf16"),
    "openvino-int8": ("openvino_peer.py", "--weights", "int8"),
}
_STAT = Path("/proc/stat")


class RunFailedError(Exception):
    """A contender did not come to its end."""


@dataclass(frozen=True, slots=True)
class TimedResult:
    """One run."""

    rows: int
    completion_tokens: int
    run_seconds: float
    load_seconds: float
    other_cpu_seconds: float
    """Of other processes, while this one ran; 0 where the system does not tell."""
    summary: dict[str, Any] = field(default_factory=dict)
    """What the contender says of itself besides."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Contender(Protocol):
    name: str

    @property
    def is_peer(self) -> bool: ...

    def run(self, rows: Path, model: str) -> TimedResult:
        """Raises: RunFailedError."""
        ...


@dataclass(frozen=True, slots=True)
class InferContender:
    """A command line that begins like `infer run`, and flags of its own."""

    name: str
    command: str
    flags: tuple[str, ...] = ()
    is_peer = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """`COMMAND`, or `NAME=COMMAND` with a name of letters, digits, dots and dashes."""
        named = re.match(r"([\w.-]+)=(.*)", text)
        return cls(named[1], named[2]) if named else cls("infer", text)

    def help_page(self) -> str:
        return _checked(self.name, [*shlex.split(self.command), "--help"])

    def run(self, rows: Path, model: str) -> TimedResult:
        with TemporaryDirectory(prefix="infer-compare-") as directory:
            flags = [
                "--model",
                model,
                "--prompt-column",
                "prompt",
                "--row-params",
                "--temperature",
                "0",
                "--keep",
                "id",
            ]
            output = ["-o", str(Path(directory, "out.parquet")), "--json"]
            watch = _Watch()
            said = _checked(self.name, [*shlex.split(self.command), str(rows), *flags, *self.flags, *output])
            others = watch.other_cpu_seconds()
        summary = json.loads(said)
        seconds = summary["seconds"]
        return TimedResult(
            summary["rows"], summary["completion_tokens"], seconds["run"], seconds["load"], others, summary
        )


@dataclass(frozen=True, slots=True)
class PeerContender:
    """A script in `peers/`, run by the Python of an environment that has the peer."""

    name: str
    venv: Path
    is_peer = True

    @classmethod
    def parse(cls, text: str) -> Self:
        """`NAME=VENV`."""
        name, _, venv = text.partition("=")
        if name not in _PEERS or not venv:
            raise RunFailedError(f"a peer is NAME=VENV, NAME one of {', '.join(_PEERS)}: {text}")
        return cls(name, Path(venv))

    def run(self, rows: Path, model: str) -> TimedResult:
        script, *flags = _PEERS[self.name]
        python, path = self.venv / "bin" / "python", Path(__file__).parent / "peers" / script
        watch = _Watch()
        said = _checked(self.name, [str(python), str(path), str(rows), "--model", model, *flags], self._environment())
        result = json.loads(said.splitlines()[-1])
        seconds = result["seconds"]
        others = watch.other_cpu_seconds()
        return TimedResult(result["rows"], result["completion_tokens"], seconds["run"], seconds["load"], others)

    def _environment(self) -> dict[str, str]:
        environment = dict(os.environ, OMP_NUM_THREADS=str(len(os.sched_getaffinity(0))))
        # vLLM's own advice for a CPU: its allocator and its OpenMP.
        libraries = [
            path
            for path in (Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"), self.venv / "lib" / "libiomp5.so")
            if self.name == "vllm" and path.exists()
        ]
        if libraries:
            environment["LD_PRELOAD"] = ":".join(map(str, libraries))
        return environment


class _Watch:
    """Looks from now on at how much processor time others take."""

    def __init__(self) -> None:
        self._busy, self._own = _busy_seconds(), _own_seconds()

    def other_cpu_seconds(self) -> float:
        return round(max(0.0, _busy_seconds() - self._busy - (_own_seconds() - self._own)), 2)


def _busy_seconds() -> float:
    """User, nice and system time of the whole machine."""
    try:
        fields = _STAT.read_text().splitlines()[0].split()[1:4]
    except OSError:
        return time.process_time()
    return sum(map(int, fields)) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    """Ours, and that of the children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _checked(name: str, command: list[str], environment: dict[str, str] | None = None) -> str:
    """The standard output of a command that succeeds."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        tail = "\n".join(done.stderr.strip().splitlines()[-20:])
        raise RunFailedError(f"{name} has failed ({done.returncode}): {shlex.join(command)}\n{tail}")
    return done.stdout
