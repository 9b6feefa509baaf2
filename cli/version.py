"""`infer version`: ours, and those of the libraries that decide what a run computes."""

from __future__ import annotations

import json as json_format
import platform
from typing import Annotated

import typer

_DISTRIBUTIONS = ("torch", "transformers", "tokenizers", "numba", "pyarrow")


def infer_version() -> str:
    return _installed_version("infer-batch")


def version_command(json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False) -> None:
    """Show the versions to name in a bug report."""
    versions = {"infer": infer_version(), "python": platform.python_version()}
    versions |= {name: _installed_version(name) for name in _DISTRIBUTIONS}
    if json:
        typer.echo(json_format.dumps(versions))
    else:
        typer.echo("\n".join(f"{name} {number}" for name, number in versions.items()))


def _installed_version(distribution: str) -> str:
    # Imported here: it would be felt in `infer --help`.
    from importlib.metadata import version

    return version(distribution)
