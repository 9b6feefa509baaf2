"""The flags of `infer run` for another command: the same options with the same help, declared once."""

from __future__ import annotations

from inspect import Parameter, signature
from typing import TYPE_CHECKING

from infer.cli.run import run_command

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import Any, TypeVar

    Command = TypeVar("Command", bound=Callable[..., None])


def with_run_flags(*, without: Collection[str]) -> Callable[[Command], Command]:
    """Gives a command, behind its own parameters, those of `infer run` that it neither has nor is to go `without`. They
    come as keyword arguments, and so the command ends in `**flags`."""

    def add(command: Command) -> Command:
        own = signature(command, eval_str=True)
        kept = [each for each in own.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
        names = {each.name for each in kept} | set(without)
        borrowed = [each for each in _run_parameters() if each.name not in names]
        command.__signature__ = own.replace(parameters=[*kept, *borrowed])  # type: ignore[attr-defined]
        return command

    return add


def run_flag_defaults() -> dict[str, Any]:
    """Every flag of `infer run` as it is where nobody gives it, by parameter name."""
    return {each.name: None if each.default is Parameter.empty else each.default for each in _run_parameters()}


def _run_parameters() -> list[Parameter]:
    parameters = signature(run_command, eval_str=True).parameters.values()
    return [each for each in parameters if each.name != "context"]
