"""What no line of the product does, and what SECURITY.md says that it proves."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(path for room in ("cli", "engine", "io", "kernels") for path in (ROOT / room).rglob("*.py"))
FORBIDDEN_CALLS = {
    *("eval", "exec", "compile", "__import__"),
    *("torch.load", "torch.jit.load", "torch.hub.load", "torch.package.PackageImporter", "torch.ops.load_library"),
    *("np.load", "numpy.load", "joblib.load", "os.system", "os.popen", "pty.spawn"),
    *("yaml.load", "yaml.unsafe_load", "yaml.full_load", "subprocess.getoutput", "subprocess.getstatusoutput"),
    *("tarfile.open", "zipfile.ZipFile.extractall", "shutil.unpack_archive", "logging.config.listen"),
}
FORBIDDEN_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "marshal",
    "shelve",
    "joblib",
    "yaml",
    "code",
}
FORBIDDEN_METHODS = {"extractall"}
ALLOWED_VALUES = {"trust_remote_code": False, "shell": False, "weights_only": True, "allow_pickle": False}
"""Of arguments: nothing but these, written out."""


def offences(tree: ast.AST) -> list[str]:
    """What a module does that none should, with its line."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node, alias.name) for alias in node.names if alias.name.split(".")[0] in FORBIDDEN_MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FORBIDDEN_MODULES:
            found.append((node, node.module))
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in FORBIDDEN_CALLS or name.rsplit(".", 1)[-1] in FORBIDDEN_METHODS:
                found.append((node, name))
            for argument in node.keywords:
                if argument.arg in ALLOWED_VALUES and not (
                    isinstance(argument.value, ast.Constant) and argument.value.value is ALLOWED_VALUES[argument.arg]
                ):
                    found.append((node, f"{argument.arg}={ast.unparse(argument.value)}"))
    return [f"line {node.lineno}: {what}" for node, what in found]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file_runs_no_code_that_it_is_given(path):
    assert offences(ast.parse(path.read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        *(
            "eval('1')",
            "exec(text)",
            "compile(a, b, 'exec')",
            "__import__(name)",
            "import pickle",
            "from yaml import load",
        ),
        *("torch.load(path, weights_only=True)", "model(x, weights_only=False)", "load(trust_remote_code=True)"),
        *("load(trust_remote_code=flag)", "subprocess.run(command, shell=True)", "os.system(command)"),
        *("numpy.load(path)", "archive.extractall(folder)", "import yaml as y", "tarfile.open(path)"),
    ],
)
def test_offences_are_found(source):
    assert len(offences(ast.parse(source))) == 1


def test_sandboxed_values_pass():
    assert offences(ast.parse("load(trust_remote_code=False, shell=False); json.loads(text); re.compile(x)")) == []


@pytest.mark.parametrize(("name", "least"), [("transformers", (5, 3)), ("jinja2", (3, 1, 6)), ("pyarrow", (23, 0, 1))])
def test_libraries_have_the_versions_that_mended_what_they_let_through(name, least):
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    [floor] = [match[1] for each in dependencies if (match := re.fullmatch(rf"{name}>=([\d.]+)", each))]
    assert tuple(map(int, floor.split("."))) >= least


def named_tests(document: str) -> list[str]:
    return re.findall(r"`(tests/[\w/]+\.py::test_\w+)`", (ROOT / document).read_text())


@pytest.mark.parametrize(("document", "least"), [("SECURITY.md", 25), ("README.md", 15)])
def test_every_test_that_a_document_names_exists(document, least):
    names = named_tests(document)
    assert len(set(names)) >= least
    missing = []
    for name in names:
        path, _, function = name.partition("::")
        functions = {
            node.name
            for node in ast.walk(
                ast.parse((ROOT / path).read_text()) if (ROOT / path).is_file() else ast.Module([], [])
            )
            if isinstance(node, ast.FunctionDef)
        }
        if function not in functions:
            missing.append(name)
    assert missing == []


def test_every_threat_names_its_test():
    rows = [line for line in (ROOT / "SECURITY.md").read_text().splitlines() if line.startswith("| ")]
    threats = [line for line in rows if not line.startswith(("| threat", "| ---"))]
    assert len(threats) >= 20
    assert [line for line in threats if "`tests/" not in line.split("|")[4]] == []
