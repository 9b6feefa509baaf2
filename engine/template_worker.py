"""A process of its own that renders one chat template: what a template takes too much of, only this process loses.

    in    {"template": ..., "variables": {...}}                       a line of JSON, once
          {"messages": [...], "limits": {...}}                        a line for each conversation
    out   kind, one byte | number of bytes, 8 of them | UTF-8         an answer for each conversation

Jinja's sandbox keeps a template from Python's insides, not from loops without an end or a text of gigabytes. The
limits here hold inside C code too: the timer's signal ends the process, and memory is refused by the system. After its
imports the process can open no file and start no other one.

It is started by its path, with nothing of ours to import. What a template sees is what `transformers` would show it.
"""

from __future__ import annotations

import ctypes
import json
import resource
import signal
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import jinja2.constants
import jinja2.debug  # Imported by Jinja itself when something fails: no file can be opened then.
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox
import jinja2.utils

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT, REFUSED, MEMORY, LENGTH = b"=", b"!", b"m", b"l"
_MAX_MESSAGE = 2000
_PR_SET_PDEATHSIG = 1
_REHEARSAL = (
    r"{% generation %}{{ '\x41\n' ~ [1.5, {'a': none}] | tojson(indent=1) ~ lipsum(n=1) ~ {'a': 1} | pprint }}"
    r"{% endgeneration %}{% for x in 'ba' | sort %}{{ loop.index | string | urlize | wordwrap(9) }}{% endfor %}"
    "{{ strftime_now('%c %Z') }}{{ 'a'.encode('ascii').decode('latin-1') | xmlattr }}"
)
"""Uses, and fails at its end, what Python and Jinja load at first use only: afterwards no file can be opened."""
_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names that the thoughts of a message go by; templates read the first, some the second."""


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks for training what an assistant said. Here its content is written and that is all."""

    tags = {"generation"}  # noqa: RUF012  # Jinja's own convention

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(line)

    def _written(self, caller: Callable[[], str]) -> str:
        return caller()


class PlainNamespace(jinja2.utils.Namespace):
    """A namespace without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # Without a parameter called self, so that a template may have a variable of this name.
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


class PlainDict:
    """`dict` for templates: it can be called, and is no class whose insides could be reached."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def make_environment() -> jinja2.Environment:
    """The sandbox, with what chat templates expect in it."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    environment.globals["dict"] = PlainDict()
    environment.globals["namespace"] = PlainNamespace
    return environment


def render(template: jinja2.Template, messages: list[dict[str, Any]], variables: dict[str, str], limit: int) -> str:
    """The prompt of a conversation, up to where the answer begins.

    Raises:
        OverflowError: it has more than `limit` characters.
        Exception: whatever the template's own operations raise.
    """
    pieces, num_characters = [], 0
    shown = [_with_thoughts(message) for message in messages]
    for piece in template.generate(messages=shown, tools=None, documents=None, add_generation_prompt=True, **variables):
        num_characters += len(piece)
        if num_characters > limit:
            raise OverflowError
        pieces.append(piece)
    return "".join(pieces)


def serve() -> None:
    """Answer until the other end of standard input is closed."""
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    _die_with_parent()
    environment = make_environment()
    template = None
    job = json.loads(stdin.readline())
    base_num_bytes = _num_bytes_now()
    with suppress(AttributeError):
        render(environment.from_string(_REHEARSAL), [], {}, 1 << 20)
    _forbid_files_and_processes()
    for line in stdin:
        call = json.loads(line)
        limits = call["limits"]
        _limit_memory(base_num_bytes + limits["num_bytes"])
        signal.setitimer(signal.ITIMER_PROF, limits["seconds"])
        try:
            template = template or environment.from_string(job["template"])
            kind, text = TEXT, render(template, call["messages"], job["variables"], limits["num_characters"])
        except OverflowError:
            kind, text = LENGTH, ""
        except MemoryError:
            kind, text = MEMORY, ""
        except Exception as error:
            # It calls methods and operators of plain values: any exception is the template's.
            kind, text = REFUSED, str(error)[:_MAX_MESSAGE]
        signal.setitimer(signal.ITIMER_PROF, 0)
        del call
        content = text.encode("utf-8", "surrogatepass")
        stdout.write(kind + len(content).to_bytes(8, "little") + content)
        stdout.flush()


def _with_thoughts(message: dict[str, Any]) -> dict[str, Any]:
    thoughts = next((message[name] for name in _REASONING if name in message), None)
    return message if thoughts is None else {"thinking": thoughts, **message, "reasoning_content": thoughts}


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace takes no name that begins with an underscore: {name}")


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _num_bytes_now() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _forbid_files_and_processes() -> None:
    for kind, value in ((resource.RLIMIT_NOFILE, 3), (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NPROC, 0)):
        resource.setrlimit(kind, (value, value))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_memory(num_bytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = num_bytes if hard == resource.RLIM_INFINITY else min(num_bytes, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


if __name__ == "__main__":
    serve()
