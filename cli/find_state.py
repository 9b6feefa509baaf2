"""From what a user names, an output or a state directory, to where what is saved of its run lies."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_SIBLINGS = 10_000

OutputArgument = Annotated[
    str,
    typer.Argument(metavar="OUT", help="the output of a run, there or not yet, or its .infer", show_default=False),
]
StateDirOption = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="where its rows are saved [default: beside the output]",
        envvar="INFER_STATE_DIR",
        show_envvar=False,
        show_default=False,
    ),
]


def find_state(output: str, state_dir: str | None) -> Path:
    """The state directory of the run that writes `output`, which may be that directory itself.

    Raises:
        InputError: there is none.
        UsageError: standard output has none.
    """
    # Here, because the help page must not wait for it.
    from infer.cli.errors import UsageError
    from infer.cli.resume import state_directory
    from infer.io.aside import resolved
    from infer.io.errors import InputError

    if output in ("", "-"):
        raise UsageError("OUT names no file: of what went to standard output nothing is saved")
    if is_state(Path(output)):
        return Path(output).absolute()
    path = resolved(output)
    directory = state_directory(path, state_dir)
    if not directory.is_dir():
        raise InputError(f"nothing is saved of a run with this output: {output}", _hint(path, directory))
    return directory


def is_state(path: Path) -> bool:
    """Whether a user who names it means a state directory."""
    from infer.io.paths import STATE_SUFFIX

    return path.name.endswith(STATE_SUFFIX) and path.is_dir()


def _hint(output: Path, directory: Path) -> str:
    from infer.io.near_match import near_match_hint

    if output.exists():
        return "infer verify tells whether the output is whole; state kept elsewhere is named with --state-dir"
    near = near_match_hint(directory.name, _states_in(directory.parent))
    return near or "state kept elsewhere is named with --state-dir"


def _states_in(parent: Path) -> Iterator[str]:
    if not parent.is_dir():
        return iter(())
    return (path.name for path in islice(parent.iterdir(), _MAX_SIBLINGS) if is_state(path))
