"""The other end of `template_worker.py`: hands it conversations; what becomes of it is an error of one row."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import weakref
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from infer.engine.errors import PromptError
from infer.engine.template_worker import LENGTH, MEMORY, TEXT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST_SLOWDOWN = 20
"""By which a busy machine may stretch the seconds of processor time that a template has."""
_BYTES_PER_CHARACTER = 64
"""Of memory, for what is done with a conversation's text besides the template's own needs."""


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    """What the rendering of one conversation may take."""

    seconds: float = 5.0
    """Of processor time, whatever else runs on the machine."""
    num_bytes: int = 256 << 20
    """Of memory, beside what holds the conversation itself."""
    num_characters: int = 1 << 20
    """Of text, beside a multiple of the conversation's own."""
    expansion: int = 16


class TemplateProcess:
    """A process that renders `template`, in which `variables` can be seen. Begun when it is needed, and again when it
    has been ended."""

    def __init__(self, template: str, variables: Mapping[str, str], limits: TemplateLimits) -> None:
        self._job = _line({"template": template, "variables": dict(variables)})
        self._template = template
        self._limits = limits
        self._process: subprocess.Popen[bytes] | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def render(self, messages: Sequence[Mapping[str, Any]], num_characters: int) -> str:
        """The prompt of a conversation that has so many characters itself.

        Raises:
            PromptError: `template_error`, with the template's message or the limit that it has reached.
        """
        limits = self._limits
        most = limits.num_characters + limits.expansion * num_characters
        call = {
            "messages": messages,
            "limits": {
                "seconds": limits.seconds,
                "num_bytes": limits.num_bytes + _BYTES_PER_CHARACTER * num_characters,
                "num_characters": most,
            },
        }
        kind, text = self._ask(_line(call), 4 * most)
        if kind == TEXT:
            return text
        if kind == LENGTH:
            raise _refusal(f"wrote more than {most:,} characters")
        if kind == MEMORY:
            raise _refusal(f"needed more than {limits.num_bytes >> 20} MiB of memory")
        # What the template's author has not written may be made from the row.
        raise _refusal(text, text if text in self._template else "refused the messages")

    def _ask(self, line: bytes, most_bytes: int) -> tuple[bytes, str]:
        # One that somebody else has ended is begun again, once; what ends it twice is in the conversation.
        for _ in range(2):
            process = self._running()
            deadline = monotonic() + _MOST_SLOWDOWN * self._limits.seconds
            try:
                _write(process, line, deadline)
                head = _read(process, 9, deadline)
                kind, num_bytes = head[:1], int.from_bytes(head[1:], "little")
                if num_bytes > most_bytes:
                    # What it goes on to say must not be taken for the answer to another row.
                    self.close()
                    raise _refusal("its process answers what it was not asked")
                return kind, _read(process, num_bytes, deadline).decode("utf-8", "surrogatepass")
            except TimeoutError:
                self.close()
                raise _refusal(f"has not answered for {_MOST_SLOWDOWN * self._limits.seconds:g} s") from None
            except EOFError:
                if self._ended_by() == signal.SIGPROF:
                    raise _refusal(f"took more than {self._limits.seconds:g} s of processor time") from None
        raise _refusal("its process ends before it answers")

    def close(self) -> None:
        """End the process, if there is one."""
        if self._finalizer is not None:
            self._finalizer()
        self._process = self._finalizer = None

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            worker = str(Path(__file__).with_name("template_worker.py"))
            # -P keeps this folder, with its names of ours, off the import path. The session keeps the terminal's
            # signals away: Ctrl-C is for us to answer.
            self._process = subprocess.Popen(
                [sys.executable, "-P", worker],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                bufsize=0,
            )
            self._finalizer = weakref.finalize(self, _end, self._process)
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)
            _write(self._process, self._job, monotonic() + _MOST_SLOWDOWN * self._limits.seconds)
        return self._process

    def _ended_by(self) -> int | None:
        """The signal that ended the process which closed its output."""
        assert self._process is not None
        process = self._process
        with_status = process.wait(timeout=_MOST_SLOWDOWN)
        self.close()
        return -with_status if with_status < 0 else None


# Lone surrogates come out as escapes. What JSON has no word for is shown by its type, as transformers does.
_ENCODER = json.JSONEncoder(default=lambda other: f"<{type(other).__name__}>")


def _line(value: Any) -> bytes:
    return _ENCODER.encode(value).encode() + b"\n"


def _write(process: subprocess.Popen[bytes], content: bytes, deadline: float) -> None:
    assert process.stdin is not None
    stream, rest = process.stdin.fileno(), memoryview(content)
    while rest:
        _wait(stream, select.POLLOUT, deadline)
        try:
            rest = rest[os.write(stream, rest) :]
        except BlockingIOError:
            continue
        except BrokenPipeError:
            raise EOFError from None


def _read(process: subprocess.Popen[bytes], num_bytes: int, deadline: float) -> bytes:
    assert process.stdout is not None
    stream, content = process.stdout.fileno(), bytearray()
    while len(content) < num_bytes:
        _wait(stream, select.POLLIN, deadline)
        piece = os.read(stream, min(num_bytes - len(content), 1 << 20))
        if not piece:
            raise EOFError
        content += piece
    return bytes(content)


def _wait(stream: int, event: int, deadline: float) -> None:
    # Not select, which knows no descriptor beyond 1,023.
    poll = select.poll()
    poll.register(stream, event)
    if not poll.poll(max(0.0, deadline - monotonic()) * 1000):
        raise TimeoutError


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def _refusal(reason: str, public: str | None = None) -> PromptError:
    return PromptError("template_error", f"chat template: {reason}", public=f"chat template: {public or reason}")
