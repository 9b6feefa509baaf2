"""The rooms import in one direction, and each of their packages is in the distribution."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ALLOWED = {
    "cli": {"cli", "io", "engine"},
    "engine": {"engine", "kernels"},
    "io": {"io"},
    "kernels": {"kernels"},
}
SOURCES = sorted(path for room in ALLOWED for path in (ROOT / room).rglob("*.py"))


def imported_rooms(tree: ast.AST) -> set[str]:
    """Rooms of `infer` that a module imports anywhere, also in functions and under TYPE_CHECKING."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("infer.")}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file_imports_in_the_allowed_direction_only(path):
    room = path.relative_to(ROOT).parts[0]
    assert imported_rooms(ast.parse(path.read_text())) <= ALLOWED[room]


def test_direction_test_sees_every_form_of_import():
    source = "import infer.io.row\ndef f():\n    from infer.engine.block import Block\n    from infer import kernels"
    assert imported_rooms(ast.parse(source)) == {"io", "engine", "kernels"}


def test_every_package_is_listed_in_pyproject():
    packages = {
        ".".join(("infer", *path.parent.relative_to(ROOT).parts)) for path in SOURCES if path.name == "__init__.py"
    }
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert sorted(packages) == sorted(listed)


def test_every_folder_with_modules_is_a_package():
    folders = {path.parent for path in SOURCES}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_no_file_is_much_longer_than_300_lines():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}
    assert {name: length for name, length in lengths.items() if length > 320} == {}
