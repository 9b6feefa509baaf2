"""A chat template costs its own process what it takes too much of, and reaches nothing outside the sandbox."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from infer.engine import template_worker
from infer.engine.errors import PromptError
from infer.engine.template_process import TemplateLimits, TemplateProcess, _line

LIMITS = TemplateLimits(seconds=0.1, num_bytes=64 << 20, num_characters=1 << 16)
MESSAGES = [{"role": "user", "content": "Hello"}]


def process(template: str, limits: TemplateLimits = LIMITS) -> TemplateProcess:
    return TemplateProcess(template, {"bos_token": "<s>"}, limits)


def refusal(template: str) -> str:
    renderer = process("{% if messages[0].content == 'Hello' %}" + template + "{% endif %}fine")
    with pytest.raises(PromptError) as caught:
        renderer.render(MESSAGES, 5)
    assert caught.value.code == "template_error"
    # The next conversation is none the worse for it.
    assert renderer.render([{"role": "user", "content": "x"}], 1) == "fine"
    return str(caught.value).removeprefix("chat template: ")


# What is made of constants only is worked out when a template is compiled, and none of it can be rendered then.
TAKES_TIME = {
    "nested loops": "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}"
    "{% endfor %}{% endfor %}{% endfor %}",
    "power": "{{ 10 ** (10 ** 9 * messages | length) }}",
    "rounding": "{{ 5 | round(-1000000000 * messages | length) }}",
    "recursion of a macro": "{% macro f(n) %}{{ f(n - 1) if n }}{{ f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
    "squares": "{% set n = namespace(x=3) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "compared lists": "{% set n = namespace(a=[], b=[]) %}{% for i in range(60) %}{% set n.a = [n.a, n.a] %}"
    "{% set n.b = [n.b, n.b] %}{% endfor %}{{ n.a == n.b }}",
    "counted": "{{ range(99999) | map('string') | map('center', 9999) | map('length') | sum }}"
    "{{ range(99999) | map('string') | map('center', 9999) | map('length') | sum }}" * 9,
}
TAKES_MEMORY = {
    "repeated text": "{{ 'x' * 10 ** 9 }}",
    "repeated list": "{{ [1] * 10 ** 9 }}",
    "centred": "{{ 'x' | center(10 ** 9) }}",
    "method": "{{ 'x'.ljust(10 ** 9) }}",
    "format": "{{ '%01000000000d' % 1 }}",
    "format method": "{{ '{:>1000000000}'.format(1) }}",
    "bytes": "{{ (1).to_bytes(10 ** 9, 'big') }}",
    "joined": "{{ range(99999) | map('string') | map('center', 9999) | join }}",
    "kept": "{% set n = namespace(x='x' * 99999) %}{% for i in range(30) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "replaced": "{{ ('a' * 99999) | replace('a', 'b' * 99999) }}",
    "nested": "{% set n = namespace(x=['y']) %}{% for i in range(40) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
    "indented": "{{ [[1]] | tojson(indent=10 ** 9) }}",
    "shared": "{% set n = namespace(x=[1]) %}{% for i in range(40) %}{% set n.x = n.x + n.x %}{% endfor %}",
}


QUICK = ("nested loops", "counted", "repeated text", "joined", "kept", "nested", "indented")


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in TAKES_TIME | TAKES_MEMORY],
)
def test_template_that_takes_too_much_is_stopped(name):
    """Most of what takes time comes to take memory, and the other way round: whichever limit is first."""
    assert refusal((TAKES_TIME | TAKES_MEMORY)[name]) in (
        "took more than 0.1 s of processor time",
        "needed more than 64 MiB of memory",
    )


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'x' * 70000 }}",
        "{% for i in range(9000) %}{{ 'x' * 90 }}{% endfor %}",
        "{% set big %}{{ 'x' * 70000 }}{% endset %}{{ big }}",
        "{{ lipsum(n=200) }}",
    ],
)
def test_template_that_writes_too_much_is_stopped(template):
    assert refusal(template) == "wrote more than 65,616 characters"


def test_long_conversation_may_have_a_long_prompt():
    renderer = process("{{ messages[0].content }}")
    content = "x" * 1_000_000
    assert renderer.render([{"role": "user", "content": content}], len(content)) == content


def test_conversation_that_takes_too_long_leaves_the_others_alone():
    """The template is harmless, the row is not: it has so many messages that looking at all pairs takes too long."""
    renderer = process(
        "{% for a in messages %}{% for b in messages %}{% if a.content > b.content %}{% endif %}{% endfor %}"
        "{% endfor %}ok"
    )
    many = [{"role": "user", "content": str(number)} for number in range(20_000)]
    assert renderer.render(MESSAGES, 5) == "ok"
    with pytest.raises(PromptError, match=r"took more than 0\.1 s"):
        renderer.render(many, 100_000)
    assert renderer.render(MESSAGES, 5) == "ok"


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}",
    "{{ '' | attr('__class__') }}",
    "{{ '' | attr('__cl' ~ 'ass__') }}",
    "{{ messages | map(attribute='__class__') | list }}",
    "{{ [''] | map('attr', '__class__') | list }}",
    "{{ messages | groupby('__class__') }}",
    "{{ messages | sum(attribute='__class__') }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ '{x.__class__}'.format_map({'x': ''}) }}",
    "{{ ('{0.__class__}' | e).format('') }}",
    "{{ ''.format.__globals__ }}",
    "{% set f = '{0.__class__}'.format %}{{ f('') }}",
    "{{ ['{0.__class__}'] | map('format', '') | list }}",
    "{{ ['%(__class__)s'] | map('format', messages) | list }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ joiner.__init__.__globals__.os }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "{{ range.__class__ }}",
    "{{ dict.__class__ }}",
    "{{ dict.__call__.__func__.__globals__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__ }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ loop.__class__ }}",
    "{% macro m() %}{% endmacro %}{{ m.__init__.__globals__ }}",
    "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "{% call raise_exception.__call__() %}{% endcall %}",
    "{{ namespace(__class__=1) }}",
    "{% set n = namespace() %}{% set n.__class__ = 1 %}{{ n }}",
    "{{ namespace({'__init__': 1}) }}",
    "{% set _ = messages.append(1) %}{{ messages }}",
    "{% set _ = messages[0].update({'role': 'x'}) %}{{ messages }}",
    "{% set _ = messages.clear() %}",
    "{{ messages.__setitem__(0, 1) }}",
    "{{ messages.sort.__self__ }}",
    "{{ undefined_name.__class__ }}",
    "{{ environment.globals }}",
    "{{ (1).__add__ }}",
    "{{ ''.encode().__class__ }}",
    "{{ get_flashed_messages.__globals__ }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
    "{% extends '/etc/passwd' %}",
    "{% from 'os' import popen %}",
    "{% for x in (lambda: 1) %}{% endfor %}",
]


def render(template: str) -> str:
    """In this process: what an escape can reach must not depend on the limits of another one."""
    return template_worker.render(template_worker.make_environment().from_string(template), MESSAGES, {}, 1 << 20)


@pytest.mark.parametrize("template", ESCAPES)
def test_template_does_not_reach_what_is_outside_the_sandbox(template):
    try:
        text = render(template)
    except Exception:
        # The sandbox says no in many ways.
        return
    # What is forbidden is undefined in places, and undefined is written as nothing.
    assert text in ("", "[]", "[Undefined]", f"[(Undefined, {MESSAGES})]"), text


@pytest.mark.parametrize("template", ["{{ messages }}", "{{ messages | list }}", "{{ messages.copy() }}"])
def test_escapes_are_told_from_what_is_allowed(template):
    """The list above would prove nothing if every template were refused."""
    assert render(template) == str(MESSAGES)


PRIVILEGE = """
import sys
import infer.engine.template_worker as worker
worker._forbid_files_and_processes()
for attempt in ("open('/etc/hostname')", "open(sys.argv[1], 'w')", "__import__('socket').socket()"):
    try:
        eval(attempt)
    except OSError:
        print("refused")
"""


def test_worker_can_open_no_file_and_no_socket(tmp_path):
    output = subprocess.run(
        [sys.executable, "-P", "-c", PRIVILEGE, str(tmp_path / "new")], stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    assert output.splitlines() == ["refused"] * 3
    assert not (tmp_path / "new").exists()


def test_process_that_was_ended_by_another_is_begun_again():
    renderer = process("{{ messages[0].content }}")
    assert renderer.render(MESSAGES, 5) == "Hello"
    os.kill(renderer._process.pid, signal.SIGKILL)
    renderer._process.wait()
    assert renderer.render(MESSAGES, 5) == "Hello"


def test_answer_that_is_too_long_is_not_taken_for_the_next_one():
    renderer = process("{{ messages[0].content }}")
    limits = {"seconds": 1, "num_bytes": 64 << 20, "num_characters": 99}
    with pytest.raises(PromptError, match="answers what it was not asked"):
        renderer._ask(_line({"messages": [{"content": "first"}], "limits": limits}), 4)
    assert renderer.render([{"role": "user", "content": "second"}], 6) == "second"


KILLED_AT_WORK = """
import os, time
from infer.engine.template_process import TemplateLimits, TemplateProcess, _line, _write
loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
process = TemplateProcess("{% if messages[0].content %}" + loop + "{% endif %}", {}, TemplateLimits())
process.render([{"content": ""}], 0)
print(process._process.pid, flush=True)
limits = {"seconds": 60, "num_bytes": 1 << 30, "num_characters": 9}
_write(process._process, _line({"messages": [{"content": "x"}], "limits": limits}), time.monotonic() + 9)
os.kill(os.getpid(), 9)
"""


def test_process_ends_with_the_one_that_it_works_for():
    """Also where it is busy, and does not hear that its input is closed."""
    output = subprocess.run([sys.executable, "-P", "-c", KILLED_AT_WORK], stdout=subprocess.PIPE, text=True).stdout
    status, deadline = Path(f"/proc/{int(output)}/stat"), time.monotonic() + 10
    while status.exists() and ") Z " not in status.read_text() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not status.exists() or ") Z " in status.read_text()


def test_process_is_gone_when_it_is_not_needed_any_more():
    renderer = process("{{ messages[0].role }}")
    renderer.render(MESSAGES, 5)
    child = renderer._process
    del renderer
    assert child.returncode == -signal.SIGKILL


def test_process_is_heard_where_many_files_are_open():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 1200:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    with ExitStack() as stack:
        for _ in range(1100):
            stack.enter_context(Path(os.devnull).open())
        assert process("{{ messages[0].content }}").render(MESSAGES, 5) == "Hello"
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_lone_surrogates_and_private_characters_pass():
    text = "a\ud835 \U000f0000\U000f0001 \x00\u2028"
    assert process("{{ messages[0].content }}").render([{"role": "user", "content": text}], len(text)) == text


def test_message_of_the_template_is_cut():
    renderer = process("{{ raise_exception('x' * 100000) }}")
    with pytest.raises(PromptError) as caught:
        renderer.render(MESSAGES, 5)
    assert len(str(caught.value)) < 3000
