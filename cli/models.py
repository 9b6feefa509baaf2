"""`infer models`: which models can be named, and fetching one before it is needed."""

from __future__ import annotations

import json as json_format
import sys
from typing import Annotated

import typer

models_app = typer.Typer(add_completion=False, rich_markup_mode=None, no_args_is_help=True)

_json = typer.Option("--json", help="print one JSON object")


@models_app.callback()
def models() -> None:
    """List the models that can be named, or fetch one."""


@models_app.command("list")
def list_command(json: Annotated[bool, _json] = False) -> None:
    """Show the built-in models and those in the cache: size, licence, state, place."""
    # Here, because the help page must not wait for what a list needs.
    from infer.cli.terminal import safe
    from infer.engine.cache_dir import cache_dir
    from infer.engine.model_inventory import list_models

    known = list_models()
    if json:
        names = ("name", "kind", "state", "num_bytes", "license")
        rows = [{name: getattr(model, name) for name in names} | {"path": _text(model.path)} for model in known]
        typer.echo(json_format.dumps({"cache": str(cache_dir()), "models": rows}))
        return
    table = [("name", "kind", "size", "licence", "state", "path")]
    table += [
        (model.name, model.kind, f"{model.num_bytes / 1e6:,.0f} MB", model.license or "-", model.state,
         _text(model.path) or "-")
        for model in known
    ]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for cells in table:
        typer.echo(safe("  ".join(map(str.ljust, cells, widths)).rstrip()))


@models_app.command("pull")
def pull_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="a built-in model, or a hub id", show_default=False)],
    revision: Annotated[str | None, typer.Option(metavar="REV", help="of a hub id: branch, tag or commit")] = None,
    json: Annotated[bool, _json] = False,
) -> None:
    """Fetch a model into the cache and print where it is; a run does the same when it needs one."""
    from rich.text import Text

    from infer.cli.terminal import open_console, safe
    from infer.engine.model_source import fetch_model

    console = open_console(sys.stderr)
    path = fetch_model(name, revision, lambda line: console.print(Text(safe(line)), soft_wrap=True))
    typer.echo(json_format.dumps({"name": name, "path": str(path)}) if json else safe(str(path)))


def _text(path: object) -> str | None:
    return None if path is None else str(path)
