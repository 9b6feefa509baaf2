"""Whatever is in a name, a value or a file, the bytes on standard error and output steer no terminal."""

from __future__ import annotations

import io
import json
import logging
import re
import struct
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from echo_engine import EchoEngine, identify_echo
from rich.console import Console
from tiny_tokenizers import chatml_tokenizer

from infer.cli import job
from infer.cli.app import main
from infer.cli.display import LiveView
from infer.cli.run_snapshot import RunSnapshot
from infer.cli.terminal import SafeStream, safe
from infer.engine.errors import ModelError
from infer.engine.stats import EngineStats

NAME = "\x1b]0;pwn\x07\x1b[2J\x9b31m\u202ea\u2066b\u2028c\rd\x85\x7f[foo]\udcff\nforged: line"
"""Can be the name of a file."""
TEXT = f"{NAME}[/foo][type='X']\x00\x08\ud835"
# C0 but the line feed, DEL, C1 as UTF-8, marks and overrides of direction, other line ends.
UNSAFE = re.compile(
    rb"[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]|\xed[\xa0-\xbf]"
)


@pytest.fixture
def run(capfdbinary, tmp_path, monkeypatch):
    """Runs a command line in an empty folder and checks what came out. Returns it, standard error first."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("INFER_HOME", str(tmp_path / "home"))

    def run(*arguments: str, may_forge: bool = False) -> tuple[str, str]:
        main(list(arguments))
        captured = capfdbinary.readouterr()
        for stream in (captured.err, captured.out):
            assert not UNSAFE.search(stream), stream
            # Whether a library meant a line feed nobody can know.
            assert may_forge or b"\nforged" not in stream
        return captured.err.decode(), captured.out.decode()

    return run


def write_rows(path: str, *rows: object) -> str:
    Path(path).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


COMMAND_LINES = {
    "input": ["run", NAME],
    "glob": ["run", f"{NAME}*.jsonl"],
    "column": ["run", "in.jsonl", "--prompt-column", NAME],
    "template": ["run", "in.jsonl", "--prompt", NAME + "{"],
    "template column": ["run", "in.jsonl", "--prompt", "{a\x1b[2J}"],
    "prompt file": ["run", "in.jsonl", "--prompt-file", NAME],
    "keep": ["run", "in.jsonl", "--keep", NAME],
    "empty keep": ["run", "in.jsonl", "--keep", f"{NAME},,"],
    "prefix": ["run", "in.jsonl", "--prefix", NAME],
    "output": ["run", "in.jsonl", "-o", f"{NAME}.xlsx"],
    "output folder": ["run", "in.jsonl", "-o", f"missing{NAME}/out.jsonl"],
    "model": ["run", "in.jsonl", "--model", NAME, "-o", "o1.jsonl"],
    "gguf": ["run", "in.jsonl", "--model", f"{NAME}.gguf", "-o", "o2.jsonl"],
    "choice": ["run", "in.jsonl", "--dtype", NAME],
    "special tokens": ["run", "in.jsonl", "--special-tokens", NAME],
    "number": ["run", "in.jsonl", "--top-k", NAME],
    "token ids": ["run", "in.jsonl", "--stop-token-ids", NAME],
    "bias": ["run", "in.jsonl", "--logit-bias", NAME],
    "option": ["run", f"--{NAME}"],
    "command": [NAME],
    "model command": ["models", NAME],
    "pull": ["models", "pull", NAME],
}


@pytest.mark.parametrize("name", COMMAND_LINES)
def test_hostile_command_line_is_shown_harmless(run, name):
    write_rows("in.jsonl", {"text": "a"})
    said, _ = run(*COMMAND_LINES[name])
    assert said.startswith("error: ")
    # typer refuses what is no Unicode before it looks for a number.
    assert "\\x1b" in said or name == "number"


@pytest.mark.parametrize("variable", ["INFER_LOG_LEVEL", "INFER_DTYPE", "INFER_MAX_TOKENS", "INFER_MODEL"])
def test_hostile_environment_is_shown_harmless(run, monkeypatch, variable):
    write_rows("in.jsonl", {"text": "a"})
    monkeypatch.setenv(variable, NAME)
    said, _ = run("run", "in.jsonl")
    assert "\\x1b" in said


def test_hostile_names_of_files_and_columns_are_shown_harmless(run):
    unicode = NAME.replace("\udcff", "")
    files = {f"{NAME}.jsonl": b"{broken", f"{unicode}.parquet": b"PAR1 not", f"{unicode}.empty.parquet": b""}
    for name, content in files.items():
        Path(name).write_bytes(content)
        said, _ = run("run", name)
        assert "\\x1b" in said
    write_rows("in.jsonl", {unicode: "a"})
    said, _ = run("run", "in.jsonl")
    assert "no column is named prompt or messages or text: \\x1b" in said


def tokenizer_files(directory: Path, config: dict[str, Any]) -> None:
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps({"model_type": "llama"} | config))


HOSTILE_CONFIGS = {
    "type": {"model_type": TEXT},
    "architecture": {"architectures": [TEXT]},
    "code": {f"__{TEXT}": 1},
    "quantisation": {"quantization_config": {"quant_method": TEXT}},
    "dtype": {"dtype": TEXT},
    "tokenizer": {"tokenizer_class": TEXT},
}


@pytest.mark.parametrize("name", HOSTILE_CONFIGS)
def test_hostile_config_is_shown_harmless(run, name):
    write_rows("in.jsonl", {"text": "a"})
    tokenizer_files(Path("model"), HOSTILE_CONFIGS[name])
    Path("model/model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    said, _ = run("run", "in.jsonl", "--model", "model")
    assert said.startswith("error: ")


def test_hostile_headers_are_shown_harmless(run):
    write_rows("in.jsonl", {"text": "a"})
    tokenizer_files(Path("model"), {})
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 1]}
    header = json.dumps({TEXT: entry}).encode()
    Path("model/model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    said, _ = run("run", "in.jsonl", "--model", "model")
    assert "\\x1b" in said
    Path("model/model.safetensors").unlink()
    Path("model/model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": TEXT}}))
    said, _ = run("run", "in.jsonl", "--model", "model")
    assert "\\x1b" in said
    key = NAME.replace("\udcff", "").encode()
    content = struct.pack("<4sIQQQ", b"GGUF", 3, 0, 1, len(key)) + key + struct.pack("<I", 99)
    Path("m.gguf").write_bytes(content)
    said, _ = run("run", "in.jsonl", "--model", "m.gguf")
    assert "\\x1b" in said


def test_hostile_cache_is_listed_harmless(run, tmp_path):
    (tmp_path / "home" / "models" / NAME).mkdir(parents=True)
    _, listed = run("models", "list")
    assert "\\x1b" in listed
    _, listed = run("models", "list", "--json")
    assert NAME in [model["name"] for model in json.loads(listed)["models"]]


class HostileEngine(EchoEngine):
    model_name = TEXT

    def describe(self) -> list[str]:
        return [f"model {TEXT}"]


def rows_of_all_kinds() -> list[dict[str, Any]]:
    text = TEXT.encode("utf-8", "ignore").decode()
    return [
        {"text": text},
        {"text": TEXT},
        {"text": "x", "max_tokens": text},
        {"text": "x", "stop": [text, 5]},
        {"text": "x", "seed": text},
        {"text": [text]},
    ]


@pytest.mark.parametrize("level", ["", "debug"])
def test_hostile_rows_and_their_errors_are_shown_harmless(run, monkeypatch, level):
    monkeypatch.setenv("INFER_LOG_LEVEL", level)
    monkeypatch.setattr(
        job.run_job, "__defaults__", (lambda _config, say: (say(TEXT), HostileEngine())[1], identify_echo)
    )
    write_rows(f"{NAME}.jsonl", *rows_of_all_kinds())
    said, _ = run("run", f"{NAME}.jsonl", "-o", f"{NAME}.out.jsonl", "--row-params", "--prompt-column", "text")
    assert "done  6 rows" in said
    run("run", f"{NAME}.jsonl", "-o", f"{NAME}.2.jsonl", "--row-params", "--prompt", "{text}", "--json")


def test_report_says_nothing_of_what_is_in_rows(run, monkeypatch):
    monkeypatch.setattr(job.run_job, "__defaults__", (lambda _config, _say: EchoEngine(), identify_echo))
    rows = [
        {"text": "CONFIDENTIAL", "max_tokens": "CONFIDENTIAL"},
        {"text": "CONFIDENTIAL", "seed": "CONFIDENTIAL"},
        {"text": "CONFIDENTIAL", "priority": "CONFIDENTIAL"},
        {"text": "CONFIDENTIAL", "stop": [5, "CONFIDENTIAL"]},
        {"text": {"CONFIDENTIAL": 1}},
        {"text": "CONFIDENTIAL"},
    ]
    write_rows("in.jsonl", *rows)
    for number, arguments in enumerate((["--prompt-column", "text"], ["--prompt", "{text:d}"])):
        output = f"{number}.jsonl"
        said, _ = run(*("run", "in.jsonl", "-o", output, "--row-params", "--scheduling-policy", "priority", *arguments))
        assert "CONFIDENTIAL" not in said
        # Beside the row itself the message may say which value it was.
        errors = [json.loads(line)["error"] for line in Path(output).read_text().splitlines()]
        assert number or any("CONFIDENTIAL" in (error or "") for error in errors)


def test_what_libraries_say_is_shown_harmless(run, monkeypatch):
    def load(*_: object) -> Any:
        # As their handlers do, which take the stream that is there.
        handler = logging.StreamHandler()
        logger = logging.getLogger("somebody.else")
        # Or the tests' own report would hold it, which cannot be sent from process to process.
        logger.propagate = False
        logger.addHandler(handler)
        logger.error(TEXT)
        logger.removeHandler(handler)
        sys.stderr.write(warnings.formatwarning(UserWarning(TEXT), UserWarning, NAME, 1))
        print(TEXT, file=sys.stderr)
        sys.stderr.writelines([TEXT, "\n"])
        raise ModelError(f"as said: {TEXT} https://u:password@host/?sig=0123456789")

    monkeypatch.setattr(job.run_job, "__defaults__", (load, identify_echo))
    write_rows("in.jsonl", {"text": "a"})
    said, _ = run("run", "in.jsonl", may_forge=True)
    assert said.count("\\x1b]0;pwn") == 6
    assert "password" not in said
    assert "0123456789" not in said


def test_bug_is_shown_harmless(run, monkeypatch):
    def load(*_: object) -> Any:
        raise AssertionError(TEXT)

    monkeypatch.setattr(job.run_job, "__defaults__", (load, identify_echo))
    monkeypatch.setenv("INFER_LOG_LEVEL", "debug")
    write_rows("in.jsonl", {"text": "a"})
    said, _ = run("run", "in.jsonl")
    assert "AssertionError: \\x1b]0;pwn" in said


def test_panic_of_a_library_is_a_bug_like_another(run, monkeypatch):
    def load(*_: object) -> Any:
        broken = {"type": "FixedLength", "length": 0}
        content = json.loads(chatml_tokenizer().backend_tokenizer.to_str()) | {"pre_tokenizer": broken}
        tokenizers.Tokenizer.from_str(json.dumps(content)).encode("a")

    monkeypatch.setattr(job.run_job, "__defaults__", (load, identify_echo))
    write_rows("in.jsonl", {"text": "a"})
    said, _ = run("run", "in.jsonl")
    assert "error: this is a bug in infer: RuntimeError" in said


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_live_view_shows_names_and_what_libraries_say_harmless(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    console = Console(file=stream, force_terminal=True, width=100, height=30, markup=False, highlight=False)
    snapshot = RunSnapshot(1, 0, 2, 1.0, EngineStats(), TEXT, TEXT, TEXT)
    monkeypatch.setattr(sys, "stderr", SafeStream(stream))
    with LiveView(console, lambda: snapshot) as view:
        print(TEXT, file=sys.stderr)
        view.message(TEXT)
        view.update()
    assert isinstance(sys.stderr, SafeStream)
    drawn = stream.getvalue()
    assert "\\x1b]0;pwn" in drawn
    # The picture has escape codes of its own, and none of these.
    for sequence in ("\x1b]", "\x07", "\x1b[2J", "\x9b", "\u202e", "\u2066", "\u2028", "\x85", "\x00", "\ud835"):
        assert sequence not in drawn


@pytest.mark.parametrize(
    "code_point", [*range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x202E, 0x2067, 0x2028, 0xD800]
)
def test_every_code_point_that_steers_is_escaped(code_point):
    assert safe(chr(code_point)).isascii()
    assert safe(chr(code_point)).startswith("\\")
