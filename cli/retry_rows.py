"""The failed rows of a finished run, to be run again: which they are, and how the others are kept."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from infer.cli.figures import count, counted
from infer.cli.resume import differs
from infer.io.errors import FingerprintError, InputError, VerificationError
from infer.io.publish import is_published
from infer.io.read_back import read_results

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from infer.io.fingerprint import Difference
    from infer.io.output import Output
    from infer.io.run_state import RunState
    from infer.io.schema import OutputSchema

ALL_CODES = "all"
PASSING_CODES = ("oom", "timeout", "poison", "nan_logits", "internal")
"""Of failures that may not come again: all others lie in the row."""


@dataclass(frozen=True, slots=True)
class RetryRows:
    """Those that failed with one of `codes`; None: all that failed."""

    codes: frozenset[str] | None

    def select(self, failures: Mapping[str, int]) -> dict[str, int]:
        """Of failed rows, counted by code, those that are to be run again."""
        return {code: number for code, number in failures.items() if self.codes is None or code in self.codes}

    def keep(self, failures: Mapping[str, int]) -> dict[str, int]:
        """The others."""
        return {code: number for code, number in failures.items() if self.codes is not None and code not in self.codes}

    def describe(self, num_rows: int, failures: Mapping[str, int]) -> str:
        codes = self.select(failures)
        listed = ", ".join(f"{count(number)} {code}" for code, number in codes.items())
        return f"retrying: {count(sum(codes.values()))} of {counted(num_rows, 'row')} ({listed}), the others are kept"

    def reopen(self, state: RunState, output: Output, schema: OutputSchema) -> None:
        """Save what is kept of the output again. Until the last of it is saved, nothing has changed.

        Raises:
            InputError, VerificationError: the output is not what the run has written.
            StorageError: the file system refused.
        """
        check_output(state, output)
        state.reopen(self._kept(read_results(output.files(), schema)))

    def _kept(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        for table in tables:
            codes = table["error_code"]
            if self.codes is None:
                is_kept = pc.is_null(codes)
            else:
                is_kept = pc.invert(pc.is_in(codes, pa.array(sorted(self.codes), pa.string())))
            yield table.filter(is_kept)


def retry_hint(output: str, failures: Mapping[str, int], state_dir: str | None = None) -> str:
    """How to run those rows again that may not fail again; empty where there are none."""
    codes = [code for code in PASSING_CODES if code in failures]
    option = "" if state_dir is None else f" --state-dir {shlex.quote(state_dir)}"
    return (
        f"infer retry {shlex.quote(output)} --codes {','.join(codes)}{option} runs failed rows again" if codes else ""
    )


def check_output(state: RunState, output: Output) -> None:
    """Returns if the output is what the finished run has written.

    Raises:
        InputError: it is gone.
        VerificationError: it is something else.
    """
    publish = state.progress.publish
    if not output.files():
        raise InputError(
            f"the output is gone: {output.path}", "put it back, or run all rows anew with the command that made it"
        )
    if publish is None or not is_published(output, publish.files):
        raise VerificationError(
            f"the output is not what its run has written: {output.path}",
            "put it back, or run all rows anew with the command that made it and --overwrite",
        )


def job_changed(changes: Sequence[Difference]) -> FingerprintError:
    """What to say of a job that is not what it was when its rows were run."""
    return FingerprintError(
        f"the job is not what it was, it {differs(changes)}",
        "a retry needs the input and the model as they were; or run all rows anew, with infer run and --overwrite",
    )
