"""The help page of a command with many options: plain sections, one line an option where it fits.

rich's rendering of the same page takes a third of a second before the first character; this is typer's plain formatter
with the options under the headings that `rich_help_panel` names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from typer.core import TyperArgument, TyperCommand

if TYPE_CHECKING:
    from typing import Any


class SectionedCommand(TyperCommand):
    """A command whose `--help` lists its arguments and options by section, in the order of the signature."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [param for param in self.get_params(ctx) if isinstance(param, TyperArgument)]
        return ["[OPTIONS]", *(f"{argument.metavar}..." for argument in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if isinstance(param, TyperArgument):
                record = (f"{param.metavar}...", param.help or "")
            if record is not None:
                sections.setdefault(getattr(param, "rich_help_panel", None) or "Other", []).append(record)
        for name, records in sections.items():
            with formatter.section(name):
                formatter.write_dl(records, col_max=36)
