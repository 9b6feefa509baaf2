"""The end of a run: one record for programs (`--json`), a few lines for people."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from rich.text import Text
from tqdm import tqdm

from infer.cli.figures import count, counted, percent, rate
from infer.cli.terminal import safe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rich.console import Console

_WASTE_WORTH_A_HINT = 0.05


@dataclass(frozen=True, slots=True)
class RunSeconds:
    load: float
    """Until the model was ready."""
    run: float
    """Everything after: reading, rendering, tokenising, generating, detokenising, writing."""
    total: float


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Field for field the object that `infer run --json` prints."""

    rows: int
    """In the output, failed ones included."""
    rows_failed: int
    rows_resumed: int
    """Taken over from an earlier run of the same job."""
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Prompt tokens that the prefix cache gave."""
    preemptions: int
    tokens_wasted: int
    """Computed again after a preemption."""
    seconds: RunSeconds
    output: str | None
    """None where nothing was published."""
    exit_code: int
    swaps: int = 0
    """Preemptions that copied blocks to host memory instead of computing them again."""
    cached_tokens_by_tier: Mapping[str, int] = field(default_factory=dict)
    """Where the cached ones came from: device, host, disk."""
    rows_deduplicated: int = 0
    """Not computed: they got the answer of an equal row."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds of `run` by what was done in them; what is missing was done between."""

    def to_json(self) -> str:
        # The standard library's: a file name that is not UTF-8 comes out as escapes, where orjson refuses it.
        seconds = {name: round(value, 3) for name, value in asdict(self.seconds).items()}
        phases = {name: round(value, 3) for name, value in self.phases.items()}
        return json.dumps(asdict(self) | {"seconds": seconds, "phases": phases})


@dataclass(frozen=True, slots=True)
class FailureCount:
    """Rows that failed for one reason; `example` is the message of the first, empty where it was an earlier run's."""

    code: str
    rows: int
    example: str


class FailureTally:
    """Counts failed rows by `error_code`, in memory that does not grow with them."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._examples: dict[str, str] = {}

    def add(self, code: str, message: str, num_rows: int = 1) -> None:
        self._rows[code] = self._rows.get(code, 0) + num_rows
        self._examples.setdefault(code, message)

    def counts(self) -> list[FailureCount]:
        """The most frequent first; among equals the one seen first."""
        failures = [FailureCount(code, rows, self._examples[code]) for code, rows in self._rows.items()]
        return sorted(failures, key=lambda failure: -failure.rows)


def print_report(console: Console, summary: RunSummary, failures: Sequence[FailureCount]) -> None:
    """Say what came of the run. A row's message is cut to the width of a terminal, and nothing in a log."""
    # Where all rows are an earlier run's, there is nothing to say of this one.
    tokens = [] if summary.rows == summary.rows_resumed and summary.rows else _tokens(summary)
    for line in (_headline(summary), *tokens):
        console.print(line, soft_wrap=True)
    for line in _failures(failures):
        if console.is_terminal:
            line.truncate(console.width, overflow="ellipsis")
        console.print(line, soft_wrap=True)
    for line in _hints(summary):
        console.print(line, soft_wrap=True)


def _headline(summary: RunSummary) -> Text:
    is_published = summary.output is not None
    parts: list[str | tuple[str, str]] = [
        ("done" if is_published else "stopped", "bold green" if is_published else "bold yellow"),
        f"  {counted(summary.rows, 'row')} in {tqdm.format_interval(summary.seconds.total)}",
    ]
    if 0 < summary.rows_resumed < summary.rows:
        parts.append(f", {count(summary.rows_resumed)} of them in an earlier run")
    if summary.rows_failed:
        parts += [", ", (f"{count(summary.rows_failed)} failed", "bold red")]
    if summary.output is not None:
        parts += ["  ->  ", (safe(summary.output), "bold")]
    return Text.assemble(*parts)


def _tokens(summary: RunSummary) -> Iterator[Text]:
    seconds = summary.seconds.run
    per_second = 1 / seconds if seconds > 0 else 0.0
    lines = [
        (
            "prompt",
            f"{count(summary.prompt_tokens)} tokens",
            rate(summary.prompt_tokens * per_second),
            f"{percent(summary.cached_tokens, summary.prompt_tokens)} from the prefix cache{_tiers(summary)}",
        ),
        (
            "generated",
            f"{count(summary.completion_tokens)} tokens",
            rate(summary.completion_tokens * per_second),
            f"{(summary.rows - summary.rows_resumed) * per_second:,.1f} rows/s",
        ),
        ("time", f"{seconds:,.1f} s", "", f"and {summary.seconds.load:,.1f} s to load the model"),
    ]
    if summary.rows_deduplicated:
        lines.append(("duplicates", counted(summary.rows_deduplicated, "row"), "", "with the answer of an equal row"))
    if summary.preemptions:
        swapped = f"{count(summary.swaps)} of them swapped, " if summary.swaps else ""
        wasted = f"{swapped}{count(summary.tokens_wasted)} tokens computed again"
        lines.append(("preemptions", count(summary.preemptions), "", wasted))
    amount_width, speed_width = (max(len(line[column]) for line in lines) for column in (1, 2))
    for label, amount, speed, remark in lines:
        yield Text.assemble(
            (f"  {label:<11}", "dim"), f"  {amount:>{amount_width}}  {speed:>{speed_width}}  ", (remark, "dim")
        )


def _tiers(summary: RunSummary) -> str:
    """Of what the cache gave, what came from behind the device."""
    parts = [
        f"{percent(num_tokens, summary.prompt_tokens)} from {tier}"
        for tier, num_tokens in summary.cached_tokens_by_tier.items()
        if tier != "device" and num_tokens
    ]
    return f", {', '.join(parts)}" if parts else ""


def _failures(failures: Sequence[FailureCount]) -> Iterator[Text]:
    if not failures:
        return
    codes = [safe(failure.code) for failure in failures]
    code_width = max(map(len, codes))
    rows_width = max(len(count(failure.rows)) for failure in failures)
    for code, failure in zip(codes, failures, strict=True):
        yield Text.assemble(
            (f"  {count(failure.rows):>{rows_width}} {code:<{code_width}}", "red"),
            "  first: " if failure.rows > 1 and failure.example else "  ",
            safe(failure.example or "in an earlier run"),
        )


def _hints(summary: RunSummary) -> Iterator[Text]:
    if summary.rows_failed and summary.output is not None:
        yield Text("hint: failed rows are in the output too: error_code and error say why")
    computed = summary.prompt_tokens - summary.cached_tokens + summary.completion_tokens + summary.tokens_wasted
    if summary.tokens_wasted > _WASTE_WORTH_A_HINT * computed:
        share = percent(summary.tokens_wasted, computed)
        yield Text(f"hint: {share} of the work was done twice for want of KV blocks; lower --max-num-seqs")
